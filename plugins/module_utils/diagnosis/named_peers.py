# SPDX-License-Identifier: Apache-2.0
"""The ranks and nodes that the logs of others name.

A collective library names the peer of a connection that failed, by its rank or its address. The
peer is accused by that alone in no case: a cable between two nodes looks the same from both ends.
"""

from __future__ import annotations

import typing


def resolve_addresses(
    answers: dict[str, typing.Any], plan_ranks: list[dict[str, typing.Any]]
) -> dict[str, typing.Any]:
    """Return the nodes' findings with the rank of each peer that is named by its address.

    answers: {node: what rank_logs_info returned}. plan_ranks: the plan's ranks. A rank is known
    where the address belongs to one planned rank.
    """
    at: dict[str, list[dict[str, typing.Any]]] = {}
    for planned in plan_ranks:
        host = str(planned.get("endpoint") or "").rpartition(":")[0].strip("[]")
        at.setdefault(host, []).append(planned)
    resolved = {}
    for name, node in answers.items():
        ranks = [_with_peer(rank, at) for rank in node.get("ranks") or []]
        resolved[name] = dict(node, ranks=ranks)
    return resolved


def _with_peer(
    rank: dict[str, typing.Any], at: dict[str, list[dict[str, typing.Any]]]
) -> dict[str, typing.Any]:
    """Return a rank's findings with the peer of its error, where the error has an address."""
    error = rank.get("first_error") or {}
    address = error.get("peer_address")
    if not address or error.get("peer") is not None:
        return rank
    found = at.get(address, [])
    if len(found) != 1:
        return rank
    return dict(rank, first_error=dict(error, peer=found[0]["rank"]))


def evidence_lines(
    ranks: list[dict[str, typing.Any]], plan_ranks: list[dict[str, typing.Any]]
) -> list[str]:
    """Return a line for each planned rank that the errors of other ranks name.

    ranks: the findings of all ranks.
    """
    nodes = {planned["rank"]: planned["node"] for planned in plan_ranks}
    voters: dict[int, list[int]] = {}
    for rank in ranks:
        peer = (rank.get("first_error") or {}).get("peer")
        if peer in nodes and peer != rank["rank"]:
            voters.setdefault(peer, []).append(rank["rank"])
    lines = []
    for peer, named_by in sorted(voters.items()):
        witnesses = f"rank {named_by[0]} names"
        if len(named_by) > 1:
            witnesses = f"ranks {', '.join(map(str, sorted(named_by)))} name"
        lines.append(f"{witnesses} rank {peer} on {nodes[peer]}")
    return lines
