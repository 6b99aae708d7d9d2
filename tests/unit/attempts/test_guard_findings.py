# SPDX-License-Identifier: Apache-2.0
"""What a verdict says of what the guards found: a hang, a node that was lost; and what it does not
say.
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    guard_findings,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import verdict
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import (
    failure_catalogue,
)

STALL = {
    "phase": "step",
    "budget": 20,
    "seconds": 20.4,
    "since": 979.6,
    "time": 1000.0,
    "step": {"epoch": "1", "step": "3", "steps": "12"},
    "last_line": "Epoch: [1] [3/12]",
    "by": "node1",
    "ranks": [0],
}
LOSS = {
    "node": "node2",
    "how": "it says nothing for 17 s, and at its SSH port: nobody answered within 6 s",
    "seconds": 17.0,
    "since": 983.0,
    "time": 1000.0,
    "by": "node1",
}
PLAN = [{"rank": rank, "node": "node%d" % (rank + 1), "local_rank": 0} for rank in range(4)]


def seen(rank, state="S", where=("all_reduce (group.py:12)", "step (train.py:3)"), **more):
    """Return what a rank did."""
    words = {
        "S": "asleep",
        "T": "stopped by a signal",
        "D": "waiting for a disk or a network file system",
        "R": "running",
    }[state]
    return dict(
        {
            "rank": rank,
            "state": state,
            "state_words": words,
            "where": list(where),
            "wchan": "",
            "cpu": 0.0,
            "stack_from": "py-spy",
            "why": "",
        },
        **more,
    )


def node(name, rank, stall=None, loss=None, ranks=(), exit=None, error=None, **more):
    """Return a node's findings: one rank, which was ended with the attempt unless something else is
    said.
    """
    unit = {
        "service_result": "success",
        "stopped_by": "peer",
        "stopped_from": "node1",
        "stopped_at": 1000.5,
        "time": 1002.0,
    }
    found = {
        "rank": rank,
        "node": name,
        "local_rank": 0,
        "pid": 7,
        "exit_code": None,
        "signal": "SIGTERM",
        "ended": 1001.0,
        "home": "rank-%03d.%s.log" % (rank, name),
        "first_error": error,
        "bytes": 10,
        "lines": 1,
        "mtime": 990.0,
        "state": "stopped",
        "observed": "agent",
        "nan": None,
        "last_step": None,
    }
    return dict(
        {
            "node": name,
            "now": 1100.0,
            "exit": unit if exit is None else exit,
            "ranks": [dict(found, **more)],
            "files": [],
            "launcher": {},
            "scheduler": None,
            "guard": {"stall": stall, "loss": loss, "seen": list(ranks)},
        },
        node=name,
    )


def hang(*ranks, **second):
    """Return the verdict of two nodes whose training hung; ranks: what they did."""
    first = node(
        "node1", 0, stall=STALL, ranks=[item for item in ranks if item["rank"] == 0], exit=GUARD
    )
    return verdict.decide(
        PLAN[:2],
        [first, node("node2", 1, ranks=[item for item in ranks if item["rank"] == 1], **second)],
        "runs/x/attempt-1",
    )


GUARD = {
    "service_result": "success",
    "stopped_by": "guard",
    "stopped_from": "node1",
    "stopped_at": 1000.1,
    "time": 1003.0,
}


def test_a_hang_names_phase_budget_step_and_the_rank_that_does_not_wait():
    said = hang(seen(0), seen(1, "T", ()))
    assert (said["outcome"], said["cause"], said["rank"], said["node"]) == (
        "failed",
        "hang",
        1,
        "node2",
    )
    hung, rank, log, remedy = said["text"].split("; ", 3)
    assert "the training hung" in hung
    figures = ("epoch 1,", "step 3 of 12", "for 20 s", "phase step,", "is 20 s", "by node1")
    assert [word for word in figures if word not in hung] == []
    assert rank == "rank 1 on node2 is stopped by a signal"
    assert log.endswith("runs/x/attempt-1/rank-001.node2.log") and remedy.startswith("remedy: ")
    # node2 was told before node1 itself ended.
    assert not any("clock" in line for line in said["evidence"])
    assert any(
        "rank 1 on node2 " in line and "by a signal" in line and "stacks-001.node2.log" in line
        for line in said["evidence"]
    )


def test_a_hang_after_rank_0_has_ended_well_is_no_completion():
    stall = dict(STALL, phase="teardown", ranks=[1], budget=600, seconds=600.4)
    first = node("node1", 0, stall=stall, exit=GUARD, state="ended", exit_code=0, signal=None)
    said = verdict.decide(
        PLAN[:2], [first, node("node2", 1, ranks=[seen(1, "T", ())])], "runs/x/attempt-1"
    )
    assert (said["outcome"], said["cause"], said["rank"], said["node"]) == (
        "failed",
        "hang",
        1,
        "node2",
    )
    hung, rank = said["text"].split("; ")[:2]
    figures = ("for 600 s", "phase teardown,", "is 600 s", "by node1")
    assert [word for word in figures if word not in hung] == []
    assert rank.startswith("rank 1 on node2 ")


@pytest.mark.parametrize(
    "ranks, named",
    [
        ([seen(0), seen(1)], None),
        ([seen(0), seen(1, where=("read (dataset.py:9)", "next (loader.py:1)"))], 1),
        ([seen(0, where=("read (dataset.py:9)",)), seen(1, where=("read (dataset.py:9)",))], None),
        ([seen(0, "T", ()), seen(1, "T", ())], None),
        ([seen(0), seen(1, where=(), why="no py-spy")], None),
        ([seen(0)], None),
        ([], None),
    ],
    ids=[
        "both wait",
        "one reads data",
        "both read",
        "both stopped",
        "no stack",
        "one asked",
        "none asked",
    ],
)
def test_nobody_is_accused_without_ground(ranks, named):
    said = hang(*ranks)
    assert (said["cause"], said["rank"]) == ("hang", named)


def test_among_many_the_one_that_is_elsewhere():
    asked = {
        "node%d" % rank: {
            "guard": {"seen": [seen(rank, where=("f (a.py:1)",) if rank != 2 else ("g (b.py:2)",))]}
        }
        for rank in range(4)
    }
    rank, node_name, words = guard_findings.find_odd_rank(asked)
    assert (rank, node_name) == (2, "node2") and words.endswith(" g (b.py:2)")
    asked["node3"]["guard"]["seen"][0]["where"] = ["h (c.py:3)"]
    assert guard_findings.find_odd_rank(asked) is None


def test_what_the_peers_say_of_the_stop_does_not_hide_the_hang():
    """Their gloo timeouts, aborts and signals follow it."""
    lost = {
        "kind": "RuntimeError",
        "text": "[gloo] Timed out waiting 30000ms",
        "line": 9,
        "origin": "cpp",
        "cause": "connection_lost",
        "grade": "secondary",
        "peer": 0,
    }
    found = hang(error=lost, exit_code=1, signal=None)
    assert (found["cause"], found["code"]) == ("hang", "verdict.hung")
    assert hang(signal="SIGKILL")["code"] == "verdict.hung"
    late = {
        "kind": "ValueError",
        "text": "x",
        "line": 9,
        "origin": "python",
        "cause": "python_exception",
        "grade": "primary",
        "peer": None,
    }
    assert hang(error=late, exit_code=1, signal=None, ended=1001.0, mtime=1001.0)["cause"] == "hang"


def test_an_error_that_came_before_is_the_cause():
    before = {
        "kind": "ValueError",
        "text": "x",
        "line": 9,
        "origin": "python",
        "cause": "python_exception",
        "grade": "primary",
        "peer": None,
    }
    said = hang(error=before, exit_code=1, signal=None, ended=1001.0, mtime=985.0)
    assert (said["cause"], said["rank"]) == ("python_exception", 1)
    assert any("the training hung" in line for line in said["evidence"])


def test_a_stop_by_a_person_stays_one():
    user = dict(GUARD, stopped_by="user", stopped_from="me")
    said = verdict.decide(
        PLAN[:2],
        [node("node1", 0, exit=user), node("node2", 1, exit=dict(GUARD, stopped_from="node1"))],
    )
    assert (said["outcome"], said["cause"]) == ("stopped", "stopped_by_user")


def test_a_node_that_vanished_is_named_whether_it_answers_or_not():
    said = verdict.decide(
        PLAN[:2],
        [node("node1", 0, loss=LOSS, exit=GUARD), {"node": "node2", "unreachable": "timed out"}],
    )
    assert (said["outcome"], said["cause"], said["node"], said["rank"]) == (
        "lost",
        "node_lost",
        "node2",
        None,
    )
    assert said["text"].startswith("LOST: node2 ") and "; remedy: " in said["text"]
    assert f"node1 says that {LOSS['how']}" in said["text"] and "with rank 1;" in said["text"]
    again = verdict.decide(
        PLAN[:2],
        [
            node("node1", 0, loss=LOSS, exit=GUARD),
            node("node2", 1, exit=dict(GUARD, stopped_at=1090.0)),
        ],
    )
    assert (again["cause"], again["node"]) == ("node_lost", "node2")


def test_what_the_others_say_when_a_node_vanished_does_not_hide_it():
    reset = {
        "kind": "RuntimeError",
        "text": "x",
        "line": 9,
        "origin": "cpp",
        "cause": "cpp_exception",
        "grade": "primary",
        "peer": None,
    }
    first = node(
        "node1",
        0,
        loss=LOSS,
        exit=GUARD,
        error=reset,
        exit_code=1,
        signal=None,
        ended=990.0,
        mtime=990.0,
    )
    assert (
        verdict.decide(PLAN[:2], [first, {"node": "node2", "unreachable": "timed out"}])["cause"]
        == "node_lost"
    )
    early = node(
        "node1",
        0,
        loss=LOSS,
        exit=GUARD,
        error=reset,
        exit_code=1,
        signal=None,
        ended=950.0,
        mtime=950.0,
    )
    assert (
        verdict.decide(PLAN[:2], [early, {"node": "node2", "unreachable": "timed out"}])["cause"]
        == "cpp_exception"
    )


def test_two_nodes_that_lost_each_other_and_both_answer_were_cut_apart():
    said = verdict.decide(
        PLAN[:2],
        [
            node("node1", 0, loss=LOSS, exit=GUARD),
            node("node2", 1, loss=dict(LOSS, node="node1", by="node2"), exit=GUARD),
        ],
    )
    assert (said["outcome"], said["cause"], said["node"]) == ("failed", "node_lost", None)
    assert "node1 and node2 lost" in said["text"]


OWN_END = {"service_result": "exit-code", "exit_status": "1", "time": 1001.0}


@pytest.mark.parametrize(
    "accused, named",
    [
        ({"exit": OWN_END}, None),
        ({"exit": dict(OWN_END, time=1059.0)}, None),
        ({"exit": dict(OWN_END, time=1090.0)}, "node2"),
        ({"exit": dict(OWN_END, time=1090.0, stopped_by="peer", stopped_at=1010.0)}, None),
        ({"exit": OWN_END, "pause": {"seconds": 20.0, "time": 1000.0}}, "node2"),
        ({"exit": OWN_END, "pause": {"seconds": 20.0, "time": 960.0}}, None),
        ({"exit": OWN_END, "pause": {"seconds": 20.0, "time": 1060.0}}, None),
    ],
    ids=["own end", "soon", "late", "told to stop", "stood still", "before", "after"],
)
def test_a_single_accusation_of_a_node_that_ended_by_itself_accuses_nobody(accused, named):
    """Packets of one direction were lost: the accuser may as well be the node that was cut off."""
    second = node("node2", 1, exit=accused["exit"])
    second["guard"]["pause"] = accused.get("pause")
    said = verdict.decide(PLAN[:2], [node("node1", 0, loss=LOSS, exit=GUARD), second])
    assert (said["cause"], said["node"]) == ("node_lost", named), said["text"]
    assert said["outcome"] == ("lost" if named else "failed")
    assert "node1" in said["text"].split(";")[0] and "node2" in said["text"].split(";")[0]


def test_where_all_lost_their_neighbours_and_all_answer_nobody_is_named():
    """A switch was out for half a minute: every node of the ring says that its neighbour is
    gone.
    """
    ring = {"node1": "node2", "node2": "node3", "node3": "node1"}
    names, text, mutual = guard_findings.find_lost(
        {
            name: {"guard": {"loss": dict(LOSS, node=next_one, by=name)}}
            for name, next_one in ring.items()
        }
    )
    assert (names, mutual) == (["node1", "node2", "node3"], True)
    assert text.startswith(", ".join(names)) and text.endswith("between them")


def test_a_full_disk_that_kept_a_node_from_writing_its_end_is_no_lost_node():
    """Its neighbour finds an attempt that is gone without an end; its rank's own error, from
    before, is what began it.
    """
    full = {"kind": "OSError", "text": "[Errno 28] No space left on device", "line": 3,
        "origin": "python", "file": None, "file_line": None,
            "context": [], "handled": False, "survived": False, "root": None, "peer": None,
            "time": None}  # fmt: skip
    full.update(failure_catalogue.classify("OSError", full["text"], "python"))
    nodes = [
        node("node1", 0, loss=LOSS),
        node("node2", 1, exit_code=1, signal=None, ended=970.0, mtime=970.0, first_error=full),
    ]
    nodes[1]["exit"] = None
    result = verdict.decide(PLAN[:2], nodes)
    assert (result["outcome"], result["cause"], result["rank"]) == (
        "failed",
        "disk_full",
        1,
    ), result["text"]


def test_of_three_the_one_that_is_cut_off():
    """node2 is cut off: node1, which watches it, says so, and node2 says the same of node3."""
    nodes = [
        node("node1", 0, loss=LOSS, exit=GUARD),
        node("node2", 1, loss=dict(LOSS, node="node3", by="node2"), exit=GUARD),
        node("node3", 2),
    ]
    assert verdict.decide(PLAN[:3], nodes)["node"] == "node2"


@pytest.mark.parametrize(
    "value", [None, [], {"phase": "step"}, dict(STALL, budget="20"), dict(STALL, time=True)]
)
def test_what_is_no_stall_is_none(value):
    assert guard_findings.read_findings(lambda name: value if name == "stall.json" else None) == {
        "stall": None,
        "loss": None,
        "pause": None,
        "seen": [],
    }


def test_a_torn_state_is_passed_over():
    state = {"ranks": [{"rank": 0, "where": None}, {"rank": "x"}, 7]}
    assert [
        item["rank"]
        for item in guard_findings.read_findings(
            lambda name: state if name.endswith("state.json") else None
        )["seen"]
    ] == [0]
