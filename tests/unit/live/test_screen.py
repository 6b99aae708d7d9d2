# SPDX-License-Identifier: Apache-2.0
"""The live view as text: what is known in, lines out. The helpers make statuses as
library/attempt_monitor.py returns them.
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import text_columns
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import (
    model,
    plain_lines,
    screen,
)

STEP = {"epoch": 0, "step": 2, "steps": 8, "loss": 5.294779, "ips": 0.3429, "eta": 73}
FIRST = {"epoch": 0, "step": 0}


def rank(number, state="training", **changes):
    return dict(
        {
            "rank": number,
            "state": state,
            "signal": None,
            "exit_code": None,
            "step": None,
            "fraction": None,
        },
        **changes,
    )


def status(node, *ranks, **changes):
    return dict(
        {
            "found": True,
            "node": node,
            "run": "R",
            "attempt": 1,
            "job": "ppyoloe",
            "state": "running",
            "ended": False,
            "nodes": ["node1", "node2"],
            "ranks": list(ranks),
            "started": 100.0,
            "now": 225.0,
            "exit": None,
            "epochs": 3,
            "unit_of_speed": "images/s",
            "first_step": FIRST,
            "accelerator": None,
            "ranks_in_all": 2,
            "only_first_prints": True,
            "main_figure": "ap",
            "disk": {"free": 100 << 30, "total": 200 << 30},
        },
        **changes,
    )


def seen(*statuses, seconds=0.0):
    """Return a watch.Watch that has seen these statuses, one after the other."""
    found = model.Watch()
    for item in statuses:
        found.add(item["node"], item, seconds)
    return found


def shown(found, wide=100, rows=24, seconds=0.0, utf8=False):
    """Return the picture's lines as plain text, after holding each against the terminal's size."""
    lines = screen.picture(found, seconds, screen.Look(wide, rows, utf8))
    texts = ["".join(text for text, _style in line) for line in lines]
    assert len(texts) < rows and all(text_columns.width(text) < wide for text in texts), texts
    assert {style for line in lines for _text, style in line} <= {None, *screen.STYLES}
    return texts


# --- words


@pytest.mark.parametrize(
    "step, epochs, first, text",
    [
        (STEP, 3, FIRST, "epoch 1/3  step 3/8  loss 5.295  0.34 images/s  ETA 1:13"),
        (
            STEP,
            None,
            {"epoch": 1, "step": 1},
            "epoch 0  step 2/8  loss 5.295  0.34 images/s  ETA 1:13",
        ),
        (
            dict(STEP, epochs=9),
            3,
            FIRST,
            "epoch 1/9  step 3/8  loss 5.295  0.34 images/s  ETA 1:13",
        ),
        ({"loss": None}, None, None, "loss nan"),  # logs.py: JSON has no NaN
        (
            {"loss": "1.2.3", "ips": "-", "eta": None},
            None,
            None,
            "loss nan",
        ),  # what only looks like a number
        (
            {"global_step": 15, "total_steps": 30, "epoch": 1},
            None,
            {"epoch": 1, "global_step": 1},
            "epoch 1  step 15/30",
        ),
        ({}, 3, FIRST, ""),
        (None, 3, FIRST, ""),
    ],
)
def test_a_step_says_only_what_the_log_says(step, epochs, first, text):
    assert screen.step_text(step, epochs, "images/s", first) == text


@pytest.mark.parametrize(
    "ranks, text",
    [
        ([rank(0)], "rank 0 training"),
        ([rank(n) for n in range(8)], "8 ranks training"),
        ([rank(0), rank(1, "starting"), rank(2)], "rank 0,2 training, rank 1 starting"),
        (
            [rank(8), *(rank(n, "running") for n in range(9, 16))],
            "rank 8 training, rank 9-15 running",
        ),
        (
            [rank(0), rank(1, "failed", exit_code=7), rank(2, "failed", signal="SIGKILL")],
            "rank 0 training, rank 1 failed (exit code 7), rank 2 failed (SIGKILL)",
        ),
    ],
)
def test_ranks_in_few_words(ranks, text):
    assert screen.rank_text(ranks) == text


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"accelerator": "gpu", "ranks_in_all": 16}, "2 nodes x 8 gpu"),
        ({"nodes": ["a"], "ranks_in_all": 1, "accelerator": "cpu"}, "1 node x 1 cpu"),
        ({"ranks_in_all": 3}, "2 nodes, 3 ranks"),
    ],
)
def test_the_size_of_a_run(changes, text):
    assert screen.size_text(status("node1", **changes)) == text


# --- plain lines


def test_a_nodes_line_has_the_first_step_that_is_known():
    line = screen.node_line(status("node2", rank(2, "starting"), rank(3, step=STEP)))
    assert (
        line
        == "node2      running   rank 2 starting, rank 3 training  epoch 1/3  step 3/8  loss 5.295 "
        " 0.34 images/s  ETA 1:13"
    )
    assert screen.node_line({"found": False, "node": "node9"}) == "node9      no such run here"
    assert "ETA" not in screen.node_line(
        status("node2", rank(3, step=STEP), ended=True, state="completed")
    )


def test_evaluations_and_warnings_are_said_once_in_a_pipe():
    found, said = model.Watch(), plain_lines.Ticker()

    def look(second, **changes):
        found.add("node1", status("node1", rank(0, step=STEP, **changes)), float(second))
        return [text for text, _style in said.lines(found, "node1", float(second))]

    assert look(0)[0] == "run R, job ppyoloe, 2 nodes"
    evaluation = {"ap": 0.25, "ap50": 0.5, "epoch": 0, "line": None}
    assert look(3, evaluation=evaluation) == ["evaluation  ap 0.25  ap50 0.5  (epoch 1)"]
    assert look(6, evaluation=evaluation) == []
    assert look(9, nan={"loss": "nanxxx", "epoch": 0, "step": 4}) == [
        "warning: loss is nan since epoch 1/3 step 5 (rank 0 on node1)"
    ]
    assert look(12) == []
    found.add("node1", status("node1", rank(0), attempt=2), 15.0)
    assert said.lines(found, "node1", 15.0)[0][0] == "run R, job ppyoloe, 2 nodes, attempt 2"


# --- the picture


def test_the_picture_of_two_nodes():
    evaluation = {"ap50": 0.5, "ap": 0.25, "epoch": 0, "line": None, "best_ap": None}
    first = status(
        "node1", rank(0, step=dict(STEP, step=1, loss=7.0), fraction=0.125), accelerator="gpu"
    )
    later = dict(first, now=228.0, ranks=[rank(0, step=STEP, fraction=0.25, evaluation=evaluation)])
    assert shown(seen(first, status("node2", rank(1, "running")), later), 80) == [
        "ppyoloe  2 nodes x 1 gpu  elapsed 2:08  ETA 1:13  run R",
        "[##########..............................]  25 %  epoch 1/3  step 3/8",
        "loss 5.295  #_  0.69 images/s (2 x 0.34)",
        "evaluation  ap 0.25  ap50 0.5  (epoch 1)",
        "node1   running     rank 0 training",
        "node2   running     rank 1 running",
    ]


def test_before_the_first_step_and_after_the_end():
    starting = status("node1", rank(0, "starting"))
    assert shown(seen(starting))[1:] == [
        "[%s]" % (" " * 40),
        "node1   running     rank 0 starting",
        "node2   -           not asked yet",
    ]
    over = [
        status(
            "node%d" % n,
            rank(n - 1, "done", step=STEP if n == 1 else None, fraction=0.9),
            ended=True,
            state="completed",
            exit={"time": 190.0},
        )
        for n in (1, 2)
    ]
    lines = shown(seen(*over), seconds=5000.0)
    assert (
        lines[0] == "ppyoloe  2 nodes x 1 rank  elapsed 1:30  run R"
    )  # until its end, not until now; nothing is left to do
    assert (
        "100 %" in lines[1]
        and "images/s" not in lines[2]
        and lines[-1] == "node2   completed   rank 1 done"
    )
    assert shown(seen({"found": False, "ended": True, "state": "none", "node": "node1"})) == [
        "node1   none        no such run here"
    ]


def test_a_node_of_the_run_that_does_not_know_it_is_shown_whoever_is_asked_first():
    unknown = {"found": False, "ended": True, "state": "none", "node": "node2"}
    for order in ((unknown, status("node1", rank(0))), (status("node1", rank(0)), unknown)):
        assert shown(seen(*order))[-1] == "node2   none        no such run here"


def test_an_attempt_after_the_first_is_named():
    assert "attempt 3" in shown(seen(status("node1", rank(0), attempt=3)))[0]


def own(number, node, ips=2.0, step=20, **changes):
    return status(
        node,
        rank(number, step=dict(STEP, step=step, steps=100, ips=ips)),
        only_first_prints=False,
        ranks_in_all=3,
        **changes,
    )


def test_the_slowest_rank_is_named_where_ranks_have_a_speed_of_their_own():
    nodes = ["node1", "node2", "node3"]
    lines = shown(
        seen(
            own(0, "node1", nodes=nodes),
            own(1, "node2", 1.0, nodes=nodes),
            own(2, "node3", nodes=nodes),
        )
    )
    assert "slowest rank 1 on node2: 1.00 images/s, 50 % of the median 2.00" in lines
    assert (
        "loss 5.295  _  5.00 images/s (3 ranks)" in lines
        and "node2   running     rank 1 training  step 21/100  1.00 images/s" in lines
    )
    lines = shown(
        seen(
            own(0, "node1", nodes=nodes),
            own(1, "node2", nodes=nodes),
            own(2, "node3", step=2, nodes=nodes),
        )
    )
    assert (
        "slowest rank 2 on node3: 2.00 images/s, 100 % of the median 2.00, 18 steps behind" in lines
    )
    # A suite that prints on its first rank only has nothing to compare.
    assert not any(
        "slowest" in line
        for line in shown(
            seen(status("node1", rank(0, step=STEP)), status("node2", rank(1, "running")))
        )
    )


def many(count=64, **odd):
    """Return the statuses of so many nodes with eight ranks each; odd: node's name -> changes of
    its status.
    """
    names = ["node%d" % (n + 1) for n in range(count)]
    found = []
    for index, name in enumerate(names):
        ranks = [rank(8 * index + local, "running") for local in range(8)]
        if index == 0:
            ranks[0] = rank(0, step=STEP, fraction=0.1)
        found.append(status(name, *ranks, nodes=names, ranks_in_all=8 * count, accelerator="gpu"))
        found[-1].update(odd.get(name, {}))
    return found


def test_many_nodes_are_put_together_and_the_exceptions_have_names():
    dead = {
        "state": "failed",
        "ended": True,
        "ranks": [
            rank(128 + n, "failed", signal="SIGKILL" if n == 3 else "SIGABRT") for n in range(8)
        ],
    }
    found = seen(*many(node17=dead, node9={"ranks": [rank(64 + n, "starting") for n in range(8)]}))
    found.lose("node20")
    assert shown(found)[3:] == [
        "node17      failed      rank 128-130,132-135 failed (SIGABRT), rank 131 failed (SIGKILL)",
        "node20      unreachable 8 ranks running",
        "60 nodes    running     8 ranks running each  node[2-8,10-16,18-19,21-64]",
        "node1       running     rank 0 training, rank 1-7 running",
        "node9       running     8 ranks starting",
    ]
    assert shown(found, rows=5)[-1] == "64 nodes  1 failed, 1 unreachable, 62 running"
    assert shown(found, rows=6)[-2:] == [shown(found)[3], "63 more nodes in 4 other states"]


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 8, 24, 80])
@pytest.mark.parametrize("wide", [20, 60, 80, 200])
@pytest.mark.parametrize("count", [1, 2, 16, 17, 64])
def test_it_fits_every_terminal(wide, rows, count):
    found = seen(*many(count, node1={"disk": {"free": 0, "total": 10}, "job": "训练任务" * 20}))
    lines = shown(found, wide, rows)  # which holds every line against the terminal
    assert lines[0].startswith("训练") and (
        rows < 8 or any("disk nearly full" in line for line in lines) or wide == 20
    )


def test_names_of_two_columns_keep_the_columns_straight():
    nodes = ["节点一", "n2"]
    lines = shown(seen(*(status(name, rank(n), nodes=nodes) for n, name in enumerate(nodes))))[-2:]
    assert lines == ["节点一  running     rank 0 training", "n2      running     rank 1 training"]


def test_only_the_first_warnings_are_shown():
    found = seen(
        status(
            "node1",
            rank(0, step=STEP, nan={"loss": "nan"}),
            rank(1, "waiting"),
            started=-900.0,
            disk={"free": 0, "total": 9},
        )
    )
    found.nodes["node1"].ahead = 99.0
    found.paces[0].changed = -900.0
    lines = shown(found, seconds=60.0)
    assert [line for line in lines if line.startswith("! ")][3] == "! and 3 more warnings" and len(
        lines
    ) == 9


# --- over what stood before


@pytest.mark.parametrize(
    "stood, width, up",
    [
        ([], 80, "\r"),
        ([70, 0, 30], 80, "\r\x1b[3A"),
        ([70, 30], 60, "\r\x1b[3A\x1b[J"),  # narrower now: the first line takes two rows
        ([79], 79, "\r\x1b[1A"),
    ],
)
def test_how_far_up_the_next_picture_begins(stood, width, up):
    assert screen.repaint(stood, width, ["new"]) == up + "new\x1b[K\n\x1b[J"
