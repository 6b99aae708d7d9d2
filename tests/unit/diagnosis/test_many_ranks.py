# SPDX-License-Identifier: Apache-2.0
"""The verdict over many ranks: who is named by an address, and how short the evidence is."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import guard_findings
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import (
    named_peers,
    verdict,
)
from unit.diagnosis.test_verdict import ABORT, GLOO, VALUE, T, end, node, stopped

PLAN = [
    {
        "rank": rank,
        "local_rank": rank % 8,
        "node": f"node{rank // 8 + 1}",
        "endpoint": f"198.51.100.{11 + rank // 8}:{17000 + rank % 8}",
    }
    for rank in range(32)
]
INTERNAL = {"kind": "OSError", "text": "NCCL error(3), internal error.", "origin": "python"}
LONELY = {"rank": 32, "local_rank": 0, "node": "node5", "endpoint": "198.51.100.15:17000"}


def site(ranks, **more):
    """The four nodes with these ranks of 32. Those that are not given said that they lost one."""
    found = {rank["rank"]: rank for rank in ranks}
    lost = {n: end(n, 1, at=1 + n / 100, said=dict(GLOO, peer=None)) for n in range(32)}
    every = [dict({**lost, **found}[n], local_rank=n % 8) for n in range(32)]
    return [node(f"node{k + 1}", *every[8 * k : 8 * k + 8], **more) for k in range(4)]


def test_31_reports_of_a_lost_peer_are_one_line():
    decided = verdict.decide(PLAN, site([end(13, 1, at=0, said=VALUE)]))
    assert (decided["rank"], decided["node"]) == (13, "node2")
    own, others = decided["evidence"]
    assert own.startswith("rank 13 on node2 (local rank 5), exit code 1 at +0.0 s: its log holds")
    assert others.startswith(
        "ranks 0-7 on node1, ranks 8-12, 14, 15 on node2, ranks 16-23 on node3, ranks 24-31 on"
        " node4, exit code 1 at +1.0 s to +1.3 s: lost its peers"
    )


def test_ends_of_two_kinds_are_two_lines():
    killed = [end(n, signal="SIGKILL", at=2) for n in range(8, 13)]
    decided = verdict.decide(PLAN, site([end(13, 1, at=0, said=VALUE), *killed]))
    assert len(decided["evidence"]) == 3
    assert sum("SIGKILL" in line for line in decided["evidence"]) == 1


def test_what_was_stopped_is_said_in_the_plural():
    decided = verdict.decide(
        PLAN, site([end(n, signal="SIGTERM", at=5) for n in range(32)], unit=stopped(at=4))
    )
    assert any("SIGTERM at +0.0 s: were stopped with" in line for line in decided["evidence"])


def test_the_same_error_is_not_said_twice():
    decided = verdict.decide(PLAN, site([end(n, 1, at=0, said=VALUE) for n in range(8)]))
    assert not any("say the same" in line for line in decided["evidence"])


def test_candidates_that_are_listed_are_folded():
    decided = verdict.decide(PLAN, site([]))
    assert (decided["rank"], decided["cause"]) == (None, "connection_lost")
    assert "candidates: ranks 0-7 on node1, ranks 8-15 on node2, " in decided["text"]


# -- who is named
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "peer", "peer_node"),
    [
        ("198.51.100.12", None, "node2"),
        ("node2", None, "node2"),
        ("198.51.100.15", 32, None),
        ("node5", 32, None),
        ("198.51.100.99", None, None),
        (None, None, None),
    ],
)
def test_an_address_is_a_rank_or_a_node(address, peer, peer_node):
    said = end(0, 1, at=0, said=dict(GLOO, peer=None, peer_address=address))
    (resolved,) = named_peers.resolve_addresses({"node1": node("node1", said)}, [*PLAN, LONELY])[
        "node1"
    ]["ranks"]
    error = resolved["first_error"]
    assert (error["peer"], error.get("peer_node")) == (peer, peer_node)


def test_a_rank_that_is_named_by_number_is_not_looked_up():
    said = end(0, 1, at=0, said=dict(GLOO, peer=9, peer_address="198.51.100.15"))
    answers = named_peers.resolve_addresses({"node1": node("node1", said)}, [*PLAN, LONELY])
    assert answers["node1"]["ranks"][0]["first_error"]["peer"] == 9


def test_an_address_of_two_nodes_is_nobody():
    behind = [dict(rank, endpoint="203.0.113.1:17000") for rank in PLAN]
    said = end(0, 1, at=0, said=dict(GLOO, peer=None, peer_address="203.0.113.1"))
    answers = named_peers.resolve_addresses({"node1": node("node1", said)}, behind)
    assert "peer_node" not in answers["node1"]["ranks"][0]["first_error"]


def test_in_a_chain_its_ends_are_told():
    """In a ring each rank names the one before it. The one that hangs names nobody."""
    ring = [
        end(n, 1, at=1, said=dict(GLOO, peer=(n - 1) % 32)) for n in range(32) if n not in (9, 20)
    ]
    ranks = [*ring, end(9), end(20)]
    assert named_peers.evidence_lines(ranks, PLAN) == [
        "rank 10 names rank 9 on node2",
        "rank 21 names rank 20 on node3",
        "ranks 0-7, 10-18, 21-31 are named as well, and name others themselves",
    ]


def test_31_ranks_that_name_one_are_one_line():
    ranks = [end(n, 1, at=1, said=dict(GLOO, peer=9)) for n in range(32)]
    assert named_peers.evidence_lines(ranks, PLAN) == ["ranks 0-8, 10-31 name rank 9 on node2"]


def test_a_few_that_name_each_other_are_told_one_by_one():
    ranks = [end(n, 1, at=1, said=dict(GLOO, peer=(n + 1) % 3)) for n in range(3)]
    assert len(named_peers.evidence_lines(ranks, PLAN)) == 3


# -- what the others wait for
# --------------------------------------------------------------------------------------------------


def test_what_a_library_says_is_not_the_cause_beside_an_abort_that_nobody_explains():
    said = [end(n, 1, at=1, said=INTERNAL) for n in range(32) if n != 13]
    alone = verdict.decide(PLAN, site([*said, end(13, 1, at=1, said=INTERNAL)]))
    assert alone["cause"] == "nccl_system_error"
    decided = verdict.decide(PLAN, site([*said, end(13, signal="SIGABRT", at=0, said=ABORT)]))
    assert (decided["rank"], decided["cause"]) == (None, "unknown")
    assert decided["candidates"][0]["rank"] == 13


STEP = {"global_step": 8, "total_steps": 60}
STALL = dict.fromkeys(guard_findings._STALL) | {
    "phase": "step",
    "budget": 20,
    "seconds": 20.0,
    "since": T + 10,
    "time": T + 30,
    "by": "node1",
}


@pytest.mark.parametrize(
    ("at", "step", "named"),
    [(0, STEP, (13, "ended_early")), (0, None, (None, "hang")), (31, STEP, (None, "hang"))],
)
def test_all_wait_for_a_rank_that_had_ended_well(at, step, named):
    waiting = [
        end(n, signal="SIGTERM", at=32, last_step=step if not n else None, steps=8)
        for n in range(32)
        if n != 13
    ]
    nodes = site([*waiting, end(13, 0, at=at)], unit=stopped(by="guard", at=31.5))
    nodes[0]["guard"] = {"stall": STALL, "loss": None, "seen": []}
    decided = verdict.decide(PLAN, nodes)
    assert (decided["rank"], decided["cause"]) == named


def test_an_error_at_an_unknown_time_did_not_come_before_a_hang():
    nodes = site([end(13, said=VALUE)], unit=stopped(by="guard", at=31.5))
    nodes[0]["guard"] = {"stall": STALL, "loss": None, "seen": []}
    assert verdict.decide(PLAN, nodes)["cause"] == "hang"


def lose(name, *absent):
    """The verdict where rank 13 ended well and early, and the guard of node1 lost a node then."""
    waiting = [end(0, 1, at=1, said=GLOO, last_step=STEP, steps=8)]
    nodes = [n for n in site([*waiting, end(13, 0, at=0)]) if n["node"] not in absent]
    loss = {"node": name, "how": "no word", "seconds": 17.0, "since": T + 10, "time": T + 30}
    nodes[0]["guard"] = {"stall": None, "loss": dict(loss, by="node1"), "seen": []}
    return verdict.decide(PLAN, nodes)


def test_a_node_that_was_lost_is_not_a_rank_that_ended_well():
    decided = lose("node3")
    assert (decided["outcome"], decided["node"], decided["rank"]) == ("lost", "node3", None)
    assert "; with ranks 16-23;" in decided["text"]
    assert "; with" not in lose("node9")["text"]
    assert "not asked: node4" in lose("node3", "node3", "node4")["text"]


def test_ranks_that_wait_in_one_place_are_one_line():
    seen = {
        "state": "S",
        "state_words": "asleep",
        "wchan": "",
        "cpu": 0.0,
        "where": ["all_reduce (group.py:12)", "main (train.py:9)"],
        "stack_from": "py-spy",
        "why": "no py-spy",
    }
    odd = {9: ["read (tokens.py:41)"], 10: [], 11: []}
    answers = {
        f"node{k + 1}": {
            "guard": {
                "stall": None,
                "loss": None,
                "seen": [
                    dict(seen, rank=n, where=odd.get(n, seen["where"]))
                    for n in range(8 * k, 8 * k + 8)
                ],
            }
        }
        for k in range(4)
    }
    many, one, *rest = guard_findings.evidence_lines(answers)
    assert many == (
        "ranks 0-7 on node1, ranks 8, 12, 13, 14, 15 on node2, ranks 16-23 on node3, ranks 24-31 on"
        " node4 were asleep, in all_reduce (group.py:12) < main (train.py:9)"
        " (stacks-000.node1.log)"
    )
    assert one.startswith("rank 9 on node2 was asleep, 0 % of a core, in read")
    assert [line.split(" ")[1] for line in rest] == ["10", "11"]
