# SPDX-License-Identifier: GPL-3.0-or-later
"""Run `ansible.legacy.command`, and let what the node answers pass the gate."""

from __future__ import annotations

import os

import ansible.module_utils

# ansible.cfg's module_utils is for modules; a plugin has to find the product's package by itself.
_CORE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "module_utils")
if _CORE not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_CORE)
from ansible.module_utils.trainyard.gate import answer_gate, builtin_action


class ActionModule(answer_gate.Gated, builtin_action.load("command")):
    """Ansible's own action; what a node answers is validated before anything else sees it."""
