# SPDX-License-Identifier: Apache-2.0
"""Inventory groups of a plan's nodes and spares: what they lack, and which checks are due. Pure."""

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
# Groups of the spares that stand by.
STANDBY = {"standby": "trainyard_standby_nodes", "standby_inputs": "trainyard_standby_inputs"}


def list_groups(planned: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {node: its groups}, in the plan's order, then the spares that stand by.

    Without a plan there is no group.

    planned: plan and todo, as plan_job returns them.
    """
    names = [node["name"] for node in planned.get("plan", {}).get("nodes", ())]
    todo = planned["todo"]
    groups = {name: [*_groups_of(name, todo, GROUPS), START] for name in names}
    for name in todo.get("standby", ()):
        groups[name] = _groups_of(name, todo, STANDBY)
    return groups


def _groups_of(name: str, todo: Mapping[str, Any], table: Mapping[str, str]) -> list[str]:
    """Return the groups of a node for the parts in which it is named."""
    groups = (group for part, group in table.items() if name in todo.get(part, ()))
    return list(dict.fromkeys(groups))
