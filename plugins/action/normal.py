# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module as Ansible's own `normal` action does, and validate its answer.

Ansible takes this plugin for every module that has no action plugin of its own:
`ansible.legacy.normal` is its override point.
"""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import (
    answer_gate,
    builtin_action,
)


class ActionModule(answer_gate.Gated, builtin_action.load("normal")):  # type: ignore[misc]
    """Ansible's own action, with a gate that validates the node's answers."""
