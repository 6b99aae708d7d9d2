# SPDX-License-Identifier: Apache-2.0
"""weighing: one row for each rule, with the least evidence that needs it. Which rank comes first,
and is the evidence enough to name it?
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import (
    candidates,
    clocks,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis.weights import DECIDES
from unit.diagnosis.test_verdict import (
    BAD,
    GLOO,
    NOW,
    OK,
    SEGV,
    TERM,
    VALUE,
    WORKER,
    T,
    end,
    error,
    node,
    stopped,
)

STORE = {
    "kind": "ValueError",
    "text": "Network 198.51.100.1:17000 cannot be connected.",
    "origin": "python",
}
ABORT = {
    "kind": "FatalError",
    "text": "`Process abort signal` is detected by the operating system.",
    "origin": "cpp",
}
PORT = {
    "kind": "WARNING",
    "text": "Failed to call bind, url: 198.51.100.11:17000 Address already in use",
    "origin": "line",
}
SHELL = {"kind": "Killed", "text": "python -u train.py", "origin": "line"}
FAULT = {"kind": "Fatal Python error", "text": "Segmentation fault", "origin": "cpp"}
BUS = {
    "kind": "FatalError",
    "text": "`Access to an undefined portion of a memory object` is detected",
    "origin": "cpp",
}
# What ranks print that wait in NCCL for one that has gone, and how far a training was.
INTERNAL = {"kind": "OSError", "text": "NCCL error(3), internal error.", "origin": "python"}
STEP = {"global_step": 8, "total_steps": 60}
TRAINING = {"last_step": STEP, "steps": 8}
# Names the node of a lost peer, and no rank of it.
OF_NODE2 = dict(GLOO, peer=None, peer_node="node2")
GOING = {"signal": "SIGTERM", "at": 1.5, "mtime": 0.5, "said": VALUE, "lines": 16}
THREAD = error(VALUE, survived=True, thread=True)
NOT_THERE = "/data/b.json: No such file or directory"
MISSING = {
    "kind": "FileNotFoundError",
    "text": "[Errno 2] No such file or directory: 'a.json'",
    "origin": "python",
}
HELPER = {"kind": "usage error", "text": "no url", "origin": "line"}
HANDLED, SURVIVED = error(VALUE, handled=True), error(VALUE, survived=True)
NONE = {"pid": None, "bytes": None}


def launcher(**more):
    return dict({"exit_code": None, "signal": None, "ended": None, "first_error": None}, **more)


def told(**child):
    """A launcher that named the first of its children that ended."""
    return launcher(
        exit_code=1,
        children=[
            dict({"local_rank": None, "rank": None, "pid": None, "code": 3, "first": True}, **child)
        ],
    )


def first(*nodes):
    """(rank, weight) of the heaviest candidate; None where it is not enough to be named."""
    found = candidates.Weighing({n["node"]: n for n in nodes}).candidates
    return (
        (found[0]["rank"], found[0]["weight"]) if found and found[0]["weight"] >= DECIDES else None
    )


def two(*ranks, **more):
    """node2 with these ranks, its unit failed; beside it a node1 that says nothing."""
    return [node("node1", end(0), end(1)), node("node2", *ranks, **more)]


ROWS = {
    # a rank's own end
    "exit code 0 accuses nobody, whatever its log holds": (
        two(end(2, 7, at=0), end(3, 0, at=0, said=VALUE)),
        (2, 60),
    ),
    "exit code 0 is no first death": (
        two(end(2, 0, at=0), end(3, signal="SIGKILL", at=9)),
        (3, 80),
    ),
    "a rank without a trace is no candidate": (two(end(2), end(3)), None),
    "an exit is first on its node or late": (two(end(2, 9, at=3), end(3, 7, at=0)), (3, 60)),
    "late on its node does not beat first on another, though earlier": (
        [
            node("node1", end(0, signal="SIGTERM", at=0), end(1, 9, at=2)),
            node("node2", end(2), end(3, 7, at=5)),
        ],
        (3, 60),
    ),
    "last words weigh no more than an end without any": (
        two(end(2), end(3, 1, at=0, said=dict(VALUE, closing=True))),
        (3, 60),
    ),
    "an abort without a message is a silent end": (
        two(end(2), end(3, signal="SIGABRT", at=0)),
        (3, 60),
    ),
    "a SIGTERM is not": (two(end(2), end(3, signal="SIGTERM", at=0)), None),
    "a lost peer is not": (two(end(2), end(3, 1, at=0, said=GLOO)), None),
    "a primary error with its end unseen, beside a seen abort": (
        two(end(2, signal="SIGABRT", at=0), end(3, said=VALUE)),
        (3, 100),
    ),
    # signals
    "a kill, first on its node": (two(end(2), end(3, signal="SIGKILL", at=0)), (3, 80)),
    "what a shell says of a child that was killed": (
        two(end(2), end(3, 137, at=0, said=SHELL)),
        (3, 80),
    ),
    "the same not first on its node": (
        two(end(2, 9, at=0), end(3, 137, at=1, said=SHELL)),
        (2, 60),
    ),
    "an exit after a SIGTERM that is the first on its node": (
        two(end(2), end(3, 143, at=0)),
        (3, 60),
    ),
    "and one a moment after another end, when a launcher sends it": (
        two(end(2, 1, at=0, said=GLOO), end(3, 143, at=0.3)),
        None,
    ),
    "a kill after a silent exit is the launcher's": (
        two(end(2, signal="SIGKILL", at=4), end(3, 7, at=0)),
        (3, 60),
    ),
    "a kill of a rank that had lost its peers": (
        [
            node("node1", end(0, signal="SIGKILL", at=5, said=GLOO), end(1)),
            node("node2", end(2), end(3, 7, at=0)),
        ],
        (3, 60),
    ),
    "a kill of a rank whose log holds a handled error": (
        two(end(2), end(3, signal="SIGKILL", at=0, first_error=HANDLED)),
        (3, 80),
    ),
    "a kill of a rank of which a thread had died": (
        two(
            end(2),
            end(
                3,
                signal="SIGKILL",
                at=0,
                first_error=error(VALUE, survived=True, thread=True),
            ),
        ),
        (3, 80),
    ),
    "a crash as Paddle's handler tells it is a signal": (two(end(2), end(3, said=SEGV)), (3, 80)),
    "a crash as faulthandler tells it": (
        two(end(2, said=FAULT, signal="SIGSEGV", at=0.2), end(3, signal="SIGKILL", at=0)),
        (3, 80),
    ),
    "a bus error as Paddle's handler tells it": (
        two(end(2, said=BUS, signal="SIGBUS", at=0.2), end(3, signal="SIGKILL", at=0)),
        (3, 80),
    ),
    "the memory killer's count": (
        two(end(2), end(3, signal="SIGKILL", at=0), unit=dict(BAD, oom_kills=1)),
        (3, 90),
    ),
    "the memory killer's result": (
        two(end(2), end(3, signal="SIGKILL", at=0), unit=dict(BAD, service_result="oom-kill")),
        (3, 90),
    ),
    "an abort where the memory killer was is not its": (
        two(
            end(2, signal="SIGABRT", at=0, said=GLOO),
            end(3, signal="SIGKILL", at=0.1),
            unit=dict(BAD, oom_kills=1),
        ),
        (3, 90),
    ),
    # a kill and an exception
    "a kill well before an exception began it": (
        two(end(2, 1, at=1, said=VALUE), end(3, signal="SIGKILL", at=0)),
        (3, 100),
    ),
    "a kill at about the time of an exception did not": (
        two(end(2, 1, at=0.4, said=VALUE), end(3, signal="SIGKILL", at=0)),
        (2, 100),
    ),
    "on two nodes it takes a wider gap": (
        [
            node("node1", end(0, 1, at=2, said=VALUE), end(1)),
            node("node2", end(2), end(3, signal="SIGKILL", at=0)),
        ],
        (0, 100),
    ),
    "which this is": (
        [
            node("node1", end(0, 1, at=4, said=VALUE), end(1)),
            node("node2", end(2), end(3, signal="SIGKILL", at=0)),
        ],
        (3, 100),
    ),
    "a kill must come before every exception": (
        two(end(2, 1, at=4, said=VALUE), end(3, signal="SIGKILL", at=2))
        + [node("node3", end(4, 1, at=0, said=VALUE))],
        (4, 100),
    ),
    "a late kill is never the beginning": (
        [
            node("node1", end(0, 1, at=9, said=VALUE), end(1)),
            node("node2", end(2, 7, at=0), end(3, signal="SIGKILL", at=1)),
        ],
        (0, 100),
    ),
    "a kill whose time is unknown did not come before": (
        two(end(2, 1, at=9, said=VALUE), end(3, signal="SIGKILL")),
        (2, 100),
    ),
    "nor before an exception whose time is unknown": (
        two(end(2, said=VALUE), end(3, signal="SIGKILL", at=0)),
        (2, 100),
    ),
    "an old log says nothing of when a kill came": (
        two(end(2, 1, at=0, said=VALUE), end(3, signal="SIGKILL", at=5, mtime=-100)),
        (2, 100),
    ),
    # time
    "of two exceptions without an end, the older log": (
        two(end(2, said=VALUE, mtime=5), end(3, said=VALUE, mtime=1)),
        (3, 100),
    ),
    "or the time that Paddle printed": (
        two(end(2, said=VALUE, mtime=5), end(3, first_error=error(VALUE, time=T + 1), mtime=9)),
        (3, 100),
    ),
    "a known time comes before none": (
        two(end(2, said=VALUE), end(3, 1, at=50, said=VALUE)),
        (3, 100),
    ),
    "of equals, the lower rank": (
        two(end(3, 1, at=0, said=VALUE), end(2, 1, at=0, said=VALUE)),
        (2, 100),
    ),
    "a clock 9 s off is not corrected": (
        [
            node("node1", end(0, 1, at=5, said=VALUE), end(1)),
            node("node2", end(2), end(3, 1, at=9, said=VALUE), now=NOW + 9),
        ],
        (0, 100),
    ),
    "a clock 11 s off is": (
        [
            node("node1", end(0, 1, at=5, said=VALUE), end(1)),
            node("node2", end(2), end(3, 1, at=9, said=VALUE), now=NOW + 11),
        ],
        (3, 100),
    ),
    # passing errors
    "a handled error is doubtful": (two(end(2), end(3, 1, at=0, first_error=HANDLED)), (3, 70)),
    "one that steps followed too": (two(end(2), end(3, 1, at=0, first_error=SURVIVED)), (3, 70)),
    "neither beats a kill": (
        two(end(2, signal="SIGKILL", at=0), end(3, 1, at=0, first_error=SURVIVED)),
        (2, 80),
    ),
    "late, it does not beat a silent exit": (
        two(end(2, 1, at=3, first_error=HANDLED), end(3, 7, at=0)),
        (3, 60),
    ),
    "a handled error far above the last line is no reason": (
        two(end(2), end(3, 1, at=0, first_error=HANDLED, lines=99)),
        (3, 60),
    ),
    "what another rank handled may have ended one that aborted": (
        two(end(2, first_error=HANDLED), end(3, signal="SIGABRT", at=0, said=VALUE)),
        (3, 100),
    ),
    "a last line with the cause of an exception does not contradict it": (
        two(end(2), end(3, 1, at=0, said=MISSING, lines=99, last_line=NOT_THERE)),
        (3, 100),
    ),
    "dead loader workers, first on their node": (
        two(end(2), end(3, 1, at=0, said=WORKER)),
        (3, 100),
    ),
    "dead loader workers after a silent exit": (
        two(end(2, 1, at=3, said=WORKER), end(3, 7, at=0)),
        (3, 60),
    ),
    # stopped nodes
    "what ends after the stop was stopped, by signal": (
        two(end(2), end(3, signal="SIGKILL", at=2), unit=stopped(at=1)),
        None,
    ),
    "or by exit code": (two(end(2), end(3, 143, at=2), unit=stopped(at=1)), None),
    "or without being seen": (two(end(2), end(3, said=GLOO), unit=stopped(at=1)), None),
    "also where the memory killer had been": (
        two(end(2), end(3, signal="SIGKILL", at=2), unit=dict(stopped(at=1), oom_kills=1)),
        None,
    ),
    "what ended before it was not": (
        two(end(2), end(3, signal="SIGKILL", at=0), unit=stopped(at=1)),
        (3, 80),
    ),
    "without the time of the stop nothing is known": (
        two(end(2), end(3, signal="SIGKILL", at=0), unit=stopped()),
        None,
    ),
    "a handled error there is no cause": (
        two(end(2), end(3, signal="SIGTERM", at=2, first_error=HANDLED), unit=stopped(at=1)),
        None,
    ),
    "nor a crash while stopping": (
        two(end(2), end(3, signal="SIGSEGV", at=2, said=SEGV), unit=stopped(at=1)),
        None,
    ),
    "nor one that is the last thing in the log": (
        two(end(2), end(3, 1, at=2, first_error=HANDLED), unit=stopped(at=1)),
        None,
    ),
    "a dead loader thread is": (
        two(
            end(2),
            end(3, signal="SIGTERM", at=2, first_error=error(VALUE, survived=True, thread=True)),
            unit=stopped(at=1),
        ),
        (3, 70),
    ),
    "also with its end unseen": (
        two(
            end(2), end(3, first_error=error(VALUE, survived=True, thread=True)), unit=stopped(at=1)
        ),
        (3, 70),
    ),
    "also of a rank that lived on until the stop": (
        two(end(2), end(3, at=2, first_error=THREAD), unit=stopped(at=1)),
        (3, 70),
    ),
    "a thread that died before a rank that fell silent elsewhere is not": (
        [
            node("node1", end(0, 7, at=0), end(1)),
            node(
                "node2",
                end(2),
                end(3, signal="SIGTERM", at=2, first_error=THREAD),
                unit=stopped(at=1),
            ),
        ],
        (0, 60),
    ),
    "nor one of a rank that was not stopped and whose end is unseen": (
        [node("node1", end(0, 7, at=0), end(1)), node("node2", end(2), end(3, first_error=THREAD))],
        (0, 60),
    ),
    "nor one of a rank that says what all share": (
        [
            node("node1", end(0, 1, at=0, said=STORE), end(1)),
            node(
                "node2",
                end(2),
                end(3, signal="SIGTERM", at=2, first_error=THREAD),
                unit=stopped(at=1),
            ),
        ],
        None,
    ),
    "an exception of a rank that lived on until the stop": (
        two(end(2), end(3, at=2, mtime=0, said=VALUE), unit=stopped(at=1)),
        None,
    ),
    "an exception on a node that recorded no end": (
        two(end(2), end(3, said=VALUE), unit=None),
        None,
    ),
    "a crash on a node that recorded no end": (
        two(end(2), end(3, said=SEGV), unit=None),
        (3, 80),
    ),
    "a helper's end on a node that recorded no end": (
        two(end(2), end(3, said=HELPER), unit=None),
        None,
    ),
    "an exception before the stop is an exception": (
        two(end(2), end(3, 1, at=0, said=VALUE), unit=stopped(at=1)),
        (3, 100),
    ),
    "also when its process went later": (
        two(end(2), end(3, 1, at=7, mtime=0, said=VALUE), unit=stopped(at=1)),
        (3, 100),
    ),
    "an exception after it is doubtful": (
        two(end(2), end(3, 1, at=2, mtime=2, said=VALUE), unit=stopped(at=1)),
        (3, 70),
    ),
    "an exception at an unknown time too": (
        two(end(2), end(3, said=VALUE), unit=stopped(at=1)),
        (3, 70),
    ),
    # nodes that ended well
    "an error in the log of a unit that ended well": (
        [node("node2", end(2), end(3, said=VALUE), unit=OK)],
        None,
    ),
    "an exit code there": ([node("node2", end(2), end(3, 3, at=0), unit=OK)], (3, 60)),
    "a signal there": ([node("node2", end(2), end(3, signal="SIGKILL", at=0), unit=OK)], (3, 80)),
    "a kill with no exit record yet, nothing of the launcher": (
        [node("node2", end(2), end(3, signal="SIGKILL", at=0), unit=None, launcher=None)],
        (3, 80),
    ),
    "no exit record yet": (
        [node("node2", end(2), end(3, 1, at=0, said=VALUE), unit=None)],
        (3, 100),
    ),
    # launchers
    "a launcher before its ranks": (
        [node("node2", end(2, **NONE), end(3, **NONE), launcher=launcher(exit_code=2))],
        (None, 95),
    ),
    "a launcher before its ranks, beside ranks that started": (
        two(end(2, **NONE), end(3, **NONE), launcher=launcher(exit_code=2)),
        (None, 95),
    ),
    "a rank that has a process has started": (
        [node("node2", end(2, bytes=None), end(3, **NONE), launcher=launcher(exit_code=2))],
        None,
    ),
    "a rank that has a log has started": (
        [node("node2", end(2, pid=None), end(3, **NONE), launcher=launcher(exit_code=2))],
        None,
    ),
    "a launcher with an error of its own after they started": (
        two(end(2), end(3), launcher=launcher(exit_code=1, first_error=error(VALUE))),
        (None, 62),
    ),
    "a launcher that lost its peers": (
        [
            node(
                "node2",
                end(2, **NONE),
                end(3, **NONE),
                launcher=launcher(exit_code=1, first_error=error(GLOO)),
            )
        ],
        None,
    ),
    "a launcher that was killed": (
        two(end(2), end(3), launcher=launcher(signal="SIGKILL", ended=T)),
        (None, 62),
    ),
    "and what systemd then ended": (
        two(end(2), end(3, signal="SIGKILL", at=6), launcher=launcher(signal="SIGKILL", ended=T)),
        (None, 62),
    ),
    "and what it ended with an exit code": (
        two(end(2), end(3, 1, at=6), launcher=launcher(signal="SIGKILL", ended=T)),
        (None, 62),
    ),
    "a unit that a signal ended, with its launcher": (
        two(end(2), end(3, 1, at=0, said=GLOO), unit=dict(BAD, service_result="signal")),
        (None, 80),
    ),
    "not after its launcher had ended by itself": (
        two(
            end(2),
            end(3, 1, at=0, said=GLOO),
            unit=dict(BAD, service_result="signal"),
            launcher=launcher(exit_code=1),
        ),
        None,
    ),
    "nor after a signal had ended its launcher": (
        two(
            end(2),
            end(3, 1, at=0, said=GLOO),
            unit=dict(BAD, service_result="signal"),
            launcher=launcher(signal="SIGTERM"),
        ),
        None,
    ),
    "a rank that ended before its launcher": (
        two(end(2), end(3, signal="SIGKILL", at=0), launcher=launcher(exit_code=1, ended=T + 1)),
        (3, 80),
    ),
    "a rank whose end was not seen": (
        two(end(2), end(3, said=SEGV), launcher=launcher(exit_code=1, ended=T + 1)),
        (3, 80),
    ),
    "a launcher is not asked where a rank speaks": (
        two(end(2), end(3, said=GLOO), launcher=launcher(exit_code=1, first_error=error(VALUE))),
        None,
    ),
    # what launchers name
    "a kill beside a silent exit, as it looks": (
        two(end(2, signal="SIGKILL", at=0.1), end(3, 3, at=0)),
        (2, 80),
    ),
    "and as msrun tells it by the pid": (
        two(end(2, signal="SIGKILL", at=0.1), end(3, 3, at=0), launcher=told(pid=103)),
        (3, 60),
    ),
    "mpirun tells it of all nodes": (
        [
            node("node1", end(0, signal="SIGKILL", at=1), end(1), launcher=told(rank=3)),
            node("node2", end(2), end(3, 3, at=0)),
        ],
        (3, 60),
    ),
    "a launcher that names one who only lost its peers tells nothing": (
        two(end(2, signal="SIGKILL", at=0), end(3, 1, at=0.1, said=GLOO), launcher=told(pid=103)),
        (2, 80),
    ),
    "what msrun kills after the child that it names, whatever that said": (
        two(end(2, signal="SIGKILL", at=0.1), end(3, 1, at=0, said=GLOO), launcher=told(pid=103)),
        None,
    ),
    "it kills nothing on another node": (
        [
            node("node1", end(0, signal="SIGKILL", at=0.1), end(1)),
            node("node2", end(2), end(3, 1, at=0, said=GLOO), launcher=told(pid=103)),
        ],
        (0, 80),
    ),
    "nor is a crash its kill": (
        two(end(2, signal="SIGSEGV", at=0.1), end(3, 1, at=0, said=GLOO), launcher=told(pid=103)),
        (2, 80),
    ),
    "nor a kill at an unknown time": (
        two(end(2, signal="SIGKILL"), end(3, 1, at=0, said=GLOO), launcher=told(pid=103)),
        (2, 80),
    ),
    # a rank that ended well, too early
    "an early end, and ranks that launchers ended": (
        [
            node("node1", end(0, 1, at=1, said=GLOO, **TRAINING), end(1, signal="SIGTERM", at=2)),
            node("node2", end(2, 0, at=0), end(3, signal="SIGABRT", at=1, said=GLOO)),
        ],
        (2, 60),
    ),
    "an early end, and ranks that say only that their library failed": (
        [
            node("node1", end(0, 1, at=1, said=INTERNAL, **TRAINING), end(1, 1, at=1, said=GLOO)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=INTERNAL)),
        ],
        (2, 60),
    ),
    "a late kill by a launcher is explained": (
        [
            node("node1", end(0, 1, at=1, said=GLOO, **TRAINING), end(1, signal="SIGKILL", at=3)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
        ],
        (2, 60),
    ),
    "an exit code is not": (
        [
            node("node1", end(0, 1, at=1, said=GLOO, **TRAINING), end(1, 9, at=3)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
        ],
        None,
    ),
    "not an end after another rank of its node had lost contact": (
        [
            node("node1", end(0, 1, at=1, said=GLOO, **TRAINING), end(1)),
            node("node2", end(2, 0, at=0), end(3, 1, at=-1, said=GLOO)),
        ],
        None,
    ),
    "beside a witness on its node, clocks of others may be ahead": (
        [
            node("node1", end(0, 1, at=-2, said=GLOO, **TRAINING), end(1)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
        ],
        (2, 60),
    ),
    "but not without end": (
        [
            node("node1", end(0, 1, at=-4, said=GLOO, **TRAINING), end(1)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
        ],
        None,
    ),
    "without one they may not": (
        [
            node("node1", end(0, 1, at=-2, said=GLOO, **TRAINING), end(1)),
            node("node2", end(2, 0, at=0), end(3, signal="SIGTERM", at=1)),
        ],
        None,
    ),
    "not where the time of a loss is unknown": (
        [
            node("node1", end(0, 1, said=GLOO, **TRAINING), end(1)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
        ],
        None,
    ),
    "not where nobody lost contact": (
        [
            node("node1", end(0, signal="SIGTERM", at=5, **TRAINING), end(1)),
            node("node2", end(2, 0, at=0), end(3)),
        ],
        None,
    ),
    "not one of two that ended well": (
        [
            node("node1", end(0, 1, at=1, said=GLOO, **TRAINING), end(1, 0, at=0)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
        ],
        None,
    ),
    "an early end, and ranks that aborted without a word": (
        [
            node("node1", end(0, signal="SIGABRT", at=1, said=ABORT, **TRAINING), end(1)),
            node("node2", end(2, 0, at=0), end(3, signal="SIGABRT", at=1, said=ABORT)),
        ],
        (2, 60),
    ),
    "an early end, and a rank that said that it was told to stop": (
        [
            node(
                "node1",
                end(0, 1, at=1, said=GLOO, **TRAINING),
                end(1, signal="SIGTERM", at=2, said=TERM),
            ),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
        ],
        (2, 60),
    ),
    "an early end beside a unit that failed for no known reason": (
        [
            node("node1", end(0, 1, at=1, said=GLOO, **TRAINING), end(1)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
            node("node3", end(4)),
        ],
        (2, 60),
    ),
    "an end before the last epoch, in lines without the number of the step": (
        [
            node(
                "node1",
                end(0, 1, at=1, said=GLOO, last_step={"total_steps": 60, "epoch": 1, "epochs": 3}),
                end(1),
            ),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
        ],
        (2, 60),
    ),
    "an end in an epoch of an unknown number": (
        [
            node("node1", end(0, 1, at=1, said=GLOO, last_step={"epoch": 3}), end(1)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
        ],
        None,
    ),
    "what a stop did then is no other reason": (
        [
            node("node1", end(0, 1, at=1, said=GLOO, **TRAINING)),
            node("node2", end(2, 0, at=0), end(3, 1, at=1, said=GLOO)),
            node("node3", end(4, 9, at=3), unit=stopped(at=2)),
        ],
        (2, 60),
    ),
    "not an end a moment after another rank of its node had lost contact": (
        [
            node("node1", end(0, 1, at=1, said=GLOO, **TRAINING), end(1)),
            node("node2", end(2, 0, at=0), end(3, 1, at=-0.3, said=GLOO)),
        ],
        None,
    ),
    # an exception whose process a launcher ended
    "beside a unit that failed for no known reason": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **GOING)),
            node("node3", end(4)),
        ],
        (3, 60),
    ),
    "a rank that went down when its launcher ended the rest": (
        [node("node1", end(0, 1, at=1, said=GLOO)), node("node2", end(2), end(3, **GOING))],
        (3, 60),
    ),
    "also where the stop of the attempt did": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **GOING), unit=stopped(at=1.4)),
        ],
        (3, 60),
    ),
    "also beside what the stop ended elsewhere": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **GOING)),
            node("node3", end(4, 9, at=3), unit=stopped(at=2)),
        ],
        (3, 60),
    ),
    "not long after its traceback": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **dict(GOING, mtime=-4))),
        ],
        None,
    ),
    "not where it is unknown when it was written": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **dict(GOING, mtime=None))),
        ],
        None,
    ),
    "not where its end is unknown": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **dict(GOING, at=None))),
        ],
        None,
    ),
    "not where steps followed": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **dict(GOING, said=None, first_error=SURVIVED))),
        ],
        None,
    ),
    "not where its log was written to later": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **dict(GOING, mtime=1.6))),
        ],
        None,
    ),
    "not where the log went on": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **dict(GOING, lines=40))),
        ],
        None,
    ),
    "not where a handler printed it": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **dict(GOING, said=None, first_error=HANDLED))),
        ],
        None,
    ),
    "not where it only lost a peer": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2), end(3, **dict(GOING, said=INTERNAL))),
        ],
        None,
    ),
    "not one of two that went down": (
        [
            node("node1", end(0, 1, at=1, said=GLOO), end(1, **GOING)),
            node("node2", end(2), end(3, **GOING)),
        ],
        None,
    ),
    "not where no rank lost contact": (
        [node("node1", end(0), end(1)), node("node2", end(2), end(3, **GOING))],
        None,
    ),
    "not beside an end that says more": (
        [
            node("node1", end(0, 1, at=1, said=GLOO), end(1, 9, at=5)),
            node("node2", end(2), end(3, **GOING)),
        ],
        None,
    ),
    "a port that the scheduler did not get, before an exception of a rank": (
        [
            node(
                "node1",
                end(0, 1, at=9, said=VALUE),
                end(1),
                scheduler={"home": "s.log", "mtime": T, "first_error": error(PORT)},
            ),
            node("node2", end(2), end(3)),
        ],
        (None, 100),
    ),
    "a port that the scheduler did not get": (
        [
            node(
                "node1",
                end(0, 1, at=9, said=STORE),
                end(1),
                scheduler={"home": "s.log", "mtime": T, "first_error": error(PORT)},
            ),
            node("node2", end(2), end(3)),
        ],
        (None, 95),
    ),
    "the same where the unit ended well": (
        [
            node(
                "node1",
                end(0),
                end(1),
                unit=OK,
                scheduler={"home": "s.log", "mtime": T, "first_error": error(PORT)},
            )
        ],
        None,
    ),
    "a unit that systemd calls killed for memory, though no rank was seen to go": (
        [
            node("node1", end(0), end(1)),
            node("node2", end(2), end(3), unit=dict(BAD, service_result="oom-kill")),
        ],
        (None, 90),
    ),
    # conditions between ranks
    "ranks that did not meet accuse nobody": (
        two(end(2, 1, at=0, said=STORE), end(3, 1, at=1, said=STORE)),
        None,
    ),
    "a silent exit explains them": (two(end(2, 1, at=9, said=STORE), end(3, 7, at=0)), (3, 60)),
    # SIGTERM from outside
    "a SIGTERM before anything else, all ends seen": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2, 1, at=2, said=GLOO), end(3, signal="SIGTERM", at=0)),
        ],
        (3, 61),
    ),
    "also where its log is not there": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2, 1, at=2, said=GLOO), end(3, signal="SIGTERM", at=0, bytes=None)),
        ],
        (3, 61),
    ),
    "not beside a launcher elsewhere that failed for no known reason": (
        two(end(2, 1, at=2, said=GLOO), end(3, signal="SIGTERM", at=0)),
        None,
    ),
    "not another signal": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node("node2", end(2, 1, at=2, said=GLOO), end(3, signal="SIGHUP", at=0)),
        ],
        None,
    ),
    "not on a node that was stopped after it": (
        [
            node("node1", end(0, 1, at=1, said=GLOO)),
            node(
                "node2",
                end(2, 1, at=2, said=GLOO),
                end(3, signal="SIGTERM", at=0),
                unit=stopped(at=5),
            ),
        ],
        None,
    ),
    "not where another may have ended before": (
        two(end(2), end(3, signal="SIGTERM", at=0, said=TERM)),
        None,
    ),
    "not where another ended well before": (
        two(end(2, 0, at=-5), end(3, signal="SIGTERM", at=0)),
        None,
    ),
    "not on two nodes at once": (
        [
            node("node1", end(0, signal="SIGTERM", at=0)),
            node("node2", end(2, signal="SIGTERM", at=0)),
        ],
        None,
    ),
    # an end whose log is not there
    "an exit code without a log says nothing": (two(end(2), end(3, 1, at=0, bytes=None)), None),
    "a kill does": (two(end(2), end(3, signal="SIGKILL", at=0, bytes=None)), (3, 80)),
    # an abort
    "an abort that names nobody, whom its peers lost": (
        [
            node("node1", end(0, said=GLOO), end(1, 1, at=1, said=GLOO)),
            node("node2", end(2, 0), end(3, signal="SIGABRT", at=0, said=ABORT)),
        ],
        (3, 60),
    ),
    "not where it was lost by nobody": (
        [
            node("node1", end(0, 1, at=1, said=dict(GLOO, peer=2))),
            node("node2", end(2, 0), end(3, signal="SIGABRT", at=0, said=ABORT)),
        ],
        None,
    ),
    "an abort on the node that its peers name": (
        [
            node("node1", end(0, said=OF_NODE2), end(1, 1, at=1, said=OF_NODE2)),
            node("node2", end(2, 0), end(3, signal="SIGABRT", at=0, said=ABORT)),
        ],
        (3, 60),
    ),
    "not on another node": (
        [
            node("node1", end(0, said=dict(OF_NODE2, peer_node="node1")), end(1, 0)),
            node("node2", end(2, 0), end(3, signal="SIGABRT", at=0, said=ABORT)),
        ],
        None,
    ),
    "not where they name another rank of the node": (
        [
            node("node1", end(0, said=dict(OF_NODE2, peer=2)), end(1, 0)),
            node("node2", end(2, 0), end(3, signal="SIGABRT", at=0, said=ABORT)),
        ],
        None,
    ),
    "not an abort that names the address of another": (
        [
            node("node1", end(0, said=OF_NODE2), end(1, 0)),
            node(
                "node2",
                end(2, 0),
                end(3, signal="SIGABRT", at=0, said=dict(ABORT, peer_address="198.51.100.1")),
            ),
        ],
        None,
    ),
    "an abort before its node was stopped": (
        [
            node("node1", end(0, said=OF_NODE2), end(1, 0)),
            node(
                "node2",
                end(2, 0),
                end(3, signal="SIGABRT", at=0, said=ABORT),
                unit=stopped(at=1),
            ),
        ],
        (3, 60),
    ),
    "not an abort after it": (
        [
            node("node1", end(0, said=OF_NODE2), end(1, 0)),
            node(
                "node2",
                end(2, 0),
                end(3, signal="SIGABRT", at=0, said=ABORT),
                unit=stopped(at=-1),
            ),
        ],
        None,
    ),
    # a rank that fell silent
    "the silent one that its peers lost": (
        [
            node("node1", end(0, said=GLOO), end(1, said=GLOO)),
            node("node2", end(2, said=dict(GLOO, peer=0)), end(3)),
        ],
        (3, 60),
    ),
    "not where another was lost": (
        [
            node("node1", end(0, said=dict(GLOO, peer=2)), end(1)),
            node("node2", end(2, said=GLOO), end(3, 0)),
        ],
        None,
    ),
    "not one of two": (
        [
            node("node1", end(0, said=dict(GLOO, peer=2)), end(1, said=dict(GLOO, peer=2))),
            node("node2", end(2), end(3)),
        ],
        None,
    ),
    "not one whose exit code is known": (
        [
            node("node1", end(0, said=GLOO), end(1, said=GLOO)),
            node("node2", end(2, said=GLOO), end(3, 0)),
        ],
        None,
    ),
    "not one that was told to stop": (
        [
            node("node1", end(0, said=GLOO), end(1, said=GLOO)),
            node("node2", end(2, said=GLOO), end(3, signal="SIGTERM", at=0)),
        ],
        None,
    ),
    "not on a node without a record of its end": (
        [
            node("node1", end(0, said=GLOO), end(1, said=GLOO)),
            node("node2", end(2, said=GLOO), end(3), unit=None),
        ],
        None,
    ),
    "not on a node that was stopped": (
        [
            node("node1", end(0, said=GLOO), end(1, said=GLOO)),
            node("node2", end(2, said=GLOO), end(3), unit=stopped(at=0)),
        ],
        None,
    ),
}


def test_an_abort_that_nobody_names_is_listed_first():
    nodes = [
        node("node1", end(0, 1, at=1, said=INTERNAL), end(1, 1, at=1, said=INTERNAL)),
        node("node2", end(2, 0), end(3, signal="SIGABRT", at=0, said=ABORT)),
    ]
    found = candidates.Weighing({n["node"]: n for n in nodes}).candidates
    assert (found[0]["rank"], found[0]["weight"], found[0]["is_suspect"]) == (3, 40, True)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("turned", [False, True])
def test_who_is_heaviest(name, turned):
    nodes, expected = ROWS[name]
    assert first(*(nodes[::-1] if turned else nodes)) == expected


@pytest.mark.parametrize(
    "unit, said, code, signal",
    [
        (dict(BAD, exit_status="3"), launcher(), 3, None),
        (dict(BAD, exit_status="3"), launcher(exit_code=2), 2, None),
        (dict(BAD, exit_status="3"), launcher(signal="SIGHUP"), None, "SIGHUP"),
        (dict(BAD, exit_code="killed", exit_status="KILL"), launcher(), None, "SIGKILL"),
        (dict(BAD, exit_code="dumped", exit_status="SEGV"), launcher(), None, "SIGSEGV"),
        (dict(BAD, exit_code="exited", exit_status="odd"), launcher(), None, None),
        (dict(BAD, exit_code=None, exit_status=None), launcher(), None, None),
        (dict(BAD, exit_status="3"), None, 3, None),
    ],
)
def test_how_a_launcher_ended(unit, said, code, signal):
    found = candidates.Weighing(
        {"node2": node("node2", end(2, **NONE), unit=unit, launcher=said)}
    ).candidates[0]
    assert (found["exit_code"], found["signal"], found["home"]) == (
        code,
        signal,
        "launcher.node2.log",
    )
    assert "exit-code before any" in found["why"]


def test_a_launcher_after_its_ranks_had_started_says_so():
    found = candidates.Weighing(
        {"node2": node("node2", end(2), launcher=launcher(exit_code=2))}
    ).candidates[0]
    assert "exit-code after its" in found["why"]


@pytest.mark.parametrize(
    "unit, said, well",
    [
        (OK, launcher(exit_code=0), True),
        (OK, None, True),
        (OK, launcher(exit_code=1), False),
        (OK, launcher(signal="SIGKILL"), False),
        (BAD, launcher(exit_code=0), False),
        (dict(OK, stopped_by="peer"), launcher(exit_code=0), False),
    ],
)
def test_what_ended_well(unit, said, well):
    assert bool(candidates.has_succeeded(unit, {"launcher": said})) is well


TORN = {
    "kind": "Traceback",
    "text": 'cut short after File "/srv/checkpoint.py", line 272',
    "origin": "python",
}


@pytest.mark.parametrize(
    ("free", "said", "cause"),
    [
        (4096, TORN, "disk_full"),
        (0, TORN, "disk_full"),
        (1 << 30, TORN, "python_exception"),
        (None, TORN, "python_exception"),
        (0, VALUE, "python_exception"),
        (0, dict(TORN, text="of an odd kind"), "python_exception"),
    ],
)
def test_a_traceback_that_breaks_off_on_a_full_disk_is_the_disks(free, said, cause):
    asked = two(end(2), end(3, 1, at=0, said=said))
    asked[1]["free"] = free
    best = candidates.Weighing({n["node"]: n for n in asked}).candidates[0]
    assert (best["rank"], best["error"]["cause"], best["weight"]) == (3, cause, 100)
    assert best["error"]["text"].endswith(said["text"])
    assert best["error"]["text"].startswith("its disk is full: ") is (cause == "disk_full")


def test_a_silent_end_says_whether_it_was_the_first():
    found = candidates.Weighing(
        {"node2": node("node2", end(2, 7, at=0), end(3, 9, at=3))}
    ).candidates
    assert ["first on its node" in c["why"] for c in found] == [True, False]
    assert all("without a message" in c["why"] for c in found)


def test_candidates_of_every_kind_can_be_ordered():
    nodes = [
        node("node1", end(0, **NONE), launcher=launcher(first_error=error(GLOO))),
        node("node2", end(2, said=TERM), end(3, said=TERM)),
    ]
    found = candidates.Weighing({n["node"]: n for n in nodes}).candidates
    assert [c["rank"] for c in found] == [2, 3, None]


NATIVE = {"kind": "EnforceNotMet", "text": "the kernel is odd", "origin": "cpp"}
LINE = {"kind": "python", "text": "no such thing", "origin": "line"}
TIED = {
    "two exceptions on two nodes, two seconds apart": ([(0, VALUE, 0), (3, SEGV, 2)], False),
    "two different exceptions": ([(0, VALUE, 0), (3, dict(VALUE, kind="KeyError"), 2)], True),
    "the same, five seconds apart": ([(0, VALUE, 0), (3, dict(VALUE, kind="KeyError"), 5)], False),
    "the same exception with another number": (
        [(0, dict(VALUE, text="bad image 7"), 0), (3, dict(VALUE, text="bad image 8"), 0)],
        False,
    ),
    "a known cause twice, in other words": (
        [
            (0, dict(VALUE, text="No such file or directory"), 0),
            (3, dict(VALUE, kind="FileNotFoundError"), 0),
        ],
        False,
    ),
    "two signals on two nodes": ([(0, "SIGSEGV", 0), (3, "SIGKILL", 1)], True),
    "one signal on two nodes": ([(0, "SIGKILL", 0), (3, "SIGKILL", 1)], False),
    "an exception nobody knows, and a kill elsewhere": ([(0, VALUE, 0), (3, "SIGKILL", -1)], True),
    "an exception with a cause, and a kill elsewhere": (
        [(0, dict(VALUE, text="No such file or directory"), 0), (3, "SIGKILL", -1)],
        True,
    ),
    "an exception with a cause, and a kill elsewhere a moment later": (
        [(0, dict(VALUE, text="No such file or directory"), 0), (3, "SIGKILL", 1)],
        False,
    ),
    "an exception with a cause, and a kill on its node just before it": (
        [(2, dict(VALUE, text="No such file or directory"), 0.3), (3, "SIGKILL", 0)],
        True,
    ),
    "an exception nobody knows, and a kill on its own node by its launcher": (
        [(2, VALUE, 0), (3, "SIGKILL", 0.3)],
        False,
    ),
    "two native errors in words that nobody knows": (
        [(0, dict(NATIVE, text="the tensor is odd"), 0), (3, NATIVE, 0)],
        True,
    ),
    "two lines in words that nobody knows": (
        [(0, dict(LINE, text="no such word"), 0), (3, LINE, 0)],
        True,
    ),
    "a kill that began it, and a crash at an unknown time": (
        [(0, "SIGKILL", -9), (4, VALUE, 5), (2, "SIGSEGV", None)],
        False,
    ),
    "two silent exits with two codes": ([(0, 5, 0), (3, 7, 1)], True),
    "two silent exits with one code": ([(0, 5, 0), (3, 5, 1)], False),
    "two silent exits with the code of any failure": ([(0, 1, 0), (3, 1, 1)], True),
    "a silent exit, and last words about the others just after it": (
        [(0, 7, 0), (3, dict(STORE, closing=True), 1)],
        True,
    ),
    "a silent exit, and last words about the others well after it": (
        [(0, 7, 0), (3, dict(STORE, closing=True), 5)],
        False,
    ),
}


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize("turned", [False, True])
def test_when_two_failures_are_too_close(name, turned):
    ends, tied = TIED[name]
    made = []
    for rank, what, at in ends:
        how = (
            {"said": what, "code": 1}
            if isinstance(what, dict)
            else {"signal": what}
            if isinstance(what, str)
            else {"code": what}
        )
        name, one = f"node{rank // 2 + 1}", end(rank, at=at, **how)
        made = [dict(n, ranks=[*n["ranks"], one]) if n["node"] == name else n for n in made]
        made += [] if any(n["node"] == name for n in made) else [node(name, one)]
    found = candidates.Weighing({n["node"]: n for n in (made[::-1] if turned else made)})
    assert found.candidates[0]["weight"] >= DECIDES
    assert bool(found.rivals()) is tied


def test_an_error_of_a_stop_elsewhere_is_no_kill():
    nodes = [
        node("node1", end(0, 1, at=0, said=VALUE)),
        node("node2", end(3, signal="SIGKILL", at=1, mtime=1, said=NATIVE), unit=stopped(at=0.5)),
    ]
    found = candidates.Weighing({n["node"]: n for n in nodes})
    assert [(c["rank"], c["weight"]) for c in found.candidates] == [(0, 100), (3, 40)]
    assert found.rivals() == []


def test_a_kill_does_not_compete_with_a_launcher_that_failed_before_its_ranks_began():
    failed = launcher(exit_code=1, ended=T, first_error=error(VALUE))
    nodes = [
        node("node1", end(0, **NONE), launcher=failed),
        node("node2", end(3, signal="SIGKILL", at=1)),
    ]
    found = candidates.Weighing({n["node"]: n for n in nodes})
    assert [(c["rank"], c["weight"]) for c in found.candidates] == [(None, 95), (3, 80)]
    assert found.rivals() == []


@pytest.mark.parametrize("apart, order", [(0.0, True), (3.0, True), (6.0, False), (3600.0, True)])
def test_the_doubt_grows_with_the_distance_of_the_clocks(apart, order):
    """The time to ask may take up to ten seconds. A larger difference is a wrong clock, which is
    corrected.
    """
    nodes = [
        node("node1", end(0, 1, at=0, said=VALUE)),
        node("node2", end(2, 5, at=5 + (apart if apart > 10 else 0)), now=NOW + apart),
    ]
    found = candidates.Weighing({n["node"]: n for n in nodes})
    assert found.precedes(*sorted(found.candidates, key=lambda c: c["rank"])) is order


@pytest.mark.parametrize(
    "name", "SIGKILL SIGSEGV SIGBUS SIGILL SIGFPE SIGSYS SIGXCPU SIGXFSZ".split()
)
def test_signals_that_end_a_process_from_outside(name):
    assert first(*two(end(2), end(3, signal=name, at=0))) == (3, 80)


@pytest.mark.parametrize(
    "unit",
    [stopped(by="user", at=4), stopped(), stopped(by="guard", at=4), stopped(at=4, source="node9")],
)
def test_a_stop_that_no_failed_peer_asked_for_tells_nothing_of_a_clock(unit):
    answers = {
        "node1": {"now": NOW, "exit": dict(BAD, time=T + 10)},
        "node2": {"now": NOW, "exit": dict(unit, time=T + 5)},
    }
    assert clocks.measure_clocks(answers) == {"node1": 0.0, "node2": 0.0}


def test_a_stop_that_came_before_the_failure_that_asked_for_it_tells_of_a_clock():
    failed, told_so = dict(BAD, time=T + 10), dict(stopped(at=4), time=T + 5)
    assert clocks.measure_clocks(
        {"node1": {"now": NOW, "exit": failed}, "node2": {"now": NOW, "exit": told_so}}
    ) == {"node1": 0.0, "node2": -6.0}
    later = dict(told_so, stopped_at=T + 12)
    assert clocks.measure_clocks(
        {"node1": {"now": NOW, "exit": failed}, "node2": {"now": NOW, "exit": later}}
    ) == {"node1": 0.0, "node2": 0.0}


def test_a_peer_whose_guard_stopped_it_had_asked_for_the_stop_before_its_end():
    told_so = dict(stopped(at=4), time=T + 5)
    peer = dict(BAD, time=T + 10, stopped_by="guard")
    answers = {"node1": {"now": NOW, "exit": peer}, "node2": {"now": NOW, "exit": told_so}}
    assert clocks.measure_clocks(answers) == {"node1": 0.0, "node2": 0.0}


@pytest.mark.parametrize(
    "ended, stopper, ahead",
    [(10, None, -6.0), (3, None, 0.0), (20, None, 0.0), (10, "peer", 0.0), (10, "guard", 0.0)],
)
def test_a_stop_by_the_supervisors_comes_after_the_first_end_that_nobody_asked_for(
    ended, stopper, ahead
):
    first_end = dict(BAD, time=T + ended, stopped_by=stopper)
    told_so = dict(stopped(at=4, source=clocks.BY_NODES), time=T + 5)
    answers = {"node1": {"now": NOW, "exit": first_end}, "node2": {"now": NOW, "exit": told_so}}
    assert clocks.measure_clocks(answers) == {"node1": 0.0, "node2": ahead}
    answers["node3"] = {"now": NOW, "exit": dict(BAD, time=T + 4)}
    assert clocks.measure_clocks(answers)["node2"] == 0.0


@pytest.mark.parametrize(
    "times, ahead",
    [
        ({}, {}),
        ({"a": 5.0}, {"a": 0.0}),
        ({"a": 0.0, "b": 9.0, "c": 1.0}, {"a": 0.0, "b": 0.0, "c": 0.0}),
        ({"a": 0.0, "b": 3600.0, "c": 1.0}, {"a": 0.0, "b": 3599.0, "c": 0.0}),
        ({"a": 0.0, "b": None}, {"a": 0.0}),
    ],
)
def test_clocks(times, ahead):
    assert clocks.measure_clocks({name: {"now": now} for name, now in times.items()}) == ahead


def test_a_node_that_was_asked_late_has_no_wrong_clock():
    """If there are more nodes than Ansible has forks, some are asked minutes later. Their launchers
    were started together with the others.
    """
    asked = {
        name: {"now": 1000.0 + late, "launcher": {"started": 500.0}}
        for name, late in (("node1", 0), ("node2", 0), ("node3", 120))
    }
    assert clocks.measure_clocks(asked) == {"node1": 0.0, "node2": 0.0, "node3": 0.0}
    asked["node3"]["launcher"]["started"] = 620.0
    assert clocks.measure_clocks(asked)["node3"] == 120.0
