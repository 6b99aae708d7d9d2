# SPDX-License-Identifier: Apache-2.0
"""The pace of earlier runs, `checkpoint_every` in a suite's own unit, and what a fault costs."""

from __future__ import annotations

import json
import math

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import pace
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import (
    checkpoint_interval,
    pace_history,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file

RUN = "20261127-151304-mine-535c"
# Steps of 2 s, epochs of 100 steps, a save of 5 s.
PACE = pace_history.Pace(RUN, step=2.0, epoch_steps=100, save=5.0, start=30.0)
PLAN = {
    "accelerator": "cpu",
    "job": {"suite": "paddledetection", "config": "a.yml"},
    "ranks": [{}, {}],
    "settings": {"batch_per_card": 4},
    "data": {"coco": "d"},
}


def inputs(arguments=(), **overrides):
    return {
        "overrides": overrides,
        "arguments": list(arguments),
        "config": {"save_interval": overrides.get("snapshot_epoch", 8)},
    }


# --- pace.json


def attempt(times, steps, phases=()):
    series = {0: {"time": times, "step": steps}, 1: {"time": [], "step": []}}
    return {"number": 3, "begin": times[0] - 12, "series": series, "phases": phases}


def phase(kind, begin, end, rank=0):
    return {"rank": rank, "phase": kind, "begin": begin, "end": end}


def test_pace_counts_pauses_between_the_first_and_the_last_step():
    phases = [
        phase("checkpoint", 120.0, 123.0),
        phase("evaluation", 123.0, 127.0),
        phase("checkpoint", 150.0, 151.0, rank=1),
        phase("checkpoint", 200.0, 260.0),
    ]
    found = pace.measure(
        attempt([100.0, None, 200.0], [1, 5, 51], phases),
        [{"rank": 1, "last_step": {"steps": 7}}, {"rank": 0, "last_step": {"steps": 40}}],
    )
    assert found == {
        "attempt": 3,
        "steps": 50,
        "seconds": 100.0,
        "epoch_steps": 40,
        "saves": 1,
        "pause_seconds": 7.0,
        "start_seconds": 12.0,
    }


@pytest.mark.parametrize(
    "times, steps",
    [([100.0, 119.0], [1, 51]), ([100.0, 200.0], [1, 9]), ([100.0], [1]), ([100.0, 90.0], [1, 60])],
)
def test_a_short_log_has_no_pace(times, steps):
    assert pace.measure(attempt(times, steps), []) is None


# --- the records of earlier runs


def record(runs, run, value, **plan):
    (runs / run).mkdir()
    (runs / run / "pace.json").write_text(json.dumps(value))
    (runs / run / "plan.json").write_text(json.dumps(dict(PLAN, **plan)))


def test_the_newest_comparable_run_tells(tmp_path):
    known = {"steps": 100, "seconds": 200.0, "saves": 2, "pause_seconds": 10.0}
    known.update(start_seconds=30.0, epoch_steps=100)
    record(tmp_path, "20261127-151303-mine-0000", dict(known, seconds=900.0))
    record(tmp_path, RUN, known)
    record(tmp_path, "20261127-151305-mine-0001", known, ranks=[{}])
    record(tmp_path, "20261127-151306-mine-0002", known, settings={"batch_per_card": 8})
    record(tmp_path, "20261127-151307-mine-0003", known, data={"coco": "e"})
    record(tmp_path, "20261127-151308-mine-0004", known, accelerator="gpu")
    record(tmp_path, "20261127-151309-mine-0005", dict(known, steps=0))
    record(tmp_path, "20261127-151310-other-0006", known)
    assert pace_history.find(str(tmp_path), "mine", PLAN) == PACE
    assert pace_history.find(str(tmp_path), "min", PLAN) is None
    assert pace_history.find(str(tmp_path / "none"), "mine", PLAN) is None


@pytest.mark.parametrize(
    "value", [[], {"steps": "x"}, {"steps": True, "seconds": 1}, {"steps": -1}]
)
def test_a_file_of_another_shape_is_passed_over(tmp_path, value):
    record(tmp_path, RUN, value)
    assert pace_history.find(str(tmp_path), "mine", PLAN) is None


# --- checkpoint_every


@pytest.mark.parametrize(
    "every, count", [("1h", 18), ("15m", 4), ("200s", 1), ("10s", 1), ("401s", 2)]
)
def test_epochs_are_counted_down(every, count):
    suite = suite_file.load("paddledetection")
    found = checkpoint_interval.translate(every, suite, inputs(epoch=36), PACE)
    assert found.overrides == {"epoch": 36, "snapshot_epoch": count}
    assert (found.number, found.arguments, found.warning) == (count, [], "")
    (line,) = found.lines
    assert RUN in line and f"snapshot_epoch={count}" in line and "in place of 8" in line


def test_iterations_replace_an_option_in_each_of_its_forms():
    suite = suite_file.load("paddleseg")
    given = ["--save_interval", "1000", "--do_eval", "--save_interval=5"]
    found = checkpoint_interval.translate("15m", suite, inputs(given), PACE)
    assert found.arguments == ["--do_eval", "--save_interval", "450"]
    assert found.overrides == {}


@pytest.mark.parametrize("step", [1.9620, 1.9680])
def test_a_slightly_other_pace_leaves_the_plan_as_it_is(step):
    found = checkpoint_interval.translate(
        "1h", suite_file.load("paddleseg"), inputs(), PACE._replace(step=step)
    )
    assert found.number == 1800


@pytest.mark.parametrize(
    "name, pace_known",
    [
        ("paddleocr", PACE),
        ("mindocr", PACE),
        ("paddledetection", None),
        ("paddledetection", PACE._replace(epoch_steps=None)),
    ],
)
def test_what_cannot_be_computed_changes_nothing(name, pace_known):
    suite = suite_file.load(name)
    found = checkpoint_interval.translate("15m", suite, inputs(["-x"], epoch=3), pace_known)
    assert found.warning and not found.lines
    assert (found.overrides, found.arguments, found.number) == ({"epoch": 3}, ["-x"], None)


# --- the cost of a fault


NINE = {"save_interval": 9, "epochs": 300}


def best_seconds(lines):
    return next(line for line in lines if "best about every" in line)


def test_the_best_interval_follows_young():
    suite = suite_file.load("paddledetection")
    lines = checkpoint_interval.describe_cost(suite, NINE, PACE, 8000.0, 32)
    assert "every 30 min" in lines[0] and "15 min" in lines[0] and "30 s to the next" in lines[0]
    minutes = int(math.sqrt(2 * 5.0 * 8000 * 3600 / 32) / 60)
    assert f"every {minutes} min" in best_seconds(lines)


def test_no_interval_is_shorter_than_the_suite_can_save():
    suite = suite_file.load("paddledetection")
    lines = checkpoint_interval.describe_cost(suite, NINE, PACE._replace(save=0.001), 1.0, 512)
    assert "every 3 min" in best_seconds(lines)


@pytest.mark.parametrize("pace", [None, PACE])
def test_a_training_that_saves_only_at_its_end_is_named(pace):
    suite = suite_file.load("paddledetection")
    for interval, said in ((8, True), (9, True), (7, False)):
        config = {"save_interval": interval, "epochs": 8}
        lines = checkpoint_interval.describe_cost(suite, config, pace, 8000.0, 2)
        assert any("checkpoint_every" in line for line in lines) is said


def test_what_is_not_known_is_not_said():
    suite = suite_file.load("paddledetection")
    assert checkpoint_interval.describe_cost(suite, NINE, None, 8000.0, 2) == []
    assert checkpoint_interval.describe_cost(suite, {}, PACE, 8000.0, 2) == []
    assert (
        len(checkpoint_interval.describe_cost(suite, NINE, PACE._replace(save=None), 8e3, 2)) == 1
    )
    # one that saves after every epoch has no key to read
    assert checkpoint_interval.describe_cost(suite_file.load("mindocr"), {}, PACE, 8e3, 2)
