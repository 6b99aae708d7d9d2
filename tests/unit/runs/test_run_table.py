# SPDX-License-Identifier: Apache-2.0
"""One table of all runs, from the nodes' answers and the controller's records."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import run_table

OLD, NEW = "20261120-103501-ppyoloe-1f2e", "20261121-103501-short-0001"
STEP = {"epoch": 0, "step": 2, "steps": 12, "loss": 3.5, "ips": 2.0}


def entry(node, run=OLD, state="completed", **changes):
    """An entry of run_states_info."""
    return {
        **{"run": run, "attempt": 1, "attempts": [1], "node": node, "job": "ppyoloe"},
        **{"state": state, "ended": state != "running", "lost": None, "by": "ml@desk"},
        **{"started": 100.0, "now": 200.0, "nodes": ["node1", "node2"], "epochs": 8},
        **{"first_step": {"epoch": 0, "step": 0}, "unit_of_speed": "images/s", "ranks_in_all": 2},
        **{"step": None, "rank": None, "fraction": None, "log_time": None},
        **changes,
    }


def answer(*entries, others=()):
    """A node's answer."""
    return {"runs": list(entries), "left_out": 0, "others": list(others)}


def record(outcome, verdict=None, number=1, run=OLD):
    """A run.json with the names of its nodes, as index_page.read_records returns it."""
    attempt = {"number": number, "verdict": verdict, "ranks": []}
    return {
        **{"run": run, "job": "ppyoloe", "outcome": outcome, "started": 50.0},
        **{"attempts": [attempt], "nodes": ["node1", "node2"]},
    }


def only(rows):
    """Return the only row."""
    (row,) = rows
    return row


def test_a_run_of_another_controller_is_listed_with_its_step():
    answers = {
        "node1": answer(entry("node1", state="running", step=STEP, rank=0, fraction=0.1)),
        "node2": answer(entry("node2", state="running", rank=None)),
    }
    row = only(run_table.merge(answers, {}, []))
    assert (row.state, row.owner, row.nodes) == ("running", "ml@desk", ["node1", "node2"])
    assert (row.loss, row.speed, row.unit) == (3.5, 2.0, "images/s")
    assert row.progress == "epoch 1/8  step 3/12" and row.goes_on


@pytest.mark.parametrize(
    "states, expected",
    [
        (("completed", "completed"), "completed"),
        (("completed", "failed"), "failed"),
        (("failed", "running"), "running"),
        (("stopped", "lost"), "lost"),
        (("completed", "none"), "none"),
    ],
)
def test_the_worst_state_of_the_nodes_is_the_runs(states, expected):
    answers = {
        f"node{at}": answer(entry(f"node{at}", state=state)) for at, state in enumerate(states, 1)
    }
    assert only(run_table.merge(answers, {}, [])).state == expected


def test_a_verdict_counts_more_than_the_nodes_states():
    answers = {"node1": answer(entry("node1", state="stopped"))}
    verdict = {"outcome": "failed", "code": "verdict.failed", "cause": "killed"}
    row = only(run_table.merge(answers, {OLD: record("failed", verdict)}, []))
    assert (row.state, row.code, row.started) == ("failed", "cause.killed", 50.0)


def test_a_newer_attempt_elsewhere_counts_more_than_an_old_verdict():
    answers = {"node1": answer(entry("node1", state="running", attempt=2))}
    verdict = {"outcome": "failed", "code": "verdict.failed", "cause": "killed"}
    row = only(run_table.merge(answers, {OLD: record("failed", verdict)}, []))
    assert (row.state, row.code, row.attempt) == ("running", None, 2)
    # And a record of attempt 2 is not overruled by nodes that only know attempt 1.
    answers = {"node1": answer(entry("node1", state="failed"))}
    row = only(run_table.merge(answers, {OLD: record("running", number=2)}, []))
    assert (row.state, row.attempt) == ("running", 2)


def test_a_start_that_no_node_knows_is_no_running_run():
    records = {OLD: record("running")}
    assert only(run_table.merge({"node1": answer()}, records, ["node2"])).state == "unknown"
    assert only(run_table.merge({"node1": answer()}, records, ["node2"])).silent == ["node2"]
    # Without any question to a node the record is all there is.
    assert only(run_table.merge({}, records, [])).state == "running"


def test_another_users_attempt_has_its_user_and_nothing_else():
    other = {"run": OLD, "attempt": 3, "unit": "u", "user": "eve"}
    answers = {"node1": answer(others=[other]), "node2": answer(others=[other])}
    row = only(run_table.merge(answers, {}, []))
    assert (row.mine, row.owner, row.nodes, row.job) == (False, "eve", ["node1", "node2"], None)


def test_what_goes_on_comes_first_and_is_never_left_out():
    answers = {
        "node1": answer(
            entry("node1", run=NEW), entry("node1", run=OLD, state="running", attempt=1)
        )
    }
    rows = run_table.merge(answers, {}, [])
    assert [row.run for row in rows] == [OLD, NEW]
    assert [row.run for row in run_table.select(rows, 0)] == [OLD]
    *_table, last = run_table.lines(run_table.select(rows, 0), 1, ["node2"], 200.0)
    assert last.startswith("1 of 1 runs go on") and "node2" in last


@pytest.mark.parametrize(
    "step",
    [
        {"epoch": "x", "step": 2, "loss": "nan?", "ips": True},
        {"epoch": None, "step": None},
        {"step": "\x1b[2J", "loss": 1e308},
    ],
)
def test_a_step_that_is_none_costs_its_figures_only(step):
    answers = {"node1": answer(entry("node1", state="running", step=step, rank=0))}
    rows = run_table.merge(answers, {}, [])
    text = "\n".join(run_table.lines(rows, 0, [], 200.0))
    assert OLD in text and "\x1b" not in text


def test_starts_that_wait_are_listed_in_their_order():
    ids = {name: f"{run}-{'0' * 15}{name}" for name, run in (("1", OLD), ("2", NEW))}
    older, younger = (
        {"id": ids[name], "run": ids[name][:-17], "by": "ml@desk", "since": since, "turn": False}
        for name, since in (("1", 20.0), ("2", 30.0))
    )
    answers = {
        "node1": {**answer(entry("node1")), "tickets": [older, younger]},
        "node2": {**answer(), "tickets": [younger]},
    }
    rows = run_table.waiting_rows(answers)
    assert [(row.run, row.job, row.progress) for row in rows] == [
        (OLD, "ppyoloe", "place 1 of 2"),
        (NEW, "short", "place 2 of 2"),
    ]
    assert [row.nodes for row in rows] == [["node1"], ["node1", "node2"]]
    table = run_table.lines([*rows, *run_table.merge(answers, {}, [])], 0, [], 200.0)
    assert "0 of 1 runs" in table[-1] and "2 more" in table[-1]
