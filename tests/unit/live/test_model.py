# SPDX-License-Identifier: Apache-2.0
"""What looking again and again tells: pace, time left, and what to warn of. Each warning stands
beside the look that must not give it.
"""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import live_warnings, model
from unit.live.test_screen import STEP, own, rank, seen, status

GIB = 1 << 30


def follow(*looks, node="node1"):
    """Return a Watch after looks at rank 0: (second, step, changes of the rank)."""
    found = model.Watch()
    for second, step, changes in looks:
        said = rank(
            0,
            step=dict(STEP, step=step, eta=changes.pop("eta", None)) if step is not None else None,
            log_time=float(second),
        )
        found.add(
            node, status(node, dict(said, **changes), now=float(second), started=0.0), float(second)
        )
    return found


def steady(until, pace=3, **changes):
    """Looks every 3 s at a rank that shows a new step every `pace` seconds, until the second
    `until`.
    """
    return [(second, second // pace, dict(changes)) for second in range(0, until, 3)]


def texts(found, seconds=None):
    last = max(node.heard for node in found.nodes.values()) if seconds is None else seconds
    return [text for _kind, _nodes, text in live_warnings.warnings(found, last)]


def warned(found, seconds=None):
    """Return [(kind, nodes, figures of the text)] of the warnings.

    Figures are all words of the text with a digit, without brackets and commas.
    """
    last = max(node.heard for node in found.nodes.values()) if seconds is None else seconds
    return [
        (kind, nodes, [word.strip("(),;") for word in text.split() if re.search("[0-9]", word)])
        for kind, nodes, text in live_warnings.warnings(found, last)
    ]


# --- pace


def test_the_time_left_is_the_suites_own_word_less_what_has_passed_since():
    found = follow((0, 1, {"eta": 100}), (3, 1, {"eta": 100}), (9, 1, {"eta": 100}))
    assert found.left() == 91
    assert follow((0, 1, {"eta": 5}), (60, 1, {"eta": 5})).left() == 0


def test_the_time_left_by_pace_where_the_suite_says_none():
    found = follow(
        (0, 1, {"fraction": 0.1}), (30, 2, {"fraction": 0.2}), (36, 2, {"fraction": 0.2})
    )
    assert found.left() == pytest.approx(8 * 30 - 6)
    assert follow((0, 1, {"fraction": 0.1})).left() is None


def test_a_curve_has_one_value_for_each_new_step_of_the_first_rank():
    found = seen(
        own(2, "node2"),
        own(0, "node1"),
        own(0, "node1"),
        own(0, "node1", step=21),
        own(2, "node2", step=22),
    )
    assert found.lead == 0 and len(found.losses.values) == 2


def test_a_new_attempt_begins_anew():
    found = follow(*steady(30))
    found.add("node1", status("node1", rank(0, step=STEP), attempt=2), 33.0)
    assert len(found.losses.values) == 1 and found.run == ("R", 2) and texts(found) == []


def test_a_node_that_knows_an_older_attempt_only_is_no_part_of_the_picture():
    found = follow(*steady(30))
    assert found.add("node2", status("node2", rank(1, step=STEP), attempt=2), 33.0)
    assert not found.add("node1", status("node1", rank(0, step=STEP), attempt=1), 34.0)
    assert found.run == ("R", 2) and [entry["node"] for entry in found.known()] == ["node2"]


def test_what_ranks_do_between_two_looks_is_no_lag():
    found = seen(*(own(n, "node%d" % (n + 1), step=step) for step in (10, 20) for n in range(3)))
    found.add("node3", own(2, "node3", step=40), 3.0)  # asked later than the others
    assert found.slowest().behind == 0
    found.add("node1", own(0, "node1", step=41), 3.0)
    assert found.slowest().behind == 0  # two looks' worth
    found.add("node3", own(2, "node3", step=90), 6.0)
    found.add("node1", own(0, "node1", step=91), 6.0)
    found.add("node3", own(2, "node3", step=95), 9.0)
    found.add("node1", own(0, "node1", step=96), 9.0)
    assert (found.slowest().rank, found.slowest().behind) == (1, 75)


def test_a_node_that_does_not_answer_is_no_straggler():
    found = seen(own(0, "node1"), own(1, "node2", 1.0), own(2, "node3"))
    assert found.slowest().rank == 1 and found.throughput()[0] == 5.0
    found.lose("node2")
    assert found.slowest().rank != 1 and found.throughput()[0] == 4.0


def test_text_from_a_node_is_safe_to_show_and_its_secrets_are_masked():
    found = model.Watch()
    found.secrets = ((), ("hunter2-Zq9",))
    found.add("node1\x1b", status("node1", rank(0, "x\x07hunter2-Zq9"), job="\u202ejob"), 0.0)
    assert (
        found.order()
        and "\x1b" not in repr(found.nodes)
        and found.nodes["node1\\x1b"].status["ranks"][0]["state"] == "x\\x07********"
    )
    assert found.known()[0]["job"] == "\\u202ejob"


# --- what is wrong


def test_no_new_step_for_several_times_the_usual_time():
    slow = follow(
        *steady(90, pace=9), *((second, 9, {"log_time": 81.0}) for second in range(90, 126, 3))
    )
    assert texts(slow) == []  # 42 s, not yet five times nine
    stalled = follow(
        *steady(90, pace=9), *((second, 9, {"log_time": 81.0}) for second in range(90, 135, 3))
    )
    assert warned(stalled) == [("stalled", ("node1",), ["0:51", "9", "0", "node1"])]
    assert not texts(stalled)[0].endswith("the log goes on")
    # an evaluation writes
    busy = [*steady(90, pace=9), *((second, 9, {}) for second in range(90, 360, 3))]
    assert texts(follow(*busy)) == []
    found = follow(*busy, (390, 9, {}))
    assert warned(found) == [("stalled", ("node1",), ["5:09", "9", "0", "node1"])]
    assert texts(found)[0].endswith("the log goes on")


def test_who_comes_to_a_run_that_stands_still_is_told_so():
    assert texts(follow((1000, 5, {"log_time": 900.0}))) == []
    found = follow((1000, 5, {"log_time": 600.0}))
    assert warned(found) == [("stalled", ("node1",), ["6:40", "0", "node1"])]
    assert "usually" not in texts(found)[0] and not texts(found)[0].endswith("the log goes on")


def test_stalled_ranks_are_put_together():
    found = seen(
        own(0, "node1", now=1000.0), own(1, "node2", now=1000.0), own(2, "node3", now=1000.0)
    )
    for pace in found.paces.values():
        pace.changed = 600.0
    nodes = ("node1", "node2", "node3")
    assert warned(found) == [("stalled", nodes, ["6:40", "0-2", "node[1-3]"])]


@pytest.mark.parametrize(
    "state, text", [("starting", True), ("waiting", True), ("running", False), ("done", False)]
)
def test_a_rank_that_should_say_something_and_does_not(state, text):
    found = seen(status("node1", rank(0, state, log_time=None), started=0.0, now=301.0))
    quiet = [("quiet", ("node1",), ["0", "node1", "5:01"])]
    assert warned(found) == (quiet if text else [])
    assert texts(seen(status("node1", rank(0, state), started=0.0, now=300.0))) == []


@pytest.mark.parametrize(
    "free, total, full",
    [
        (1.9, 100, True),
        (2.1, 40, False),
        (4.9, 100, True),
        (5.1, 100, False),
        (19, 10000, True),
        (21, 10000, False),
        (0, 0, False),
    ],
)
def test_a_disk_that_is_nearly_full(free, total, full):
    found = seen(status("node1", rank(0), disk={"free": int(free * GIB), "total": total * GIB}))
    warning = ("disk", ("node1",), ["node1:", f"{free:.1f}"])
    assert warned(found) == ([warning] if full else [])
    assert texts(seen(status("node1", rank(0), disk=None))) == []


@pytest.mark.parametrize("problem", ["the checkpoint takes 9 MiB more", None])
def test_a_replica_that_cannot_be_made(problem):
    replica = {"name": "3", "epoch": 4, "step": None, "copied": 9.0, "problem": problem}
    found = seen(status("node2", rank(1), replica=replica))
    warning = ("replica", ("node2",), ["node2", "9"])
    assert warned(found) == ([warning] if problem else [])


def test_a_node_that_does_not_answer():
    found = seen(status("node1", rank(0)), status("node2", rank(1)))
    for second in range(3, 22, 3):
        found.add("node1", status("node1", rank(0)), float(second))
    assert warned(found) == [("answer", ("node2",), ["node2", "0:21"])]
    assert texts(found, 20.0) == []
    found.lose("node2")
    assert texts(found, 25.0) == []  # its line says so
    found.add("node2", status("node2", rank(1, "done"), ended=True, state="completed"), 0.0)
    assert texts(found, 25.0) == []


def test_nodes_that_are_asked_once_a_minute_are_not_missed_earlier():
    found = seen(status("node1", rank(0)), status("node2", rank(1)))
    found.add("node1", status("node1", rank(0)), 60.0)
    assert texts(found) == []
    assert warned(found, 181.0) == [("answer", ("node2",), ["node2", "3:01"])]


@pytest.mark.parametrize(
    "ahead, text", [(3603, "is 1:00:03 ahead of"), (-45, "is 0:45 behind"), (29, None), (-29, None)]
)
def test_a_clock_that_differs(ahead, text):
    found = model.Watch()
    found.add("node1", status("node1", rank(0), now=225.0 + ahead), 0.0, 225.0)
    assert texts(found) == ([f"clock of node1 {text} this machine's"] if text else [])


@pytest.mark.parametrize(
    "asked, text",
    [
        ((200.0, 230.0), None),
        ((225.0, 225.5), None),
        ((100.0, 194.0), "is 0:31 ahead of"),
        ((256.0, 300.0), "is 0:31 behind"),
    ],
)
def test_a_controller_that_slept_makes_no_clock_wrong(asked, text):
    """The answer of 225 s came to the view at 312 s; what counts is when it was asked for."""
    found = model.Watch()
    found.add("node1", dict(status("node1", rank(0), now=225.0), asked=list(asked)), 0.0, 312.0)
    assert texts(found) == ([f"clock of node1 {text} this machine's"] if text else [])


def test_a_loss_that_is_no_number_stays_known():
    found = seen(
        status("node1", rank(0, step=STEP, nan={"loss": "nanxxx", "epoch": 0, "step": 4})),
        status("node1", rank(0, step=STEP)),
    )
    assert warned(found) == [("nan", (), ["1/3", "5", "0", "node1"])]
    assert texts(found)[0].startswith("loss is nan ")


@pytest.mark.parametrize(
    "states, is_open, is_kept",
    [
        (["failed", "lost"], True, True),
        (["completed", "failed"], True, True),
        (["failed", "lost"], False, False),
        (["completed", "completed"], True, False),  # the nodes are about to agree on the end
        (["failed", "running"], True, False),
    ],
)
def test_a_run_whose_nodes_keep_it_is_not_over_with_its_attempt(states, is_open, is_kept):
    supervised = {"is_open": is_open, "teams": []}
    first, second = (
        status(f"node{number}", rank(number - 1, "ended"), state=state, attempt=2)
        | {"ended": state != "running", "supervised": supervised}
        for number, state in enumerate(states, 1)
    )
    warning = ("kept", ("node1", "node2"), ["2"])
    assert warned(seen(first, second)) == ([warning] if is_kept else [])


def test_a_run_that_is_over_is_not_warned_of():
    over = status(
        "node1",
        rank(0, "failed"),
        ended=True,
        state="failed",
        now=9999.0,
        started=0.0,
        disk={"free": 0, "total": 9},
    )
    assert texts(seen(over), 9999.0) == []


@pytest.mark.parametrize(
    "quiet, text",
    [
        (12.0, None),
        (29.0, None),
        (
            45.0,
            (
                "no sign of life for 0:45 in the phase step (seen by node1); at 1:00 it is ended as"
                " a hang"
            ),
        ),
    ],
)
def test_a_training_that_is_about_to_be_ended_as_a_hang(quiet, text):
    found = seen(
        status(
            "node1",
            rank(0, step=STEP),
            guard={"phase": "step", "budget": 60, "quiet": quiet},
            now=9.0,
            started=0.0,
        )
    )
    assert [said for said in texts(found) if "sign of life" in said] == ([text] if text else [])


def test_what_the_guards_ended_it_for_is_said_also_when_it_is_over():
    stall = {
        "phase": "evaluation",
        "budget": 20,
        "seconds": 20.4,
        "since": 1.0,
        "time": 2.0,
        "step": None,
        "last_line": "x",
        "by": "node1",
        "ranks": [0],
    }
    over = status(
        "node1",
        rank(0, "failed"),
        ended=True,
        state="failed",
        now=9.0,
        started=0.0,
        guard={"stall": stall},
    )
    found = seen(over)
    assert warned(found) == [("hang", ("node1",), ["20", "20", "node1"])]
    assert "evaluation" in texts(found)[0]
    loss = {
        "node": "node2",
        "how": "it says nothing for 17 s",
        "seconds": 17.0,
        "since": 1.0,
        "time": 2.0,
        "by": "node1",
    }
    found = seen(dict(over, guard={"loss": loss}))
    assert warned(found) == [("lost", ("node2",), ["node2", "node1", "17"])]
    assert loss["how"] in texts(found)[0]
    # node2 answers: nothing says which of the two was cut off
    two = dict(over, nodes=["node1", "node2"], guard={"loss": loss})
    found = seen(two, status("node2", rank(1), now=9.0, started=0.0))
    assert [item[:2] for item in warned(found, 9.0)] == [("lost", ("node1", "node2"))]
    found.lose("node2")
    assert ("lost", ("node2",)) in [item[:2] for item in warned(found, 9.0)]
