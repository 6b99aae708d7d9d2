# SPDX-License-Identifier: Apache-2.0
"""The budget of a step follows the run's own pace: days that were recorded and days that are made
up, without a false alarm, and stops that are noticed soon.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import guard, phase_watchdog
from core_support import ROOT, attempt_files, compiled, put
from unit.agent.test_phase_watchdog import STEP, SUITES, feed, phases_of

DAY = 86400.0
LOGS = ROOT / "tests/samples/logs"
DAYS = sorted((ROOT / "tests/samples/step_times").glob("*.txt"))
# Of each suite: a log that was recorded, and what it prints between the steps.
RECORDED = {
    "paddledetection": (
        "paddledetection_ppyoloe_s_2x2/node1/workerlog.0",
        [
            "Save checkpoint: /srv/out/model\n",
            " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.1\n",
        ],
    ),
    "paddleocr": (
        "paddleocr_crnn_2x2/node1/workerlog.0",
        ["\reval model::   0%|     | 0/2", "save model in /srv/out/latest\n"],
    ),
    "paddleseg": (
        "paddleseg_ppliteseg_2x2/node1/workerlog.0",
        [
            "Start evaluating (total_samples: 4, total_iters: 1)...\n",
            "[EVAL] #Images: 4 mIoU: 0.02 Acc: 0.1 Kappa: 0 Dice: 0.1\n",
        ],
    ),
    "mindocr": (
        "mindocr_crnn_msrun_2x1/node1/worker_0.log",
        ["Performance: {'acc': 0.1}\n", "=> Best acc: 0.1, checkpoint saved.\n"],
    ),
}  # fmt: skip


BUDGETS = {
    "paddledetection_ppyoloe": 630,
    "paddledetection_retinanet_ghm": 600,
    "paddleocr_drrg": 600,
    "paddleseg_encnet": 600,
    "paddleseg_espnet": 440,
    "mindocr_crnn": 540,
}
KINDS = {
    "s": "step",
    "l": "step",
    "p": "epoch",
    "b": "begins",
    "e": "evaluation",
    "c": "saved",
}


def replay(path):
    """Take in the lines of a recorded training, and yield (phases, time of a line, seconds to the
    next one) after each but the last.

    One that is shorter than a third of a day (MindOCR's) goes on with its lines from the beginning.
    """
    events = []
    for token in " ".join(path.read_text().splitlines()[1:]).split():
        kind, seconds, times = re.fullmatch(r"([slpbec])(\d+)(?:x(\d+))?", token).groups()
        events += [(kind, float(seconds))] * int(times or 1)
    recorded = sum(seconds for _kind, seconds in events)
    assert recorded > DAY / 40
    events *= int(DAY / 3 / recorded) + 1 if recorded < DAY / 3 else 1
    phases, now = phases_of(path.name.partition("_")[0], words=("--eval", "--do_eval")), 120.0
    phases.started()
    for number, (kind, seconds) in enumerate(events, 1):
        now += seconds
        place = {"step": "9", "steps": "10" if kind == "l" else "100"}
        phases.take(KINDS[kind], place, "a line", now)
        if number < len(events):
            yield phases, now, events[number][1]


@pytest.mark.parametrize("path", DAYS, ids=lambda path: path.stem)
def test_a_recorded_training_has_no_false_alarm(path):
    seconds = 0.0
    for phases, now, wait in replay(path):
        seconds += wait
        # A line's time is cut to whole seconds.
        assert phases.stalled(now + wait + 1.0) is None, (now, wait, phases.limit())
    assert seconds > DAY / 3


@pytest.mark.parametrize("path", DAYS, ids=lambda path: path.stem)
def test_a_stop_anywhere_in_a_recorded_training_is_known_after_its_budget(path):
    last = None
    for phases, now, _wait in replay(path):
        budget, phase = phases.limit()
        assert budget <= phase_watchdog.UNKNOWN
        assert phases.stalled(now + budget) is None and abs(phases.left(now + budget)) < 1e-6
        assert phases.stalled(now + budget + 0.1)["phase"] == phase
        if phase == "step":
            last = budget
    # As docs/runbooks/watchdog.md has them. Without the pace all would be 600 and more.
    assert last == BUDGETS[path.stem]


def step_line(suite):
    """Return a step line that was recorded in the middle of an epoch."""
    path = next(path for path in LOGS.rglob("*") if str(path).endswith(RECORDED[suite][0]))
    pattern = re.compile(phase_watchdog.texts(SUITES[suite]["logs"]["step"]["line"])[0])
    return next(line for line in path.read_text().splitlines() if pattern.search(line)) + "\n"


def begin(suite):
    """Return the phases of a training whose first step came after two minutes."""
    phases = phases_of(suite, words=("--eval", "--do_eval"))
    phases.started()
    feed(phases, step_line(suite), 120.0)
    return phases


def follow(phases, text, now, wait):
    """Take in lines after a wait, and check that the guard saw no hang before them."""
    now += wait
    assert phases.stalled(now) is None, (now, wait, phases.limit())
    feed(phases, text, now)
    return now


@pytest.mark.parametrize("suite", RECORDED)
@pytest.mark.parametrize("pace", [0.5, 6.0, 90.0])
def test_a_day_has_no_false_alarm(suite, pace):
    """Steps are uneven, a file system stands still now and then, and pauses differ by a half."""
    phases, chance, now, line = begin(suite), random.Random(11), 120.0, step_line(suite)
    pause = chance.choice([20.0, 200.0])
    while now < DAY:
        for _step in range(chance.randint(60, 400)):
            wait = pace * chance.lognormvariate(0.0, 0.3)
            if chance.random() < 0.003:
                wait += chance.uniform(0.0, 25.0)
            now = follow(phases, line, now, wait)
        for text in RECORDED[suite][1]:
            now = follow(phases, text, now, pause * chance.uniform(0.7, 1.5))
    assert len(phases.waits) == phase_watchdog.WINDOW


@pytest.mark.parametrize("suite", RECORDED)
def test_a_stop_of_quick_steps_is_known_within_a_minute(suite):
    phases, now, line = begin(suite), 120.0, step_line(suite)
    for _step in range(60):
        now = follow(phases, line, now, 1.0)
    assert phases.limit()[0] == 600  # no pause was seen yet
    for text in RECORDED[suite][1]:
        now = follow(phases, text, now, 2.0)
    for _step in range(60):
        now = follow(phases, line, now, 1.0)
    assert phases.stalled(now + 30.0) is None
    assert phases.stalled(now + 31.0)["phase"] == "step"


def steps(phases, now, waits):
    """Take in a step line after each wait, in the middle of an epoch."""
    for wait in waits:
        now += wait
        feed(phases, STEP % (1, 0, 1), now)
    return now


def settled(waits, pause, **given):
    """Return (phases, now) after one checkpoint and then steps with some waits."""
    phases = phases_of(words=(), **given)
    now = steps(phases, 0.0, [60.0, 1.0])
    feed(phases, "Save checkpoint: /srv/out/model\n", now + pause)
    return phases, steps(phases, now + pause, [5.0, *waits])


def test_slow_steps_have_time_in_proportion():
    phases, _now = settled([8.0] * 60, 3.0)
    assert phases.limit()[0] == 160
    phases, _now = settled([8.0] * 50 + [20.0] * 3, 3.0)
    assert phases.limit()[0] == 400  # more than one of a hundred took so long


def test_the_longest_wait_for_a_checkpoint_counts():
    phases, _now = settled([1.0] * 60, 50.0)
    assert phases.limit()[0] == 150
    phases, _now = settled([1.0] * 60, 400.0)
    assert phases.limit()[0] == 600  # never more than without the pace


def test_too_few_steps_and_the_jobs_own_number():
    phases, _now = settled([1.0] * 48, 3.0)
    assert phases.limit()[0] == 600
    phases, _now = settled([1.0] * 60, 3.0, step=20)
    assert phases.limit()[0] == 20
    phases, _now = settled([1.0] * 60, 3.0, checkpoint=900)
    assert phases.limit()[0] == 900  # the job says how long what follows a step may take


def test_a_training_that_becomes_slower_is_followed():
    phases, now = settled([1.0] * 60, 3.0)
    now = steps(phases, now, [12.0, 14.0] * 100)
    assert phases.limit()[0] == 280
    other = phases_of(words=())
    other.again(phases.kept())
    assert other.limit() == phases.limit()


def test_an_attempt_begins_with_the_pace_of_the_one_before_it():
    earlier, _now = settled([1.0] * 60, 3.0)
    phases = phases_of(words=())
    phases.learn(*phase_watchdog.read_pace(json.loads(json.dumps(earlier.kept()))))
    steps(phases, 0.0, [60.0])
    assert phases.limit() == (30, "step")
    phases.phase = "evaluation"
    assert phases.limit()[0] > 30


@pytest.mark.parametrize(
    "changes",
    [
        {"paused": False},
        {"waits": [1.0] * 20},
        {"waits": ["1"] * 60},
        {"waits": [-1.0] * 60},
        {"waits": [float("inf")] * 60},
        {"slowest": None},
        {"slowest": True},
    ],
)
def test_a_pace_that_no_guard_has_seen_is_not_taken_over(changes):
    earlier, _now = settled([1.0] * 60, 3.0)
    assert phase_watchdog.read_pace(earlier.kept())
    assert phase_watchdog.read_pace(dict(earlier.kept(), **changes)) is None


@pytest.mark.parametrize("changed, learned", [({}, True), ({"settings": {}}, False)])
def test_a_guard_takes_over_the_pace_of_the_same_training_only(tmp_path, changed, learned):
    phases, _now = settled([1.0] * 60, 3.0)
    made = compiled(count=1, devices=1)
    earlier = attempt_files(tmp_path, dict(made, **changed), "node1", 1)
    kept = {"boot": "of another boot", "phases": phases.kept()}
    put(Path(earlier), {"guard.json": json.dumps(kept)})
    found = guard.Guard(attempt_files(tmp_path, made, "node1", 2), "node1").phases
    assert (found.waits == phases.waits) is learned
