# SPDX-License-Identifier: Apache-2.0
"""The ranks and nodes that the logs of others name.

A collective library names the peer of a connection that failed, by its rank or its address. The
peer is accused by that alone in no case: a cable between two nodes looks the same from both ends.
"""

from __future__ import annotations

import typing

from ..base.folding import FOLD, list_ranks


def resolve_addresses(
    answers: dict[str, typing.Any], plan_ranks: list[dict[str, typing.Any]]
) -> dict[str, typing.Any]:
    """Return the nodes' findings with the rank or node of each peer that is named by its address.

    answers: {node: what rank_logs_info returned}. plan_ranks: the plan's ranks. A rank is known
    where the address belongs to one planned rank, else only its node is.
    """
    at: dict[str, list[dict[str, typing.Any]]] = {}
    for planned in plan_ranks:
        host = str(planned.get("endpoint") or "").rpartition(":")[0].strip("[]")
        for name in {host, str(planned["node"])}:
            at.setdefault(name, []).append(planned)
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
    if len(found) == 1:
        return dict(rank, first_error=dict(error, peer=found[0]["rank"]))
    nodes = {planned["node"] for planned in found}
    if len(nodes) != 1:
        return rank
    return dict(rank, first_error=dict(error, peer_node=nodes.pop()))


def names(error: dict[str, typing.Any] | None, rank: dict[str, typing.Any]) -> bool:
    """Return whether an error names a rank, or the node of it and no rank."""
    error = error or {}
    if error.get("peer") is not None:
        return bool(error["peer"] == rank["rank"])
    return error.get("peer_node") == rank["node"]


def evidence_lines(
    ranks: list[dict[str, typing.Any]], plan_ranks: list[dict[str, typing.Any]]
) -> list[str]:
    """Return a line for each planned rank that the errors of other ranks name.

    Where ranks name each other in a chain, the lines are about the ends of it. ranks: the findings
    of all ranks.
    """
    nodes = {planned["rank"]: planned["node"] for planned in plan_ranks}
    voters: dict[int, list[int]] = {}
    for rank in ranks:
        peer = (rank.get("first_error") or {}).get("peer")
        if peer in nodes and peer != rank["rank"]:
            voters.setdefault(peer, []).append(rank["rank"])
    naming = {rank for named_by in voters.values() for rank in named_by}
    chain = [peer for peer in voters if peer in naming]
    lines = [
        _voters_line(peer, named_by, nodes[peer])
        for peer, named_by in sorted(voters.items())
        if len(chain) < FOLD or peer not in naming
    ]
    if len(chain) >= FOLD:
        lines.append(f"{list_ranks(chain)} are named as well, and name others themselves")
    return lines


def _voters_line(peer: int, named_by: list[int], node: str) -> str:
    """Return the line about a rank that others name."""
    verb = "name"
    if len(named_by) == 1:
        verb = "names"
    return f"{list_ranks(named_by)} {verb} rank {peer} on {node}"
