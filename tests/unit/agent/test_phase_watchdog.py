# SPDX-License-Identifier: Apache-2.0
"""Phases of a training by its own log lines: real logs of all suites, budgets, and what must not be
taken for a hang.
"""

from __future__ import annotations

import random

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import phase_watchdog
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import (
    watchdog_budgets,
)
from core_support import ROOT

SUITES = {
    name: yaml.safe_load((ROOT / "playbooks/suites" / (name + ".yml")).read_text())
    for name in ("paddledetection", "paddleocr", "paddleseg", "mindocr")
}
STEP = (
    "[11/20 11:28:%02d] ppdet.engine.callbacks INFO: Epoch: [%d] [%d/4] learning_rate: 0.1 loss:"
    " 5.6 ips: 1.0 images/s\n"
)
LONGEST = {
    "rendezvous": 600,
    "first_step": 1800,
    "step": 600,
    "evaluation": 1800,
    "checkpoint": 600,
}


def phases_of(suite="paddledetection", budgets=None, words=("--eval",), **given):
    """Return a Phases that began at 0; given: budgets that the job itself sets."""
    made = dict(budgets or LONGEST, **given, set=sorted(given))
    return phase_watchdog.Phases(made, phase_watchdog.Words(SUITES[suite]["logs"], words), 0.0)


def feed(phases, text, now):
    """Take in a piece of a log."""
    for found in phase_watchdog.Reading(phases.words).take(text.encode()):
        phases.take(*found, now)


def walk(suite, log, words=("--eval", "--do_eval")):
    """Return the phases that a log went through, each once in a row, and the last step; the log
    comes in pieces of any size.
    """
    phases, chance = phases_of(suite, words=words), random.Random(7)
    phases.started()
    reading, seen, data = phase_watchdog.Reading(phases.words), [], log.read_bytes()
    while data:
        size = chance.randint(1, 400)
        for found in reading.take(data[:size]):
            phases.take(*found, 1.0)
            seen += [phases.phase] if seen[-1:] != [phases.phase] else []
        data = data[size:]
    return seen, phases.last_step


@pytest.mark.parametrize("suite, folder, log", [
    ("paddledetection", "paddledetection_ppyoloe_s_2x2", "node1/workerlog.0"),
    ("paddleocr", "paddleocr_crnn_2x2", "node1/workerlog.0"),
    ("paddleseg", "paddleseg_ppliteseg_2x2", "node1/workerlog.0"),
    ("mindocr", "mindocr_crnn_msrun_2x1", "node1/worker_0.log"),
])  # fmt: skip
def test_real_logs_go_through_the_phases_in_order(suite, folder, log):
    place = ROOT / "tests/samples/logs" / folder
    path = next(path for path in sorted(place.rglob("*")) if str(path).endswith(log))
    seen, last = walk(suite, path)
    assert "step" in seen and last
    first = min(
        seen.index(phase) for phase in ("step", "evaluation", "checkpoint") if phase in seen
    )
    assert set(seen[:first]) <= {"rendezvous", "first_step"} and not set(seen[first:]) & {
        "rendezvous",
        "first_step",
    }


def test_a_budget_that_is_spent_and_one_second_before():
    phases = phases_of(step=20)
    feed(phases, STEP % (1, 0, 0), 5.0)
    feed(phases, STEP % (2, 0, 1), 9.0)
    assert phases.stalled(29.0) is None
    assert phases.stalled(29.5) == {
        "phase": "step", "budget": 20, "seconds": 20.5, "step": {"epoch": "0", "step": "1",
        "steps": "4"}, "last_line": (STEP % (2, 0, 1)).strip(),
    }  # fmt: skip
    feed(phases, STEP % (3, 0, 2), 29.5)
    assert phases.stalled(49.0) is None


def test_lines_that_say_nothing_of_a_step_are_no_step():
    phases = phases_of(step=20)
    feed(phases, STEP % (1, 0, 0), 0.0)
    phases.grew(15.0)
    feed(phases, "some warning\n" * 100, 15.0)
    assert phases.stalled(21.0)["phase"] == "step"


def test_what_comes_after_an_epoch_has_the_evaluations_budget_and_a_growing_log_is_alive():
    phases = phases_of(step=20, evaluation=50)
    feed(phases, STEP % (1, 0, 3), 0.0)
    assert phases.phase == "evaluation" and phases.stalled(45.0) is None
    phases.grew(45.0)
    assert phases.stalled(94.0) is None and phases.stalled(96.0)["phase"] == "evaluation"
    feed(
        phases,
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.1\n",
        96.0,
    )
    assert phases.phase == "checkpoint"


def test_without_the_word_that_evaluates_there_is_no_evaluation():
    phases = phases_of(words=(), step=20, checkpoint=30)
    feed(phases, STEP % (1, 0, 3), 0.0)
    assert phases.phase == "checkpoint" and phases.stalled(31.0)["phase"] == "checkpoint"


def test_a_progress_bar_that_never_ends_its_line_begins_an_evaluation():
    phases = phases_of("paddleocr", step=20, evaluation=100)
    feed(phases, "[x] ppocr INFO: epoch: [1/4], global_step: 1, lr: 0.1, loss: 1.0\n", 0.0)
    assert phases.phase == "step"
    feed(phases, "\reval model::   0%|     | 0/2 [00:00<?, ?it/s]", 10.0)
    assert phases.phase == "evaluation" and phases.stalled(100.0) is None


def test_rendezvous_is_what_the_suite_says_of_its_peers():
    phases = phases_of(rendezvous=10, first_step=30)
    # No rank was started at all.
    assert phases.stalled(11.0)["phase"] == "rendezvous"
    phases = phases_of(rendezvous=10, first_step=30)
    phases.started()
    # Nothing said of peers: both budgets as one.
    assert phases.stalled(39.0) is None and phases.stalled(41.0)["phase"] == "first_step"
    feed(
        phases,
        "I1120 tcp_utils.cc:107] Retry to connect to 10.0.0.1:17000 while the server is not yet"
        " listening.\n",
        20.0,
    )
    assert phases.stalled(29.0) is None and phases.stalled(31.0)["phase"] == "rendezvous"
    feed(phases, "I1120 tcp_utils.cc:132] Successfully connected to 10.0.0.1:17000\n", 29.0)
    assert phases.stalled(58.0) is None and phases.stalled(60.0)["phase"] == "first_step"
    phases.started()
    assert phases.stalled(60.0)["phase"] == "first_step"


def test_a_suite_that_prints_rarely_is_not_ended_by_a_default():
    phases = phases_of()
    feed(phases, STEP % (1, 0, 0), 100.0)
    # How often it prints is not known before the second line.
    assert phases.stalled(100 + 1700.0) is None
    feed(phases, STEP % (1, 0, 1), 1800.0)
    assert phases.stalled(1800 + 3 * 1699.0) is None and phases.stalled(1800 + 3 * 1701.0)
    given = phases_of(step=600)
    feed(given, STEP % (1, 0, 0), 100.0)
    # What the job says holds to the letter.
    assert given.stalled(701.0)["budget"] == 600


def test_one_line_an_epoch_has_an_evaluation_behind_it():
    phases = phases_of("mindocr")
    feed(
        phases,
        "[2026-11-20 14:32:41] mindocr INFO - epoch: [1/2], loss: 50.1, epoch time: 288.456 s\n",
        4000.0,
    )
    assert phases.phase == "evaluation" and phases.stalled(4000 + 3 * 3999.0) is None


def test_a_checkpoint_that_the_suite_says_afterwards_has_its_own_budget_where_the_job_gives_one():
    for given, stalled in (
        ({}, True),
        ({"checkpoint": 3600}, False),
        ({"checkpoint": 3600, "step": 600}, True),
    ):
        phases = phases_of(words=(), **given)
        for second in (10, 20, 30):
            feed(phases, STEP % (second, 0, second // 10 - 1), float(second))
        assert phases.phase == "step" and bool(phases.stalled(1300.0)) is stalled, given


def test_off_and_over():
    phases = phases_of(budgets=dict.fromkeys(LONGEST))
    assert phases.stalled(1e9) is None
    feed(phases, STEP % (1, 0, 0), 0.0)
    assert phases.stalled(1e9) is None
    phases = phases_of(step=20)
    feed(phases, STEP % (1, 0, 0), 0.0)
    phases.over = True
    # Its ranks have ended; what is left is systemd's.
    assert phases.stalled(1e9) is None


def test_a_guard_that_is_started_again_goes_on_where_it_was():
    phases = phases_of(step=20)
    feed(phases, STEP % (1, 0, 0), 7.0)
    other = phases_of(step=20)
    other.again(phases.kept())
    assert other.stalled(26.0) is None and other.stalled(28.0)["step"] == phases.last_step


def test_a_line_that_is_cut_in_two_and_one_without_end():
    words = phase_watchdog.Words(SUITES["paddledetection"]["logs"], ())
    reading = phase_watchdog.Reading(words)
    line = (STEP % (1, 2, 3)).encode()
    assert reading.take(line[:40]) == [] and [found[0] for found in reading.take(line[40:])] == [
        "step"
    ]
    for _piece in range(100):
        assert reading.take(b"x" * 5000) == []
    assert len(reading.rest) <= phase_watchdog.LINE


def test_every_suites_default_budgets_are_whole():
    for suite in SUITES.values():
        made = watchdog_budgets.budgets(None, suite)
        assert set(made) == {*phase_watchdog.PHASES, "set"} and made["set"] == []
    # It may print its first line after an epoch.
    assert watchdog_budgets.budgets(None, SUITES["mindocr"])["first_step"] is None


def test_the_end_of_a_training_has_a_budget_of_its_own():
    """The checkpoint's, from the last end of a rank after whoever prints has ended; off with it."""
    budgets = {"checkpoint": 60, "evaluation": 300}
    found = phase_watchdog.Teardown(budgets, far=False)
    found.look(False, 3, 0.0)
    assert found.stalled(1e6) is None
    found.look(True, 1, 100.0)
    found.look(True, 1, 130.0)
    assert found.stalled(160.0) is None and found.stalled(161.0) == {
        "phase": "teardown", "budget": 60, "seconds": 61.0, "step": None, "last_line": None,
    }  # fmt: skip
    found.look(True, 2, 150.0)
    found.spare(5.0)
    assert found.stalled(215.0) is None and found.stalled(216.0)
    found.look(False, 2, 220.0)  # (a rank that is started late)
    assert found.stalled(1e6) is None
    # where rank 0 may still evaluate elsewhere it has its time
    assert phase_watchdog.Teardown(budgets, far=True).budget == 360
    for off in ({"checkpoint": None}, {}):
        found = phase_watchdog.Teardown(dict(off), far=False)
        found.look(True, 1, 0.0)
        assert found.stalled(1e6) is None
