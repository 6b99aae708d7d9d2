# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module as Ansible's own `normal` action does, and let its answer pass the gate.

Ansible takes this plugin for every module that has no action plugin of its own:
`ansible.legacy.normal` is its override point.
"""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.gate import (
    answer_gate,
    builtin_action,
)


class ActionModule(answer_gate.Gated, builtin_action.load("normal")):
    """Ansible's own action. What a node answers is validated before anything else sees it."""
