# SPDX-License-Identifier: GPL-3.0-or-later
"""Run `ansible.legacy.dnf`, and let what the node answers pass the gate."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.gate import (
    answer_gate,
    builtin_action,
)


class ActionModule(answer_gate.Gated, builtin_action.load("dnf")):
    """Ansible's own action. What a node answers is validated before anything else sees it."""
