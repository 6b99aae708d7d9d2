# SPDX-License-Identifier: GPL-3.0-or-later
"""Run `ansible.legacy.command`, and validate what the node answers."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import (
    answer_gate,
    builtin_action,
)


class ActionModule(answer_gate.Gated, builtin_action.load("command")):  # type: ignore[misc]
    """Ansible's own action, with a gate that validates the node's answers."""
