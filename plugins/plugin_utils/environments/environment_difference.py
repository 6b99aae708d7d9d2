# SPDX-License-Identifier: Apache-2.0
"""The packages in which the nodes' environments differ."""

from __future__ import annotations

from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.environments import python_env

REMEDY = (
    "Make the Pythons (or the image) equal on all nodes, or let package and version be installed"
    " by us"
)


class EnvironmentsDiffer(Exception):
    """Names each node that differs, with its packages."""


def compare_environments(
    digest: str, nodes: dict[str, dict[str, Any]], may_lack: bool
) -> dict[str, Any]:
    """Return what all nodes have in common. Refuse nodes that differ.

    may_lack: a node without the environment is left out instead of refused.
    """
    markers = {
        name: node["environments"][digest]
        for name, node in nodes.items()
        if digest in node.get("environments", {})
    }
    without = [name for name in nodes if name not in markers]
    if without and not may_lack:
        names = ", ".join(without)
        raise EnvironmentsDiffer(
            f"{names}: no complete environment {digest}; run the same command again"
        )
    lines = python_env.compare_nodes(markers)
    if lines:
        raise EnvironmentsDiffer("\n".join([*lines, REMEDY]))
    first: dict[str, Any] = next(iter(markers.values()), {})
    return {"fingerprint": first.get("fingerprint", ""), "imported": first.get("imported", {})}
