# SPDX-License-Identifier: Apache-2.0
"""The metrics of a run that goes on, read as Prometheus reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import model
from ansible_collections.trainyard.cluster.plugins.plugin_utils.monitor import (
    follower,
    live_metrics,
)
from prometheus_client.parser import text_string_to_metric_families
from unit.live.test_screen import STEP, rank, status

RUN = "20261120-190935-raise-1b3e"
STALL = {"phase": "step", "budget": 60.0, "seconds": 61.0, "since": 1.0, "time": 62.0, "step": None}


def read(path):
    """Return {(name without prefix, labels beside run, job): value} of a file."""
    found = {}
    for family in text_string_to_metric_families(Path(path).read_text()):
        for sample in family.samples:
            more = [value for key, value in sample.labels.items() if key not in ("run", "job")]
            found[(sample.name.removeprefix("trainyard_run_"), *more)] = sample.value
    return found


@pytest.fixture
def place(tmp_path):
    (tmp_path / "collector").mkdir()
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    (tmp_path / "runs" / RUN / "plan.json").write_text(
        json.dumps({"site": "lab", "suite": {"name": "paddleseg"}, "ranks": [{}, {}]})
    )
    return tmp_path


def metrics(place, follows=True):
    return live_metrics.RunMetrics(
        str(place / "runs"), str(place / "collector"), "lab", follows=follows
    )


def watched(*statuses):
    watch = model.Watch()
    for one in statuses:
        watch.add(one["node"], one, 0.0)
    return watch


def both(log_time=220.0, step=STEP, **changes):
    first = rank(0, step=step, log_time=log_time)
    return [
        status(name, *ranks, **{"run": RUN, "attempt": 2, **changes})
        for name, ranks in (("node1", [first]), ("node2", [rank(1, "running")]))
    ]


def test_the_figures_of_a_run_that_goes_on(place):
    writer = metrics(place)
    writer.write(watched(*both()), 0.0, 1000.0)
    copy = place / "collector" / f"trainyard-lab-{RUN}.prom"
    found = read(copy)
    expected = {
        ("state", "running"): 1,
        ("state", "completed"): 0,
        ("outcome", "completed"): 0,
        ("hung",): 0,
        ("attempt",): 2,
        ("restarts",): 1,
        ("nodes", "running"): 2,
        ("nodes", "silent"): 0,
        ("ranks", "training"): 1,
        ("epoch",): 1,
        ("last_step",): 3,
        ("loss",): 5.294779,
        ("throughput", "images/s"): 2 * 0.3429,
        ("last_sign_of_life_timestamp_seconds",): 995.0,  # 5 s ago by the node's own clock
        ("followed_timestamp_seconds",): 1000.0,
        ("info", "", "lab", "paddleseg"): 1,
    }
    assert {key: found.get(key) for key in expected} == pytest.approx(expected)
    assert read(place / "runs" / RUN / "metrics.prom") == found
    assert sorted(os.listdir(copy.parent)) == [copy.name]


def test_a_sign_of_life_is_a_change(place):
    writer, watch = metrics(place), watched(*both())
    path = place / "collector" / f"trainyard-lab-{RUN}.prom"
    key = ("last_sign_of_life_timestamp_seconds",)
    writer.write(watch, 0.0, 1000.0)
    watch.add("node1", both(now=300.0)[0], 1.0)
    writer.write(watch, 1.0, 1075.0)
    assert read(path)[key] == 995.0, "a new answer with nothing new"
    watch.add("node1", both(now=360.0, step=dict(STEP, step=4))[0], 2.0)
    writer.write(watch, 2.0, 1135.0)
    assert read(path)[key] == 1135.0


@pytest.mark.parametrize(
    "states, expected",
    [
        (("completed", "completed"), "completed"),
        (("completed", "failed"), "failed"),
        (("failed", "lost"), "lost"),
        (("stopped", "failed"), "failed"),
        (("completed", None), "unknown"),
    ],
)
def test_a_run_is_as_bad_as_its_worst_node(place, states, expected):
    names = ("node1", "node2")
    statuses = [
        status(name, run=RUN, state=state, ended=True)
        for name, state in zip(names, states, strict=True)
        if state
    ]
    metrics(place).write(watched(*statuses), 0.0, 1000.0)
    found = read(place / "runs" / RUN / "metrics.prom")
    assert [key[1] for key, value in found.items() if key[0] == "state" and value] == [expected]
    assert found["nodes", "silent"] == states.count(None)


def test_an_exporter_keeps_the_time_of_the_follower(place):
    path = place / "collector" / f"trainyard-lab-{RUN}.prom"
    look = metrics(place, follows=False)
    look.write(watched(*both()), 0.0, 900.0)
    assert ("followed_timestamp_seconds",) not in read(path)
    metrics(place).write(watched(*both()), 0.0, 1000.0)
    look.write(watched(*both()), 0.0, 1100.0)
    found = read(path)
    assert found["followed_timestamp_seconds",] == 1000.0
    assert found["seen_timestamp_seconds",] == 1100.0


def told(place, entries, **more):
    """Return the events that a follower told of some answers, by a command that keeps them."""
    log = place / "told"
    command = ["sh", "-c", 'cat >> "$0"; echo >> "$0"', str(log)]
    channel = {"index": 0, "url": "", "command": command, "template": "generic", "secret": ""}
    channel["on"] = list(follower.EVENTS)
    one = follower.Follower("lab", str(place / "runs"), str(place / "collector"), [channel])
    for entry in entries:
        one.add(entry["node"], entry)
        assert one.notifier.problems(wait=True) == []
    if more:
        one.end(more)
        assert one.notifier.problems(wait=True) == []
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_the_events_of_an_attempt(place):
    stall = both(now=350.0, guard={"stall": STALL})
    verdict = {"outcome": "failed", "cause": "hang", "text": "it hung\x1b[2J"}
    events = told(place, [*both(), *both(), *stall], run=RUN, attempt=2, verdict=verdict)
    assert [event["event"] for event in events] == ["restarted", "hung", "failed"]
    assert {(event["run"], event["attempt"], event["site"]) for event in events} == {
        (RUN, 2, "lab")
    }
    assert events[2]["code"] == "hang" and "\x1b" not in events[2]["text"]
    assert events[1]["nodes"] == ["node1", "node2"]


def test_a_command_that_comes_later_does_not_tell_of_the_start(place):
    assert told(place, both(started=0.0, now=1000.0)) == []
    assert [event["event"] for event in told(place, both(attempt=1))] == ["started"]
