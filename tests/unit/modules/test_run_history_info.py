# SPDX-License-Identifier: Apache-2.0
"""What has happened in a run so far, as it is told to a person who comes to it later. It is read
from the attempts on the nodes.
"""

from __future__ import annotations

import json

import pytest
import run_history_info as module
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import parser
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import history
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.history_text import (
    describe_end,
    describe_history,
)
from core_support import RUN, compiled, put

STEP = (
    "[11/20 09:29:26] ppdet.engine.callbacks INFO: Epoch: [%d] [%d/2] learning_rate: 0.000500 loss:"
    " %.6f eta: 0:01:13 batch_cost: 5.8334 data_cost: 0.0026 ips: 0.3429 images/s\n"
)
EVALUATED = (
    "[11/20 09:30:00] ppdet.metrics.coco_utils INFO:  Average Precision  (AP) @[ IoU=0.50:0.95 |"
    " area=   all | maxDets=100 ] = 0.%d\n"
)
LOG = (
    "".join(STEP % (epoch, step, 9 - epoch) for epoch in (0, 1) for step in (0, 1))
    + EVALUATED % 125
    + STEP % (2, 0, 7)
    + EVALUATED % 250
)


def end(rank, code=None, signal=None):
    return json.dumps({"event": "end", "rank": rank, "exit_code": code, "signal": signal}) + "\n"


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Two nodes: attempt 1 was ended by SIGKILL of rank 1, attempt 2 resumed and goes on. Returns
    the modules' looks by node.
    """
    made = compiled(count=2, devices=1)
    for node in ("node1", "node2"):
        base = tmp_path / node / ".trainyard"
        for number, started in ((1, 1000.0), (2, 2000.0)):
            plan = dict(made, resume={"epoch": 1, "step": 4, "name": "1"}) if number == 2 else made
            record = {"run": RUN, "started": started, "by": "ann@desk"}
            put(
                attempt_dir.attempt_dir(str(base), RUN, number),
                {"plan.json": json.dumps(plan), "attempt.json": json.dumps(record)},
            )
        first = attempt_dir.attempt_dir(str(base), RUN, 1)
        put(
            first,
            {
                "exit.json": json.dumps({"service_result": "exit-code", "time": 1500.0}),
                "ranks.jsonl": end(0, 250),
            },
        )
        if node == "node2":
            put(
                first,
                {
                    "ranks.jsonl": end(1, None, "SIGKILL\x1b[2J"),
                    "stop.json": json.dumps({"by": "peer"}),
                },
            )
        else:
            put(first, {"log/workerlog.0": LOG})
    return tmp_path


def lines(run_module, monkeypatch, nodes, *names):
    looks = []
    for name in names:
        monkeypatch.setenv("HOME", str(nodes / name))
        looks.append(run_module(module, {"run_id": RUN, "node": name})["history"])
    return describe_history(looks, now=2720.0)


def test_the_history_of_a_run_that_was_resumed(run_module, monkeypatch, nodes):
    assert lines(run_module, monkeypatch, nodes, "node1", "node2") == [
        (
            "attempt 1, begun 28:40 ago (1970-01-01 00:16:40 UTC) by ann@desk on node1, node2:"
            " failed: rank 0 on node1 exit code 250, rank 1 on node2 SIGKILL\\x1b[2J"
        ),
        "  epoch 1/300 done, loss 9",
        "  epoch 2/300 done, loss 8",
        "  evaluation after epoch 2: ap 0.125",
        "  evaluation after epoch 3: ap 0.25",
        "  5 step lines so far",
        (
            "attempt 2, begun 12:00 ago (1970-01-01 00:33:20 UTC) by ann@desk, resumed from 1"
            " (epoch 1, step 4) on node1, node2: goes on"
        ),
    ]


def test_a_node_that_does_not_answer_is_missing_and_no_more(run_module, monkeypatch, nodes):
    told = lines(run_module, monkeypatch, nodes, "node2")
    assert len(told) == 2 and "rank 1 on node2 SIGKILL" in told[0] and told[1].endswith("goes on")


@pytest.mark.parametrize(
    "parts, words",
    [
        ([{"ended": 1.0, "well": True}, {"ended": 1.0, "well": True}], "completed"),
        ([{"ended": 1.0, "stop": {"by": "user", "from": "bob@desk"}}], "stopped by bob@desk"),
        ([{"ended": 1.0}, {"ended": None}], "goes on or has written no end on b"),
        ([{"ended": 1.0}], "failed"),
    ],
)
def test_how_an_attempt_ended(parts, words):
    whole = [
        dict({"ended": None, "well": False, "stop": None, "ends": []}, **part) for part in parts
    ]
    assert describe_end(list(zip("ab", whole))) == words


def test_the_end_of_a_long_log_is_enough(tmp_path):
    put(
        tmp_path, {"log": STEP % (0, 0, 1) + "x" * 5000 + "\n" + STEP % (1, 0, 2) + EVALUATED % 500}
    )
    table = parser.Table(compiled()["suite"]["logs"])
    assert history.read_log_history(str(tmp_path), "log", table)["steps"] == 2
    found = history.read_log_history(str(tmp_path), "log", table, most=1000)
    assert (found["steps"], [item["ap"] for item in found["evaluations"]]) == (1, [0.5])
    assert history.read_log_history(str(tmp_path), "none", table) is None


@pytest.mark.parametrize("wrong", [7, [7], [{"number": 1}], [{"number": [], "started": 1}]])
def test_a_history_of_another_shape_costs_its_node_only(run_module, monkeypatch, nodes, wrong):
    honest = lines(run_module, monkeypatch, nodes, "node2")
    monkeypatch.setenv("HOME", str(nodes / "node2"))
    look = run_module(module, {"run_id": RUN, "node": "node2"})["history"]
    found = describe_history([{"run": RUN, "node": "node1", "attempts": wrong}, look], now=2720.0)
    assert found[:-1] == honest and "node1" in found[-1]
