# SPDX-License-Identifier: Apache-2.0
"""The live view as text: states in, lines out."""

from __future__ import annotations

import pytest
from ansible.module_utils.trainyard import live

STEP = {"epoch": 0, "step": 2, "steps": 8, "loss": 5.294779, "ips": 0.3429, "eta": 73}
FIRST = {"epoch": 0, "step": 0}


def rank(number, state="training", **changes):
    return dict({"rank": number, "state": state, "signal": None, "exit_code": None, "step": None, "fraction": None}, **changes)


def status(node, *ranks, **changes):
    return dict(
        {
            "found": True,
            "node": node,
            "run": "R",
            "job": "ppyoloe",
            "state": "running",
            "ended": False,
            "nodes": ["node1", "node2"],
            "ranks": list(ranks),
            "started": 100.0,
            "now": 225.0,
            "epochs": 3,
            "unit_of_speed": "images/s",
            "first_step": FIRST,
        },
        **changes,
    )


@pytest.mark.parametrize(
    "seconds, text", [(0, "0:00"), (None, "0:00"), (-5, "0:00"), (59.9, "0:59"), (65, "1:05"), (3600, "1:00:00"), (90061, "25:01:01")]
)
def test_durations(seconds, text):
    assert live.duration(seconds) == text


@pytest.mark.parametrize("fraction, text", [(None, "[    ]"), (0, "[....]"), (0.5, "[##..]"), (1, "[####]"), (7, "[####]"), (-1, "[....]")])
def test_bars(fraction, text):
    assert live.bar(fraction, 4) == text


@pytest.mark.parametrize(
    "step, epochs, first, text",
    [
        (STEP, 3, FIRST, "epoch 1/3  step 3/8  loss 5.295  0.34 images/s  ETA 1:13"),
        (STEP, None, {"epoch": 1, "step": 1}, "epoch 0  step 2/8  loss 5.295  0.34 images/s  ETA 1:13"),
        (dict(STEP, epochs=9), 3, FIRST, "epoch 1/9  step 3/8  loss 5.295  0.34 images/s  ETA 1:13"),
        ({"loss": float("nan")}, None, None, "loss nan"),
        ({}, 3, FIRST, ""),
        (None, 3, FIRST, ""),
    ],
)
def test_a_step_says_only_what_the_log_says(step, epochs, first, text):
    assert live.step_text(step, epochs, "images/s", first) == text


@pytest.mark.parametrize(
    "ranks, text",
    [
        ([rank(0)], "rank 0 training"),
        ([rank(n) for n in range(8)], "8 ranks training"),
        ([rank(0), rank(1, "starting"), rank(2)], "rank 0,2 training, rank 1 starting"),
        (
            [rank(0), rank(1, "failed", exit_code=7), rank(2, "failed", signal="SIGKILL")],
            "rank 0 training, rank 1 failed (exit code 7), rank 2 failed (SIGKILL)",
        ),
    ],
)
def test_ranks_in_few_words(ranks, text):
    assert live.rank_text(ranks) == text


def test_a_nodes_line_has_the_first_step_that_is_known():
    line = live.node_line(status("node2", rank(2, "starting"), rank(3, step=STEP)), 200)
    assert line == "node2      running   rank 2 starting, rank 3 training  epoch 1/3  step 3/8  loss 5.295  0.34 images/s  ETA 1:13"
    assert len(live.node_line(status("node2", rank(3, step=STEP)), 40)) == 40
    assert live.node_line({"found": False, "node": "node9"}) == "node9      no such run here"


def test_the_runs_line():
    nodes = [status("node1", rank(0, fraction=0.25)), {"found": False, "node": "node3"}, status("node2", rank(1))]
    assert live.head_line(nodes) == "R  ppyoloe  2 nodes, 2 ranks  2:05 [#####...............]  25 %"
    assert live.head_line([]) == "no such run" and "%" not in live.head_line([status("node1", rank(0))])


@pytest.mark.parametrize(
    "change, differs",
    [
        ({"now": 300.0}, False),
        ({"state": "failed"}, True),
        ({"ranks": [rank(0, "done")]}, True),
        ({"ranks": [rank(0, step=dict(STEP, step=3))]}, True),
        ({"ranks": [rank(0, step=dict(STEP, loss=1.0))]}, False),
    ],
)
def test_a_plain_line_is_worth_printing_when_something_changed(change, differs):
    before = status("node1", rank(0, step=STEP))
    assert (live.change_key(before) != live.change_key(dict(before, **change))) == differs
