# SPDX-License-Identifier: Apache-2.0
"""Nodes' answers about an attempt, each cut to what a node may speak of. Pure."""

from __future__ import annotations


def select(nodes, planned):
    """Return the planned nodes' answers, each once and of its own ranks alone.

    nodes: answers with `node` and `ranks`. planned: the plan's ranks. No node speaks of the ranks
    of another one.
    """
    numbers = {}
    for rank in planned:
        numbers.setdefault(rank["node"], set()).add(rank["rank"])
    selected = {}
    for node in nodes:
        name = node.get("node")
        if name not in numbers or name in selected:
            continue
        ranks = [
            rank
            for rank in node["ranks"]
            if isinstance(rank, dict) and rank.get("rank") in numbers[name]
        ]
        selected[name] = dict(node, ranks=ranks)
    return list(selected.values())
