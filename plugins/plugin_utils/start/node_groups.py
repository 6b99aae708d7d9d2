# SPDX-License-Identifier: Apache-2.0
"""Inventory groups of the nodes of a plan: what each node lacks, and which checks are due. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Part of a plan's `todo`: the group of its nodes. The plays of playbooks/includes work on them.
GROUPS = {
    "trust": "trainyard_needs_trust",
    "environment": "trainyard_needs_environment",
    "checkpoints": "trainyard_needs_checkpoint",
    "code": "trainyard_needs_inputs",
    "data": "trainyard_needs_inputs",
    "weights": "trainyard_needs_inputs",
    "network": "trainyard_network_nodes",
    "rehearsal": "trainyard_rehearsal_nodes",
}
# All nodes of the plan.
START = "trainyard_start_nodes"


def list_groups(planned: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {node: its groups}, in the plan's order. Without a plan there is no group.

    planned: plan and todo, as plan_job returns them.
    """
    names = [node["name"] for node in planned.get("plan", {}).get("nodes", ())]
    return {name: [*_groups_of(name, planned["todo"]), START] for name in names}


def _groups_of(name: str, todo: Mapping[str, Any]) -> list[str]:
    """Return the groups of a node for what it lacks and for the checks."""
    groups = (group for part, group in GROUPS.items() if name in todo.get(part, ()))
    return list(dict.fromkeys(groups))
