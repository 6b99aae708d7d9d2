# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module as Ansible's own `normal` action does, and let its answer pass the gate.

Ansible takes this plugin for every module that has no action plugin of its own: `ansible.legacy.normal` is its override point. It loads this
file under the name of its own, so Ansible's is loaded from its file.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

import ansible.module_utils
import ansible.plugins.action

# ansible.cfg's module_utils is for modules; a plugin has to find the product's package by itself.
_CORE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "module_utils")
if _CORE not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_CORE)
answer_gate = importlib.import_module("ansible.module_utils.trainyard.answer_gate")

_SPEC = importlib.util.spec_from_file_location(
    "ansible_builtin_normal", os.path.join(os.path.dirname(ansible.plugins.action.__file__), "normal.py")
)
_BUILTIN = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_BUILTIN)


class ActionModule(answer_gate.Gated, _BUILTIN.ActionModule):
    """Ansible's own action; what a node answers is validated before anything else sees it."""
