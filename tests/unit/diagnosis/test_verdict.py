# SPDX-License-Identifier: Apache-2.0
"""verdict: which rank is named when an attempt ends, from real logs and every mix of evidence."""

from __future__ import annotations

import json

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence, ownership
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import verdict
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import (
    failure_catalogue,
)
from conftest import sample_plan

NOW = 1795166920.0
T = 1795166907.0
OK = {
    "service_result": "success",
    "exit_code": "exited",
    "exit_status": "0",
    "stopped_by": None,
    "stopped_at": None,
}
BAD = {
    "service_result": "exit-code",
    "exit_code": "exited",
    "exit_status": "250",
    "stopped_by": None,
    "stopped_at": None,
}
DIR = "runs/20261120-092820-fail-1f2e/attempt-1"
PLAN = sample_plan()["ranks"]

VALUE = {"kind": "ValueError", "text": "bad image", "origin": "python"}
GLOO = {
    "kind": "gloo::IoException",
    "text": "Connection closed by peer",
    "origin": "cpp",
    "peer": 3,
}
ABORT = {
    "kind": "FatalError",
    "text": "`Process abort signal` is detected by the operating system.",
    "origin": "cpp",
}
TERM = {
    "kind": "FatalError",
    "text": "`Termination signal` is detected by the operating system.",
    "origin": "cpp",
}
SEGV = {
    "kind": "FatalError",
    "text": "`Segmentation fault` is detected by the operating system.",
    "origin": "cpp",
}
WORKER = {
    "kind": "RuntimeError",
    "text": "DataLoader 1 workers exit unexpectedly",
    "origin": "python",
}


def error(base, **more):
    found = dict(
        base,
        line=14,
        file=None,
        file_line=None,
        context=[],
        handled=False,
        survived=False,
        root=None,
        peer=base.get("peer"),
        time=None,
    )
    found.update(failure_catalogue.classify(base["kind"], base["text"], base["origin"]), **more)
    return found


def end(rank, code=None, signal=None, at=None, said=None, mtime=None, **more):
    """One rank's findings."""
    observed = "agent" if code is not None or signal else None
    found = {
        "rank": rank,
        "local_rank": rank % 2,
        "home": f"rank-{rank:03d}.node{rank // 2 + 1}.log",
        "file": f"log/workerlog.{rank % 2}",
        "bytes": 1,
        "pid": 100 + rank,
        "exit_code": code,
        "signal": signal,
        "ended": None if at is None else T + at,
        "first_error": error(said) if said else None,
        "mtime": None if mtime is None else T + mtime,
        "observed": observed,
        "nan": None,
        "last_step": None,
    }
    found.update(more)
    return found


def node(name, *ranks, unit=BAD, **more):
    return dict(
        {
            "node": name,
            "now": NOW,
            "ranks": list(ranks),
            "exit": unit,
            "launcher": {"exit_code": None, "signal": None, "first_error": None},
        },
        **more,
    )


def stopped(by="peer", at=None, source="node1"):
    return dict(OK, stopped_by=by, stopped_from=source, stopped_at=None if at is None else T + at)


def named(result):
    return result["outcome"], result["rank"], result["cause"]


# -- real logs
# --------------------------------------------------------------------------------------------------

AGENT = {
    "node1": [
        {"event": "start", "rank": 0, "pid": 154, "time": T - 6},
        {"event": "start", "rank": 1, "pid": 155, "time": T - 6},
        {
            "event": "end",
            "rank": 0,
            "pid": 154,
            "time": T + 0.6,
            "exit_code": None,
            "signal": "SIGABRT",
        },
        {
            "event": "end",
            "rank": 1,
            "pid": 155,
            "time": T + 0.7,
            "exit_code": None,
            "signal": "SIGABRT",
        },
        {"event": "launcher_end", "exit_code": 250, "signal": None, "time": T + 1.5},
    ],
    "node2": [
        {"event": "start", "rank": 2, "pid": 153, "time": T - 6},
        {"event": "start", "rank": 3, "pid": 154, "time": T - 6},
        {"event": "end", "rank": 3, "pid": 154, "time": T + 0.4, "exit_code": 1, "signal": None},
        {
            "event": "end",
            "rank": 2,
            "pid": 153,
            "time": T + 0.5,
            "exit_code": None,
            "signal": "SIGABRT",
        },
        {"event": "launcher_end", "exit_code": 250, "signal": None, "time": T + 1.5},
    ],
}


def collected(make_attempt, sample, agent=None, unit=BAD):
    homes = [
        make_attempt(name, sample, events=agent and agent[name], exit=unit)
        for name in ("node1", "node2")
    ]
    return [evidence.collect(str(home), name) for home, name in zip(homes, ("node1", "node2"))]


def test_the_real_failure_names_rank_3_and_not_an_aborted_one(make_attempt):
    result = verdict.decide(PLAN, collected(make_attempt, "failure_rank3_raises_2x2", AGENT), DIR)
    assert named(result) == ("failed", 3, "python_exception")
    assert (result["node"], result["local_rank"], result["exit_code"], result["signal"]) == (
        "node2",
        1,
        1,
        None,
    )
    assert (result["error"]["kind"], result["error"]["text"]) == (
        "ValueError",
        "image 000000012.jpg is truncated",
    )
    assert (result["log"], result["line"]) == (f"{DIR}/rank-003.node2.log", 14)
    assert result["code"] == "verdict.named"
    assert result["text"].startswith("FAILED: rank 3 on node2 (local rank 1) ")
    assert "ValueError: image 000000012.jpg is truncated (exit code 1)" in result["text"]
    assert f"log {DIR}/rank-003.node2.log:14; remedy: " in result["text"]
    assert len(result["evidence"]) >= 4
    json.dumps(result, allow_nan=False)


def test_the_real_failure_without_the_agent_says_what_was_not_observed(make_attempt):
    result = verdict.decide(PLAN, collected(make_attempt, "failure_rank3_raises_2x2"), DIR)
    assert named(result) == ("failed", 3, "python_exception")
    assert result["exit_code"] is None
    assert "(exit code not observed)" in result["text"]


def test_the_real_good_run(make_attempt):
    agent = {
        name: [
            {
                "event": "end",
                "rank": first + n,
                "pid": 1,
                "time": T,
                "exit_code": 0,
                "signal": None,
            }
            for n in (0, 1)
        ]
        + [{"event": "launcher_end", "exit_code": 0}]
        for name, first in (("node1", 0), ("node2", 2))
    }
    result = verdict.decide(
        PLAN, collected(make_attempt, "paddledetection_ppyoloe_s_2x2", agent, OK), DIR
    )
    assert named(result) == ("completed", None, None)
    assert result["code"] == "verdict.completed" and "4 ranks on 2 nodes " in result["text"]


def test_a_silent_rank_that_its_peers_lost_is_named_without_the_agent(make_attempt, samples):
    """What SIGKILL leaves: the real logs, in which the culprit's log ends before its message."""
    found = collected(make_attempt, "failure_rank3_raises_2x2")
    for rank in found[1]["ranks"]:
        if rank["rank"] == 3:
            rank["first_error"] = None
    result = verdict.decide(PLAN, found, DIR)
    assert named(result) == ("failed", 3, "silent_end")
    assert "rank 0, rank 2 " in result["text"]
    assert (result["exit_code"], result["signal"]) == (None, None)
    assert result["line"] is None


PADDLE262 = {
    "raise": (
        1,
        "python_exception",
        "raised ValueError: image 000000012.jpg is truncated (exit code 1 as the launcher says)",
    ),
    "exit": (1, "silent_exit", "exited without a message (exit code 7 as the launcher says)"),
    "kill": (
        1,
        "killed",
        "was killed by SIGKILL without a message (signal SIGKILL as the launcher says)",
    ),
    "segv": (
        1,
        "segfault",
        (
            "stopped with FatalError: `Segmentation fault` is detected by the operating system."
            " (signal SIGSEGV as the launcher says)"
        ),
    ),
    "nan": (
        0,
        "nan",
        (
            "input must be greater than  or equal to 0 (exit code 1 as the launcher says); the loss"
            " had been nan since line 14 of rank 0's log"
        ),
    ),
    "badimage": (
        0,
        "data_corrupt",
        "raised AttributeError: 'bytes' object has no attribute 'shape' (exit code not observed)",
    ),
    "badimage_worker": (
        0,
        "data_corrupt",
        "raised AttributeError: 'bytes' object has no attribute 'shape' (exit code not observed)",
    ),
}
AGENT262 = {
    "raise": ({"exit_code": 1}, {"exit_code": 1}),
    "exit": ({"exit_code": 7}, {"exit_code": 1}),
    "kill": ({"signal": "SIGKILL"}, {"exit_code": 1}),
    "segv": ({"signal": "SIGSEGV"}, {"exit_code": 1}),
    "nan": ({"exit_code": 1}, {"exit_code": 1}),
    "badimage": ({"exit_code": 1}, {"signal": "SIGTERM"}),
    "badimage_worker": ({"exit_code": 1}, {"exit_code": 1}),
}


@pytest.mark.parametrize(
    "agent, stopping", [(False, None), (True, None), (True, "node1"), (True, "node2")]
)
@pytest.mark.parametrize("name", PADDLE262)
def test_real_failures_of_paddle_2_6_2(make_attempt, root, name, agent, stopping):
    """The evidence is the launcher's message alone, or also the agent's. Either node may be the
    first to have the other stopped.
    """
    suites = root / "playbooks" / "suites"
    logs = next(
        t["logs"]
        for t in (
            yaml.safe_load(p.read_text()) for p in sorted(suites.glob("paddledetection*.yml"))
        )
        if "logs" in t
    )
    plan, found = sample_plan(2, 1, logs), []
    for rank, node_name in enumerate(("node1", "node2")):
        late = 0.0 if PADDLE262[name][0] == rank else 1.5
        end = dict(
            {"event": "end", "rank": rank, "pid": 1, "time": T + late},
            **AGENT262[name][0 if rank else 1],
        )
        unit = stopped(at=None) if stopping == node_name else BAD
        home = make_attempt(
            node_name,
            f"paddle262_failure_{name}_2x1",
            plan=plan,
            events=[end] if agent else None,
            exit=unit,
            stop={"time": T + 2.5},
        )
        found.append(evidence.collect(str(home), node_name))
        for item in found[-1]["ranks"]:
            item["mtime"] = T + late
    result = verdict.decide(plan["ranks"], found, DIR)
    rank, cause, said = PADDLE262[name]
    assert named(result) == ("failed", rank, cause), json.dumps(result["evidence"], indent=1)
    if not agent:
        assert said in result["text"]
    elif name in ("raise", "exit"):
        assert result["exit_code"] == AGENT262[name][0]["exit_code"]
    assert "PADDLE_TRAINER_ENDPOINTS" not in json.dumps(found)


# -- which rank is named
# --------------------------------------------------------------------------------------------------

CASES = {
    "a primary error beats aborts that ended earlier": (
        [
            node(
                "node1",
                end(0, signal="SIGABRT", at=0, said=GLOO),
                end(1, signal="SIGABRT", at=0, said=ABORT),
            ),
            node("node2", end(2), end(3, 1, at=9, said=VALUE)),
        ],
        (3, "python_exception"),
    ),
    "a rank killed without a message beats what its peers say": (
        [
            node(
                "node1",
                end(0, signal="SIGABRT", at=0, said=GLOO),
                end(1, signal="SIGABRT", at=0, said=GLOO),
            ),
            node(
                "node2", end(2, signal="SIGABRT", at=1, said=GLOO), end(3, signal="SIGKILL", at=0.9)
            ),
        ],
        (3, "killed"),
    ),
    "the kernel's memory killer": (
        [
            node("node1", end(0, signal="SIGABRT", at=1, said=GLOO), end(1)),
            node(
                "node2",
                end(2),
                end(3, signal="SIGKILL", at=0),
                unit=dict(BAD, service_result="oom-kill"),
            ),
        ],
        (3, "out_of_memory"),
    ),
    "the memory killer by the cgroup's count": (
        [
            node("node1", end(0), end(1)),
            node("node2", end(2), end(3, signal="SIGKILL", at=0), unit=dict(BAD, oom_kills=1)),
        ],
        (3, "out_of_memory"),
    ),
    "a segmentation fault": (
        [
            node("node1", end(0, signal="SIGABRT", at=1, said=GLOO), end(1)),
            node("node2", end(2), end(3, signal="SIGSEGV", at=0, said=SEGV)),
        ],
        (3, "segfault"),
    ),
    "a crash while going down does not beat the kill that came first": (
        [
            node("node1", end(0, signal="SIGABRT", at=1, said=GLOO), end(1)),
            node(
                "node2", end(2, signal="SIGSEGV", at=2, said=SEGV), end(3, signal="SIGKILL", at=0)
            ),
        ],
        (3, "killed"),
    ),
    "a kill that came first beats an exception that followed on the same node": (
        [
            node("node1", end(0), end(1)),
            node("node2", end(2, 1, at=5, said=VALUE), end(3, signal="SIGKILL", at=0)),
        ],
        (3, "killed"),
    ),
    "a kill that followed an exception does not": (
        [
            node("node1", end(0), end(1)),
            node("node2", end(2, 1, at=0, said=VALUE), end(3, signal="SIGKILL", at=4)),
        ],
        (2, "python_exception"),
    ),
    "an exception that was printed long before its process went": (
        [
            node("node1", end(0), end(1)),
            node("node2", end(2, 1, at=30, mtime=0, said=VALUE), end(3, signal="SIGKILL", at=20)),
        ],
        (2, "python_exception"),
    ),
    "a silent exit, first on its node": (
        [
            node(
                "node1",
                end(0, signal="SIGABRT", at=1, said=GLOO),
                end(1, signal="SIGABRT", at=1, said=GLOO),
            ),
            node("node2", end(2, signal="SIGABRT", at=1, said=GLOO), end(3, 7, at=0)),
        ],
        (3, "silent_exit"),
    ),
    "the launcher's SIGTERM accuses nobody": (
        [
            node(
                "node1", end(0, signal="SIGTERM", at=1), end(1, signal="SIGTERM", at=1, said=TERM)
            ),
            node("node2", end(2, signal="SIGTERM", at=1), end(3, 7, at=0)),
        ],
        (3, "silent_exit"),
    ),
    "what a stop by the peer kills accuses nobody": (
        [
            node(
                "node1",
                end(0, signal="SIGKILL", at=6),
                end(1, signal="SIGKILL", at=6),
                unit=stopped(at=1),
            ),
            node("node2", end(2, 5, at=0.2), end(3, 0, at=0)),
        ],
        (2, "silent_exit"),
    ),
    "loader workers that the stop ended accuse nobody": (
        [
            node("node1", end(0, 1, at=2, mtime=2, said=WORKER), end(1), unit=stopped(at=1)),
            node("node2", end(2), end(3, signal="SIGKILL", at=0.5)),
        ],
        (3, "killed"),
    ),
    "the culprit may be on the node that its peer stopped": (
        [
            node(
                "node1",
                end(0, signal="SIGABRT", at=0.2, said=GLOO),
                end(1, signal="SIGABRT", at=0.2, said=GLOO),
            ),
            node("node2", end(2), end(3, signal="SIGKILL", at=0), unit=stopped(at=2)),
        ],
        (3, "killed"),
    ),
    "an exception on the node that its peer stopped": (
        [
            node("node1", end(0, signal="SIGABRT", at=0.2, said=GLOO), end(1)),
            node("node2", end(2), end(3, 1, at=0, mtime=0, said=VALUE), unit=stopped(at=2)),
        ],
        (3, "python_exception"),
    ),
    "of two exceptions the earlier one": (
        [
            node("node1", end(0, 1, at=9, said=VALUE), end(1)),
            node("node2", end(2), end(3, 1, at=2, said=dict(VALUE, text="first"))),
        ],
        (3, "python_exception"),
    ),
    "clocks an hour apart are set right": (
        [
            node("node1", end(0, 1, at=9, said=VALUE), end(1)),
            node("node2", end(2), end(3, 1, at=3602, said=VALUE), now=NOW + 3600),
        ],
        (3, "python_exception"),
    ),
    "an error that training went on after is doubtful, but better than none": (
        [
            node("node1", end(0, signal="SIGABRT", at=1, said=GLOO), end(1)),
            node("node2", end(2), end(3, 1, at=0, first_error=error(VALUE, survived=True))),
        ],
        (3, "python_exception"),
    ),
    "a dead loader thread, though the hang that follows is ended by a stop": (
        [
            node(
                "node1",
                end(
                    0, signal="SIGTERM", at=60, first_error=error(VALUE, survived=True, thread=True)
                ),
                end(1),
                unit=stopped(at=50),
            ),
            node("node2", end(2, 1, at=40, said=GLOO), end(3)),
        ],
        (0, "python_exception"),
    ),
    "an exception after the loss had turned nan": (
        [
            node(
                "node1",
                end(
                    0, 1, at=1, said=GLOO, nan={"line": 52, "loss": "nan"}, last_step={"loss": None}
                ),
                end(1),
            ),
            node("node2", end(2), end(3, 1, at=0, said=VALUE)),
        ],
        (3, "nan"),
    ),
    "a lost file after the loss had turned nan": (
        [
            node(
                "node1",
                end(
                    0, 1, at=1, said=GLOO, nan={"line": 52, "loss": "nan"}, last_step={"loss": None}
                ),
                end(1),
            ),
            node(
                "node2", end(2), end(3, 1, at=0, said=dict(VALUE, text="No such file or directory"))
            ),
        ],
        (3, "data_missing"),
    ),
    "an exception after the loss had been nan for a while": (
        [
            node(
                "node1",
                end(
                    0, 1, at=1, said=GLOO, nan={"line": 52, "loss": "nan"}, last_step={"loss": 1.5}
                ),
                end(1),
            ),
            node("node2", end(2), end(3, 1, at=0, said=VALUE)),
        ],
        (3, "python_exception"),
    ),
    "a kill beats an error that was handled": (
        [
            node("node1", end(0, 1, at=1, first_error=error(VALUE, handled=True)), end(1)),
            node("node2", end(2), end(3, signal="SIGKILL", at=0)),
        ],
        (3, "killed"),
    ),
    "a rank that failed although its unit ended well": (
        [
            node("node1", end(0, 0), end(1, 0), unit=OK),
            node("node2", end(2, 0), end(3, 3, at=0), unit=OK),
        ],
        (3, "silent_exit"),
    ),
    "a launcher that failed before any rank started": (
        [
            node(
                "node1",
                end(0, file=None, bytes=None, pid=None),
                end(1, file=None, bytes=None, pid=None),
                unit=stopped(),
            ),
            node(
                "node2",
                end(2, file=None, bytes=None, pid=None),
                end(3, file=None, bytes=None, pid=None),
                unit=dict(BAD, exit_status="2"),
                launcher={
                    "exit_code": 2,
                    "signal": None,
                    "first_error": error(
                        {
                            "kind": "usage error",
                            "text": "unrecognized arguments: --bad",
                            "origin": "line",
                        }
                    ),
                },
            ),
        ],
        (None, "bad_argument"),
    ),
    "a launcher that was killed under its ranks": (
        [
            node(
                "node1",
                end(0, signal="SIGTERM", at=3),
                end(1, signal="SIGTERM", at=3),
                unit=stopped(at=2.5),
            ),
            node(
                "node2",
                end(2, signal="SIGTERM", at=1),
                end(3, signal="SIGKILL", at=6),
                launcher={"exit_code": None, "signal": "SIGKILL", "ended": T, "first_error": None},
            ),
        ],
        (None, "launcher_failed"),
    ),
    "a launcher that was killed after it had handled an error": (
        [
            node("node1", end(0), end(1), unit=stopped(at=2.5)),
            node(
                "node2",
                end(2),
                end(3),
                launcher={
                    "exit_code": None,
                    "signal": "SIGKILL",
                    "ended": T,
                    "first_error": error(VALUE, handled=True),
                },
            ),
        ],
        (None, "launcher_failed"),
    ),
    "a launcher that failed without a message": (
        [
            node(
                "node1", end(0, bytes=None, pid=None), end(1, bytes=None, pid=None), unit=stopped()
            ),
            node(
                "node2",
                end(2, bytes=None, pid=None),
                end(3, bytes=None, pid=None),
                unit=dict(BAD, exit_status="127"),
            ),
        ],
        (None, "launcher_failed"),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("turned", [False, True])
def test_who_is_named(name, turned):
    nodes, (rank, cause) = CASES[name]
    result = verdict.decide(PLAN, nodes[::-1] if turned else nodes, DIR)
    assert named(result) == ("failed", rank, cause), json.dumps(result["evidence"], indent=1)
    assert result["text"].startswith("FAILED: ") and "remedy: " in result["text"]
    assert "\n" not in result["text"]


def test_a_killed_rank_in_words():
    result = verdict.decide(
        PLAN, CASES["a rank killed without a message beats what its peers say"][0], DIR
    )
    assert named(result) == ("failed", 3, "killed")
    assert (result["node"], result["local_rank"]) == ("node2", 1)
    assert result["log"] == f"{DIR}/rank-003.node2.log"
    assert f"log {result['log']}; remedy: " in result["text"]
    assert (result["exit_code"], result["signal"], result["error"], result["line"]) == (
        None,
        "SIGKILL",
        None,
        None,
    )
    result = verdict.decide(PLAN, CASES["the memory killer by the cgroup's count"][0], DIR)
    assert named(result) == ("failed", 3, "out_of_memory")
    assert (result["node"], result["local_rank"], result["signal"]) == ("node2", 1, "SIGKILL")
    assert "killed by the kernel" in result["text"]


def test_a_launcher_whose_child_the_memory_killer_took_was_not_killed_itself():
    unit = dict(BAD, service_result="oom-kill", exit_code="exited", exit_status="1")
    result = verdict.decide(
        PLAN, [node("node1", end(0), end(1)), node("node2", end(2), end(3), unit=unit)], DIR
    )
    assert named(result) == ("failed", None, "out_of_memory") and result["node"] == "node2"
    assert "was killed by the kernel" not in result["text"], result["text"]


def test_a_failed_launcher_in_words():
    result = verdict.decide(PLAN, CASES["a launcher that failed before any rank started"][0], DIR)
    assert "the launcher on node2 " in result["text"]
    assert (result["outcome"], result["node"], result["rank"]) == ("failed", "node2", None)
    assert (result["exit_code"], result["log"], result["line"]) == (
        2,
        f"{DIR}/launcher.node2.log",
        14,
    )
    assert (result["error"]["kind"], result["error"]["text"]) == (
        "usage error",
        "unrecognized arguments: --bad",
    )
    result = verdict.decide(PLAN, CASES["a launcher that failed without a message"][0])
    assert named(result) == ("failed", None, "launcher_failed")
    assert (result["node"], result["exit_code"]) == ("node2", 127)
    assert (result["log"], result["line"]) == ("launcher.node2.log", None)
    assert "before any rank" in result["text"]


def test_one_error_on_many_ranks_is_said_to_be_one():
    nodes = [
        node("node1", end(0, 1, at=0, said=VALUE), end(1, 1, at=0, said=VALUE)),
        node("node2", end(2, 1, at=0, said=VALUE), end(3, 1, at=0, said=VALUE)),
    ]
    result = verdict.decide(PLAN, nodes)
    assert (result["rank"], result["node"], result["code"]) == (None, None, "verdict.common")
    assert (result["cause"], result["error"]["kind"]) == ("python_exception", "ValueError")
    (same,) = [line for line in result["evidence"] if "say the same" in line]
    assert "ranks 0, 1, 2, 3 " in same and same.endswith(": ValueError")


def test_the_corrected_clock_is_told():
    result = verdict.decide(PLAN, CASES["clocks an hour apart are set right"][0])
    assert any("clock of node2" in line and "+3600 s" in line for line in result["evidence"])


def test_an_exit_code_that_only_the_launcher_told():
    nodes = [
        node("node1", end(0), end(1)),
        node("node2", end(2), end(3, 1, said=VALUE, observed="launcher")),
    ]
    result = verdict.decide(PLAN, nodes)
    assert result["exit_code"] == 1 and "as the launcher says" in result["text"]


# -- when nothing decides
# ------------------------------------------------------------------------------------------


def test_a_cut_network_names_nobody():
    lost = [
        end(n, signal="SIGABRT", at=n / 10, said=dict(GLOO, peer=(n + 2) % 4)) for n in range(4)
    ]
    result = verdict.decide(PLAN, [node("node1", *lost[:2]), node("node2", *lost[2:])])
    assert named(result) == ("failed", None, "connection_lost")
    assert result["node"] is None
    assert "node1 and node2" in result["remedy"] and result["remedy"] in result["text"]
    assert all(f"rank {n} on" in result["text"] for n in range(4))


def test_nothing_decides():
    result = verdict.decide(
        PLAN, [node("node1", end(0, signal="SIGTERM", at=0), end(1)), node("node2", end(2), end(3))]
    )
    assert named(result) == ("failed", None, "unknown")
    assert [c["rank"] for c in result["candidates"]] == [None, 0]
    last = result["candidates"][1]
    assert (last["node"], last["local_rank"], last["signal"]) == ("node1", 0, "SIGTERM")
    assert "rank 0 on node1" in result["text"]


def test_two_silent_ranks_are_not_guessed_between():
    nodes = [node("node1", end(0, said=GLOO), end(1, said=GLOO)), node("node2", end(2), end(3))]
    assert named(verdict.decide(PLAN, nodes)) == ("failed", None, "connection_lost")


def test_everybody_was_stopped_by_a_peer():
    result = verdict.decide(
        PLAN,
        [
            node("node1", end(0), end(1), unit=stopped()),
            node("node2", end(2), end(3), unit=stopped(source="node1")),
        ],
    )
    assert result["outcome"] == "failed"
    assert result["code"] == "verdict.undecided"
    assert "node1 and node2 were" in result["text"] and "by a peer" in result["text"]
    assert result["candidates"] == [] and "candidates: none; " in result["text"]
    told = [
        node("node1", end(0, said=TERM), end(1), unit=stopped()),
        node("node2", end(2), end(3), unit=stopped(source="node1")),
    ]
    result = verdict.decide(PLAN, told)
    assert "by a peer" in result["text"]
    first = result["candidates"][0]
    assert (first["rank"], first["node"], first["local_rank"]) == (0, "node1", 0)
    assert (first["exit_code"], first["signal"]) == (None, None)
    assert "candidates: rank 0 on" in result["text"]


def test_one_stopped_and_one_failed_without_a_reason():
    result = verdict.decide(
        PLAN, [node("node1", end(0), end(1), unit=stopped()), node("node2", end(2), end(3))]
    )
    assert named(result) == ("failed", None, "unknown")
    assert result["node"] is None and "by a peer" not in result["text"]
    first = result["candidates"][0]
    assert (first["rank"], first["node"], first["exit_code"]) == (None, "node2", 250)
    assert "the launcher on node2" in result["text"]


@pytest.mark.parametrize(
    "said, cause",
    [
        ((GLOO, ABORT, TERM, GLOO), "connection_lost"),
        ((ABORT, TERM, TERM, ABORT), "unknown"),
        ((GLOO, GLOO, VALUE, GLOO), "connection_lost"),
    ],
)
def test_what_lost_contact_means(said, cause):
    ranks = [end(n, signal="SIGTERM", at=9, said=s) for n, s in enumerate(said)]
    ranks[2]["first_error"]["handled"] = True
    nodes = [node("node1", *ranks[:2]), node("node2", *ranks[2:], unit=stopped(at=1))]
    assert named(verdict.decide(PLAN, nodes)) == ("failed", None, cause)


def test_evidence_line_by_line():
    nodes = [
        node(
            "node1",
            end(0, signal="SIGABRT", at=1.25, said=GLOO),
            end(1, said=GLOO),
            unit=stopped("user", source=None),
        ),
        node("node2", end(2), end(3, 7, at=0)),
    ]
    assert verdict.decide(PLAN, nodes)["evidence"] == [
        (
            "rank 3 on node2 (local rank 1), exit code 7 at +0.0 s: ended without a message, first"
            " on its node (rank-003.node2.log)"
        ),
        (
            "rank 0 on node1 (local rank 0), SIGABRT at +1.2 s: was stopped with the attempt;"
            " gloo::IoException: Connection closed by peer (rank-000.node1.log:14)"
        ),
        (
            "rank 1 on node1 (local rank 1), end not observed: was stopped with the attempt;"
            " gloo::IoException: Connection closed by peer (rank-001.node1.log:14)"
        ),
        "ranks 0, 1 say the same: gloo::IoException",
        "ranks 0, 1 name rank 3 on node2",
        "node1 was stopped by user",
    ]


def test_what_two_launchers_say_is_not_said_of_ranks():
    said = {"exit_code": 1, "signal": None, "ended": None, "first_error": error(GLOO)}
    nodes = [
        node("node1", end(0), end(1), launcher=said),
        node("node2", end(2), end(3), launcher=said),
    ]
    assert not any("say the same" in line for line in verdict.decide(PLAN, nodes)["evidence"])


def test_words_for_a_launcher_an_empty_message_and_single_things():
    killed = CASES["a launcher that was killed under its ranks"][0]
    result = verdict.decide(PLAN, killed)
    assert (result["node"], result["rank"], result["signal"]) == ("node2", None, "SIGKILL")
    assert "the launcher on node2" in result["text"] and "after its ranks" in result["text"]
    bare = [
        node(
            "node1",
            end(0, 1, at=0, said={"kind": "MemoryError", "text": "", "origin": "python"}),
            end(1),
        ),
        node("node2", end(2), end(3)),
    ]
    result = verdict.decide(PLAN, bare)
    assert "raised MemoryError (" in result["text"] and result["exit_code"] == 1
    assert not any("say the same" in line for line in verdict.decide(PLAN, bare)["evidence"])
    alone = [{"rank": 0, "node": "node1", "local_rank": 0}]
    result = verdict.decide(alone, [])
    assert result["outcome"] == "lost" and result["code"] == "verdict.unreachable"
    assert "(node1: no findings)" in result["text"]
    assert "with rank 0; " in result["text"]
    result = verdict.decide(alone, [node("node1", end(0, 0), unit=OK)])
    assert result["outcome"] == "completed" and "1 rank on 1 node " in result["text"]


def test_where_no_node_answers_nobody_is_blamed():
    """A controller without a network sees the same as a controller whose nodes are gone."""
    found = verdict.decide(PLAN, [])
    assert (found["outcome"], found["cause"], found["node"]) == ("lost", "unreachable", None)
    assert "this controller" in found["text"] and "playbooks/follow.yml" in found["remedy"]
    one = verdict.decide(PLAN, [node("node1", end(0), end(1))])
    assert one["node"] == "node2" and "this controller" not in one["text"]


@pytest.mark.parametrize(
    "ended, blamed",
    [
        ({"code": 1}, True),
        ({"code": 7}, False),
        ({"signal": "SIGKILL"}, False),
        ({"signal": "SIGTERM"}, False),
        ({"signal": "SIGABRT"}, True),
    ],
)
def test_an_end_that_no_exception_makes_contradicts_it(ended, blamed):
    """An uncaught exception ends with 1. Teardown may abort after it."""
    rank = end(3, ended.get("code"), signal=ended.get("signal"), at=0, mtime=0, said=VALUE)
    result = verdict.decide(PLAN, [node("node1", end(0), end(1)), node("node2", end(2), rank)])
    assert (result["cause"] == "python_exception") is blamed
    assert ("raised" in result["text"]) is blamed
    assert any("ValueError" in line for line in result["evidence"])


@pytest.mark.parametrize("more, blamed", [({}, True), ({"lines": 99}, False)])
def test_where_no_end_was_seen_an_exception_has_to_be_the_last_thing(more, blamed):
    nodes = [node("node1", end(0), end(1)), node("node2", end(2), end(3, said=VALUE, **more))]
    assert (verdict.decide(PLAN, nodes)["rank"] == 3) is blamed
    restarted = dict(nodes[1], restarted=True)
    assert verdict.decide(PLAN, [nodes[0], restarted])["rank"] is None


@pytest.mark.parametrize(
    "code, last, cause",
    [
        (1, "ValueError: bad image", "python_exception"),
        (1, "[Errno 2] No such file or directory: 'a.json'", "data_missing"),
        (1, "[Errno 13] Permission denied: 'a.json'", "permission"),
        (1, "could not find the config a.yml", "bad_config"),
        (7, "[Errno 2] No such file or directory: 'a.json'", "silent_exit"),
    ],
)
def test_the_last_words_after_a_handled_error_count(code, last, cause):
    said = error(VALUE, handled=True)
    rank = end(3, code, at=0, first_error=said, lines=said["line"] + 1, last_line=last)
    result = verdict.decide(PLAN, [node("node1", end(0), end(1)), node("node2", end(2), rank)])
    assert (result["rank"], result["cause"]) == (3, cause)


@pytest.mark.parametrize(
    "said, last, cause",
    [
        ("KeyError", "/data/gt.txt: No such file or directory", "data_missing"),
        # a message of unknown length may hold the line
        ("ValueError", "/data/gt.txt: No such file or directory", "python_exception"),
        # what a destructor or atexit prints
        ("KeyError", "FileNotFoundError: [Errno 2] No such file or directory", "python_exception"),
        (
            "KeyError",
            "I1120 21:42:30.3  2837 a.cc:1] No such file or directory",
            "python_exception",
        ),
        ("KeyError", "the summary is written", "python_exception"),
    ],
)
def test_other_last_words_below_an_exception_of_one_line(said, last, cause):
    raised = error({"kind": said, "text": "'size'", "origin": "python"})
    rank = end(3, 1, at=0, first_error=raised, lines=raised["line"] + 1, last_line=last)
    result = verdict.decide(PLAN, [node("node1", end(0), end(1)), node("node2", end(2), rank)])
    assert (result["rank"], result["cause"]) == (3, cause)


@pytest.mark.parametrize("ending", [{"code": 7}, {"signal": "SIGSEGV"}, {"code": 2}])
def test_a_thread_does_not_explain_an_end_of_its_process(ending):
    rank = end(3, at=0, first_error=error(VALUE, thread=True), **ending)
    result = verdict.decide(PLAN, [node("node1", end(0), end(1)), node("node2", end(2), rank)])
    assert (result["rank"], result["error"]) == (3, None)


def test_a_warning_of_nccl_does_not_explain_a_kill():
    warning = error({"kind": "NCCL WARN", "text": "no plugin", "origin": "cpp"})
    rank = end(3, signal="SIGKILL", at=0, first_error=warning)
    result = verdict.decide(PLAN, [node("node1", end(0), end(1)), node("node2", end(2), rank)])
    assert (result["rank"], result["cause"]) == (3, "killed")


def test_an_exception_that_other_ranks_handled_needs_an_end_that_was_seen():
    handled = error(VALUE, survived=True)
    nodes = [
        node("node1", end(0, signal="SIGTERM", first_error=handled, lines=99), end(1)),
        node("node2", end(2), end(3, said=VALUE)),
    ]
    assert verdict.decide(PLAN, nodes)["rank"] is None
    nodes[1] = node("node2", end(2), end(3, 1, said=VALUE))
    assert verdict.decide(PLAN, nodes)["rank"] == 3


@pytest.mark.parametrize(
    "step, at, who",
    [
        ({"global_step": 4, "total_steps": 12}, 0, 3),
        ({"epoch": 1, "epochs": 3}, 0, 3),
        ({"global_step": 12, "total_steps": 12}, 0, None),  # the end of a training
        ({"epoch": 2, "epochs": 3}, 0, None),
        ({"global_step": 4, "total_steps": 12}, 9, None),  # after the others
    ],
)
def test_a_rank_that_ends_well_before_the_others_lose_it(step, at, who):
    rank = end(0, signal="SIGABRT", at=5, said=GLOO, last_step=step, steps=4)
    nodes = [node("node1", rank, end(1)), node("node2", end(2), end(3, 0, at=at), unit=OK)]
    result = verdict.decide(PLAN, nodes)
    assert (result["rank"], result["cause"] == "ended_early") == (who, who is not None)
    assert any(c["rank"] == 3 for c in result["candidates"]) is (at == 0)


@pytest.mark.parametrize("epochs, who", [(8, 3), (2, None), (None, None), ("8", None)])
def test_the_plan_says_how_many_epochs_there_are_where_the_lines_do_not(epochs, who):
    """PaddleDetection prints `Epoch: [1] [ 2/12]`."""
    step = {"epoch": 1, "step": 2, "steps": 12}
    rank = end(0, signal="SIGABRT", at=5, said=GLOO, last_step=step, steps=4)
    nodes = [node("node1", rank, end(1)), node("node2", end(2), end(3, 0, at=0), unit=OK)]
    result = verdict.decide(PLAN, [dict(each, epochs=epochs) for each in nodes])
    assert (result["rank"], result["cause"] == "ended_early") == (who, who is not None)


STORE = {
    "kind": "ValueError",
    "text": "Network 198.51.100.11:17000 cannot be connected.",
    "origin": "python",
}


def test_two_failures_at_once_are_not_guessed_between():
    nodes = [
        node("node1", end(0, signal="SIGSEGV", at=0.3), end(1)),
        node("node2", end(2), end(3, signal="SIGKILL", at=0)),
    ]
    result = verdict.decide(PLAN, nodes, DIR)
    assert named(result) == ("failed", None, "unknown")
    assert (result["node"], result["line"], result["log"]) == (None, None, None)
    reason, _word, listed = result["text"].partition("; candidates: ")
    assert result["code"] == "verdict.tied" and "2 failures " in reason
    assert listed.startswith("rank 3 on node2")
    assert "rank-000.node1.log" in result["text"] and "rank-003.node2.log" in result["text"]


def test_a_condition_between_ranks_is_the_cause_and_accuses_nobody():
    result = verdict.decide(
        PLAN,
        [
            node("node1", end(0), end(1)),
            node("node2", end(2, 1, at=1, said=STORE), end(3, 1, at=0, said=STORE)),
        ],
    )
    assert named(result) == ("failed", None, "store_timeout")
    meaning = failure_catalogue.entry_of("store_timeout")["meaning"]
    assert result["code"] == "verdict.undecided"
    assert result["text"].startswith(f"FAILED: {meaning.rstrip('.')}; candidates: ")
    assert result["meaning"] == failure_catalogue.entry_of("store_timeout")["meaning"]
    assert result["remedy"] == failure_catalogue.entry_of("store_timeout")["remedy"]


def test_a_loopback_address_is_a_fault_between_nodes_and_none_within_one():
    said = dict(GLOO, text="[pair.cc:799] connect [127.0.0.1]:3: Connection refused")
    nodes = [node("node1", end(0, 1, at=0, said=said), end(1)), node("node2", end(2), end(3))]
    assert named(verdict.decide(PLAN, nodes)) == ("failed", None, "loopback_address")
    assert named(verdict.decide(PLAN[:2], nodes[:1])) == ("failed", None, "connection_lost")


def test_the_schedulers_failure_is_its_own():
    port = {
        "kind": "WARNING",
        "text": "Failed to call bind, url: 198.51.100.11:17000 Address already in use",
        "origin": "line",
    }
    scheduler = {"home": "scheduler.node1.log", "mtime": T, "first_error": error(port)}
    result = verdict.decide(
        PLAN,
        [node("node1", end(0), end(1), scheduler=scheduler), node("node2", end(2), end(3))],
        DIR,
    )
    assert named(result) == ("failed", None, "port_in_use")
    assert "the scheduler on node1 " in result["text"]
    assert (result["node"], result["error"]["kind"]) == ("node1", port["kind"])
    assert result["error"]["text"] == port["text"] and port["text"] in result["text"]
    assert f"log {DIR}/scheduler.node1.log:14; remedy: " in result["text"]


@pytest.mark.parametrize(
    "said, kills, cause",
    [(WORKER, 1, "out_of_memory"), (WORKER, 0, "worker_died"), (VALUE, 1, "python_exception")],
)
def test_what_the_memory_killer_left_behind(said, kills, cause):
    nodes = [
        node("node1", end(0), end(1)),
        node("node2", end(2), end(3, 1, at=0, said=said), unit=dict(BAD, oom_kills=kills)),
    ]
    result = verdict.decide(PLAN, nodes)
    assert named(result) == ("failed", 3, cause)
    counted = (
        "node2: the kernel killed 1 of its processes because memory was short (exit.node2.json)"
    )
    assert (counted in result["evidence"]) is bool(kills)


@pytest.mark.parametrize(
    "lines, more, cause",
    [
        (16, {}, "python_exception"),
        (500, {}, "silent_exit"),
        (500, {"thread": True}, "python_exception"),
    ],
)
def test_what_was_handled_long_before_a_silent_exit_is_not_its_cause(lines, more, cause):
    said = error(VALUE, handled=True, **more)
    nodes = [
        node("node1", end(0), end(1)),
        node("node2", end(2), end(3, 1, at=0, first_error=said, lines=lines)),
    ]
    result = verdict.decide(PLAN, nodes)
    assert named(result) == ("failed", 3, cause)
    assert (result["line"], "exited without a message" in result["text"]) == (
        (None, True) if cause == "silent_exit" else (14, False)
    )


def test_the_last_line_of_a_silent_rank_is_evidence(make_attempt, samples):
    """sys.exit("text") prints the text and no traceback. Paddle's store prints the last message."""
    log = (
        "starting\nArchitecture.Backbone.name: this bundle has SmallConv\nI1120 21:25:20.542001 "
        " 3770 tcp_store.cc:289] shutdown\n\n"
    )
    events = [{"event": "end", "rank": 3, "pid": 1, "time": T, "exit_code": 1, "signal": None}]
    home = make_attempt("node2", logs={0: "", 1: log}, events=events, exit=BAD)
    result = verdict.decide(
        PLAN, [node("node1", end(0), end(1)), evidence.collect(str(home), "node2")]
    )
    assert named(result) == ("failed", 3, "silent_exit")
    assert f"{log.splitlines()[1]} (rank-003.node2.log)" in result["evidence"][0]


PS = (
    "[INFO] PS(5993,7f71717fa6c0,python):2026-11-20-21:59:10.004.261"
    " [mindspore/ccsrc/ps/core/tcp_server.cc:220] Start] Event base dispatch success!"
)


@pytest.mark.parametrize(
    "last, cause",
    [
        ("/data/gt.txt: No such file or directory; link the data set there", "data_missing"),
        ("/data/gt.txt: No such file or directory\n" + PS, "data_missing"),
        ("Out of memory error on GPU 0", "device_out_of_memory"),
        # what the peers, or a memory killer, would have said is not believed of a mere last line
        ("worker killed, Connection reset by peer", "silent_exit"),
    ],
)
def test_a_rank_that_ends_itself_with_words_has_the_cause_that_they_name(make_attempt, last, cause):
    events = [{"event": "end", "rank": 3, "pid": 1, "time": T, "exit_code": 1, "signal": None}]
    home = make_attempt("node2", logs={0: "", 1: f"starting\n{last}\n"}, events=events, exit=BAD)
    result = verdict.decide(
        PLAN, [node("node1", end(0), end(1)), evidence.collect(str(home), "node2")]
    )
    assert named(result) == ("failed", 3, cause)
    assert (last.split("\n")[0] in result["text"]) == (cause != "silent_exit")


@pytest.mark.parametrize("said", [None, TERM])
def test_a_sigterm_from_a_stranger(said):
    nodes = [
        node("node1", end(0, 1, at=1, said=GLOO), end(1, 1, at=1, said=GLOO)),
        node("node2", end(2, 1, at=1, said=GLOO), end(3)),
    ]
    nodes[1]["ranks"][1] = end(3, signal="SIGTERM", at=0, said=said)
    result = verdict.decide(PLAN, nodes)
    assert named(result) == ("failed", 3, "sigterm")
    how = (
        "stopped with FatalError: `Termination signal` is"
        if said
        else "was killed by SIGTERM without a message (signal SIGTERM)"
    )
    assert how in result["text"]


def test_the_verdict_has_its_meaning_and_its_candidates_their_places():
    result = verdict.decide(PLAN, CASES["a primary error beats aborts that ended earlier"][0], DIR)
    assert result["meaning"] == failure_catalogue.entry_of("python_exception")["meaning"]
    first = result["candidates"][0]
    assert (first["cause"], first["log"], first["line"]) == (
        "python_exception",
        f"{DIR}/rank-003.node2.log",
        14,
    )
    assert (
        verdict.decide(
            PLAN,
            [
                node("node1", end(0, 0), end(1, 0), unit=OK),
                node("node2", end(2, 0), end(3, 0), unit=OK),
            ],
        )["meaning"]
        is None
    )
    stop = verdict.decide(
        PLAN,
        [
            node("node1", end(0), end(1), unit=stopped("user")),
            node("node2", end(2), end(3), unit=stopped("user")),
        ],
    )
    assert stop["meaning"] == failure_catalogue.entry_of("stopped_by_user")["meaning"]


def test_a_silent_end_does_not_outweigh_a_node_that_is_out_of_sight():
    one = node("node1", end(0, 7, at=0), end(1))
    assert named(verdict.decide(PLAN, [one, GONE])) == ("lost", None, "unreachable")
    assert named(
        verdict.decide(PLAN, [node("node1", end(0, signal="SIGKILL", at=0), end(1)), GONE])
    ) == ("failed", 0, "killed")


def test_on_eight_nodes_one_of_them_not_asked_the_one_with_a_reason_is_named():
    plan = sample_plan(8, 2)["ranks"]
    nodes = [
        node(
            f"node{n}",
            *(end(2 * n - 2 + i, signal="SIGABRT", at=n, said=dict(GLOO, peer=11)) for i in (0, 1)),
            unit=stopped(at=1),
        )
        for n in (1, 2, 3, 4, 5, 8)
    ]
    nodes.append(
        node(
            "node6",
            end(10, signal="SIGABRT", at=0.4, said=dict(GLOO, peer=11)),
            end(11, 1, at=0.1, said=VALUE),
        )
    )
    result = verdict.decide(plan, [*nodes, {"node": "node7", "unreachable": "timed out"}])
    assert named(result) == ("failed", 11, "python_exception")
    assert result["text"].endswith("; not asked: node7")


# -- lost, unknown, stopped, completed
# -----------------------------------------------------------------------------

GONE = {
    "node": "node2",
    "unreachable": "ssh: connect to host 198.51.100.12 port 22: No route to host",
}


@pytest.mark.parametrize("nodes", [[GONE], {"node2": GONE}, []])
def test_a_node_that_did_not_answer(nodes):
    one = node(
        "node1",
        end(0, signal="SIGABRT", at=0, said=GLOO),
        end(1, signal="SIGABRT", at=0, said=GLOO),
    )
    nodes = dict(nodes, node1=one) if isinstance(nodes, dict) else [*nodes, one]
    result = verdict.decide(PLAN, nodes)
    assert named(result) == ("lost", None, "unreachable")
    assert (result["node"], result["unreachable"]) == ("node2", ["node2"])
    reason = GONE["unreachable"] if len(nodes) == 2 else "no findings"
    assert result["code"] == "verdict.unreachable"
    assert result["text"].startswith("LOST: node2 ") and f"(node2: {reason})" in result["text"]
    assert "with ranks 2, 3; " in result["text"]
    assert f"node2 was not asked: {reason}" in result["evidence"]


def test_a_cause_that_is_known_beats_a_node_that_did_not_answer():
    result = verdict.decide(PLAN, [node("node1", end(0, 1, at=0, said=VALUE), end(1)), GONE])
    assert named(result) == ("failed", 0, "python_exception")
    assert result["text"].endswith("; not asked: node2")


def test_a_good_end_with_a_node_missing_is_not_called_completed():
    assert (
        verdict.decide(PLAN, [node("node1", end(0, 0), end(1, 0), unit=OK), GONE])["outcome"]
        == "lost"
    )


def test_a_node_that_recorded_no_end():
    result = verdict.decide(
        PLAN, [node("node1", end(0), end(1), unit=OK), node("node2", end(2), end(3), unit=None)]
    )
    assert named(result) == ("unknown", None, "no_end_recorded")
    assert result["code"] == "verdict.no_end_recorded" and "node2 " in result["text"]


@pytest.mark.parametrize(
    "boot, outcome, cause",
    [
        ("other/1", "lost", "node_lost"),
        (None, "unknown", "no_end_recorded"),
        ("own", "unknown", "no_end_recorded"),
    ],
)
def test_a_node_that_was_booted_meanwhile_is_said_to_be_lost(make_attempt, boot, outcome, cause):
    """Its unit ended without a message, and attempt.json has the mark of another boot. An attempt
    of an older Trainyard has no mark.
    """
    home = make_attempt("node2", logs={0: "", 1: ""}, exit=None)
    record = {"boot": ownership.boot_mark() if boot == "own" else boot} if boot else {}
    (home / "attempt.json").write_text(json.dumps(record))
    result = verdict.decide(
        PLAN, [node("node1", end(0), end(1), unit=OK), evidence.collect(str(home), "node2")]
    )
    assert (result["outcome"], result["cause"], result["node"]) == (outcome, cause, "node2")
    assert (result["code"] == "verdict.node_restarted") is (outcome == "lost")
    assert ("with ranks 2, 3" in result["text"]) is (outcome == "lost")


def test_stopped_by_the_user():
    unit = stopped("user", at=1, source="the user")
    nodes = [
        node("node1", end(0, signal="SIGTERM", at=2), end(1, signal="SIGKILL", at=7), unit=unit),
        node("node2", end(2, signal="SIGTERM", at=2, said=TERM), end(3), unit=unit),
    ]
    result = verdict.decide(PLAN, nodes)
    assert named(result) == ("stopped", None, "stopped_by_user")
    assert result["code"] == "verdict.stopped"
    assert result["text"].startswith("STOPPED: ") and result["text"].endswith(" (the user)")


def test_an_exception_that_the_users_stop_made_is_no_failure():
    unit = stopped("user", at=1, source="")
    nodes = [
        node("node1", end(0, 1, at=2, mtime=2, said=VALUE), end(1), unit=unit),
        node("node2", end(2), end(3), unit=unit),
    ]
    result = verdict.decide(PLAN, nodes)
    assert result["outcome"] == "stopped"
    failure = result["text"].partition("; around then ")[2]
    assert failure.startswith("rank 0 on node1") and failure.endswith("ValueError: bad image")


@pytest.mark.parametrize("late, outcome", [(2, "stopped"), (-20, "failed")])
def test_a_node_that_lost_its_peers_to_the_users_stop_has_not_failed(late, outcome):
    nodes = [
        node(
            "node1",
            end(0, signal="SIGTERM", at=1),
            end(1, signal="SIGTERM", at=1),
            unit=stopped("user", at=1),
        ),
        node(
            "node2",
            end(2, 1, at=late, mtime=late, said=VALUE),
            end(3),
            unit=dict(BAD, time=T + late),
        ),
    ]
    assert verdict.decide(PLAN, nodes)["outcome"] == outcome


def test_the_users_stop_of_units_that_ended_badly_for_it():
    unit = dict(stopped("user", at=1), service_result="exit-code")
    nodes = [
        node(
            "node1",
            end(0, signal="SIGTERM", at=2),
            unit=unit,
            launcher={"exit_code": 15, "ended": T + 3},
        ),
        node("node2", end(2), end(3), unit=unit),
    ]
    assert verdict.decide(PLAN, nodes)["outcome"] == "stopped"


def test_a_stop_with_nobody_to_name_and_a_node_missing():
    result = verdict.decide(
        PLAN, [node("node1", end(0), end(1), unit=stopped("user", source=None)), GONE]
    )
    assert result["code"] == "verdict.stopped" and result["unreachable"] == ["node2"]
    assert result["text"].endswith("; not asked: node2")
    assert result["cause"] == "stopped_by_user"


@pytest.mark.parametrize(
    "at, outcome", [(None, "stopped"), (5, "failed"), (0.4, "stopped"), (0.6, "failed")]
)
def test_how_long_before_the_users_stop_a_failure_must_be(at, outcome):
    nodes = [
        node("node1", end(0), end(1), unit=stopped("user")),
        node("node2", end(2), end(3, 7, at=0, said=VALUE, mtime=0), unit=stopped("user", at=at)),
    ]
    assert verdict.decide(PLAN, nodes)["outcome"] == outcome
    unseen = [
        node("node1", end(0), end(1), unit=stopped("user")),
        node("node2", end(2), end(3, said=VALUE), unit=stopped("user", at=at)),
    ]
    assert verdict.decide(PLAN, unseen)["outcome"] == "stopped"


def test_the_clock_counts_for_the_users_stop_too():
    nodes = [
        node("node1", end(0), end(1), unit=stopped("user", at=1)),
        node(
            "node2",
            end(2),
            end(3, 7, at=3600, said=VALUE, mtime=3600),
            unit=stopped("user", at=3601),
            now=NOW + 3600,
        ),
    ]
    assert verdict.decide(PLAN, nodes)["outcome"] == "failed"


def test_a_rank_that_was_told_to_stop_in_units_that_ended_well():
    nodes = good()
    nodes[1]["ranks"][1].update(exit_code=None, signal="SIGTERM")
    assert named(verdict.decide(PLAN, nodes)) == ("failed", None, "unknown")


def test_a_failure_before_the_users_stop_is_a_failure():
    unit = stopped("user", at=5)
    nodes = [
        node("node1", end(0), end(1), unit=unit),
        node("node2", end(2), end(3, 1, at=0, mtime=0, said=VALUE), unit=unit),
    ]
    assert named(verdict.decide(PLAN, nodes)) == ("failed", 3, "python_exception")


def test_a_users_stop_at_an_unknown_time_comes_before_a_failure():
    nodes = [
        node("node1", end(0), end(1), unit=stopped("user")),
        node("node2", end(2), end(3, 7, at=0), unit=OK),
    ]
    assert named(verdict.decide(PLAN, nodes)) == ("stopped", None, "stopped_by_user")


def test_a_failure_whose_peer_the_user_stopped_is_a_failure():
    nodes = [
        node("node1", end(0), end(1), unit=stopped("user", at=5)),
        node("node2", end(2), end(3, 1, at=4.8, said=VALUE)),
    ]
    assert verdict.decide(PLAN, nodes)["outcome"] == "failed"


def good(**more):
    return [
        node("node1", end(0, 0, **more), end(1, 0), unit=OK),
        node("node2", end(2, 0), end(3, 0), unit=OK),
    ]


def test_completed():
    assert named(verdict.decide(PLAN, good())) == ("completed", None, None)


def test_completed_with_an_error_in_a_log_that_did_no_harm():
    nodes = good()
    nodes[1]["ranks"][1].update(
        exit_code=None, observed=None, first_error=error(VALUE, handled=True)
    )
    result = verdict.decide(PLAN, nodes)
    assert result["outcome"] == "completed"
    assert "by their unit" in result["text"]
    assert "by their unit" not in verdict.decide(PLAN, good())["text"]


@pytest.mark.parametrize("survived", [False, True])
def test_a_kill_is_not_blamed_on_an_error_that_was_handled(survived):
    passed = {"survived": True} if survived else {"handled": True}
    nodes = [
        node("node1", end(0), end(1)),
        node("node2", end(2), end(3, signal="SIGKILL", at=0, first_error=error(VALUE, **passed))),
    ]
    result = verdict.decide(PLAN, nodes)
    assert (result["cause"], result["error"], result["line"]) == ("killed", None, None)
    assert "ValueError: bad image" in result["evidence"][0]


@pytest.mark.parametrize("trace", [{"file": None}, {"pid": None}])
def test_one_trace_of_a_rank_is_enough_to_call_it_started(trace):
    nodes = good()
    nodes[1]["ranks"][1].update(trace)
    assert verdict.decide(PLAN, nodes)["outcome"] == "completed"


def test_completed_but_one_rank_never_started():
    nodes = good()
    nodes[1]["ranks"][1].update(exit_code=None, pid=None, file=None)
    result = verdict.decide(PLAN, nodes)
    assert named(result) == ("failed", 3, "rank_missing")


def test_completed_with_a_launcher_that_did_not():
    nodes = good()
    nodes[1]["launcher"] = {"exit_code": 1, "signal": None, "first_error": None}
    assert verdict.decide(PLAN, nodes)["outcome"] == "failed"


def test_completed_with_a_loss_that_is_no_number():
    nan = {"line": 52, "loss": "nan", "epoch": 1}
    result = verdict.decide(PLAN, good(nan=nan, last_step={"loss": None}))
    assert named(result) == ("completed", None, "nan")
    assert "rank 0 was nan " in result["text"]
    result = verdict.decide(PLAN, good(nan=nan, last_step={"loss": 0.5}))
    assert named(result) == ("completed", None, None)
    assert any(
        line.startswith("rank 0: ") and "nan (rank-000.node1.log:52)" in line
        for line in result["evidence"]
    )


def test_nothing_is_known_of_any_node():
    result = verdict.decide(PLAN, [])
    assert (result["outcome"], result["unreachable"]) == ("lost", ["node1", "node2"])


def test_sparse_findings_do_not_break_it():
    assert verdict.decide(PLAN, [{"node": "node1"}, {"node": "node2", "ranks": None, "exit": {}}])[
        "outcome"
    ] in ("failed", "unknown")


def test_a_unit_whose_own_process_was_killed_is_named():
    """The agent itself gets SIGKILL. The ends of its ranks are not seen, and the peers report that
    they lost contact.
    """
    killed = {
        "service_result": "signal",
        "exit_code": "killed",
        "exit_status": "KILL",
        "stopped_by": None,
        "stopped_at": None,
    }
    peers = node("node1", end(0, 1, at=3, said=GLOO), end(1, 1, at=3, said=GLOO))
    found = verdict.decide(
        PLAN, [peers, node("node2", end(2, said=TERM), end(3), unit=killed)], DIR
    )
    assert (found["outcome"], found["node"], found["rank"], found["signal"]) == (
        "failed",
        "node2",
        None,
        "SIGKILL",
    )
    assert (
        "the agent on node2" in found["text"] and "lost contact" not in found["text"].split(";")[0]
    )


def test_a_unit_whose_own_process_crashed_was_not_killed():
    crashed = dict(BAD, service_result="core-dump", exit_code="dumped", exit_status="SEGV")
    peers = node("node1", end(0, 1, at=3, said=GLOO), end(1))
    found = verdict.decide(PLAN, [peers, node("node2", end(2), end(3), unit=crashed)])
    assert (found["node"], found["signal"]) == ("node2", "SIGSEGV")
    assert found["cause"] == "launcher_failed" and "SIGKILL" not in found["text"]
