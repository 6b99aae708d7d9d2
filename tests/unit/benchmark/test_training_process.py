# SPDX-License-Identifier: Apache-2.0
"""A training of a benchmark: its command, its end, its limit of time, and Ctrl-C."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import interruption
from ansible_collections.trainyard.cluster.plugins.plugin_utils.benchmark import training_process
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import resume_command
from report_support import bring

# Stands for ansible-playbook: train.yml goes on until stop.yml is called with its run.
PROGRAM = """
import json, os, sys, time
folder, words = os.path.dirname(__file__), sys.argv[1:]
variables = json.loads(words[-1])
with open(os.path.join(folder, "called"), "a") as handle:
    handle.write(json.dumps({"words": words, "keys": sorted(os.environ)}) + "\\n")
stopped = os.path.join(folder, "stopped")
if "stop.yml" in words[0]:
    open(stopped, "w").write(variables["run"])
    sys.exit(0)
if "follow.yml" in words[0]:
    sys.exit(2)
print("run RUN_ID, job x, 2 nodes", flush=True)
end = time.monotonic() + float(os.environ["SECONDS_TO_TRAIN"])
while time.monotonic() < end and not os.path.exists(stopped):
    time.sleep(0.05)
outcome = ["completed", "stopped"][os.path.exists(stopped)]
with open(os.environ["TRAINYARD_RESULT"], "w") as handle:
    json.dump({"run": "RUN_ID", "verdict": {"outcome": outcome, "text": outcome.upper()}}, handle)
"""
STARTED = ["ansible-playbook", "-i", "site", "playbooks/benchmark.yml"]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """(start a training of a real run's id, calls of the program, lines that were printed)."""
    (tmp_path / "runs").mkdir()
    run = bring(tmp_path / "runs", "series/recognition")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("RUN_ID", run))
    monkeypatch.setattr(resume_command, "program", lambda: [sys.executable, str(script)])
    monkeypatch.setattr(
        sys,
        "argv",
        [*STARTED, "-e", "config=x.yml nodes=1,2 minutes=5", "-e", '{"verify": "full", "wait": 1}'],
    )
    monkeypatch.setattr(training_process, "LOOK_SECONDS", 0.1)
    monkeypatch.setenv("TRAINYARD_DETACH", "1")
    said = []

    def start(seconds, minutes=0.0, alone=""):
        monkeypatch.setenv("SECONDS_TO_TRAIN", str(seconds))
        command = training_process.Command(
            "train.yml",
            {"nodes": 2, "max_restarts": 0},
            training_process.OWN_VARIABLES,
            str(tmp_path / "train-2.txt"),
        )
        return training_process.TrainingProcess(
            command,
            "2 nodes",
            "recognition",
            str(tmp_path / "runs"),
            "stop.yml",
            minutes,
            said.append,
            alone,
        )

    def calls():
        return [json.loads(line) for line in (tmp_path / "called").read_text().splitlines()]

    return start, calls, said, run


def test_a_training_gets_the_options_of_the_benchmark(bench):
    start, calls, said, run = bench
    (outcome,) = training_process.await_ends([start(0.5)])
    assert outcome == {
        "run": run,
        "label": "2 nodes",
        "ended_well": True,
        "text": "COMPLETED",
        "output": outcome["output"],
    }
    (called,) = calls()
    assert called["words"][:2] == ["train.yml", "--inventory=site"]
    given = [
        word for place, word in enumerate(called["words"]) if called["words"][place - 1] == "-e"
    ]
    assert given[0] == "config=x.yml" and json.loads(given[1]) == {"verify": "full", "wait": 1}
    assert json.loads(given[2]) == {"nodes": 2, "max_restarts": 0}
    assert "TRAINYARD_DETACH" not in called["keys"]
    assert any(run in line for line in said)


def test_a_training_is_stopped_when_its_time_is_over(bench):
    """The recorded run's first step is older than any limit."""
    start, calls, _said, run = bench
    begun = time.monotonic()
    (outcome,) = training_process.await_ends([start(60, minutes=1)])
    assert time.monotonic() - begun < 30
    assert outcome["ended_well"] and outcome["text"] == "STOPPED"
    words = calls()[1]["words"]
    assert words[0] == "stop.yml" and json.loads(words[-1]) == {"run": run}
    assert not any("config" in word or "verify" in word for word in words)


def test_a_run_that_somebody_else_stopped_did_not_end_well(bench, tmp_path):
    start = bench[0]
    training = start(60)
    (tmp_path / "stopped").write_text("by another command")
    (outcome,) = training_process.await_ends([training])
    assert (outcome["ended_well"], outcome["text"]) == (False, "STOPPED")


def test_a_stop_that_failed_is_tried_again(bench, tmp_path, monkeypatch):
    start, calls, said, run = bench
    monkeypatch.setattr(training_process, "SAY_SECONDS", 0.5)
    script = tmp_path / "program.py"
    script.write_text(
        script.read_text().replace(
            '    open(stopped, "w")',
            '    tried = os.path.join(folder, "tried")\n'
            "    if not os.path.exists(tried):\n"
            '        open(tried, "w"); print("no answer"); sys.exit(2)\n'
            '    open(stopped, "w")',
        )
    )
    (outcome,) = training_process.await_ends([start(60, minutes=1)])
    assert outcome["ended_well"] and len(calls()) == 3
    assert any("was not stopped: no answer" in line for line in said)


def test_a_run_that_its_command_has_left_is_stopped(bench, tmp_path):
    start, calls, _said, run = bench
    script = tmp_path / "program.py"
    script.write_text(script.read_text().replace('"verdict":', '"nothing":'))
    (outcome,) = training_process.await_ends([start(1)])
    assert not outcome["ended_well"]
    assert json.loads(calls()[1]["words"][-1]) == {"run": run}


def test_a_worker_without_ansible_ends_its_training(bench, monkeypatch):
    start, calls, _said, run = bench
    training = start(60)
    parents = iter([os.getppid()] * 8 + [1] * 99)
    monkeypatch.setattr(training_process.os, "getppid", lambda: next(parents))
    with pytest.raises(KeyboardInterrupt):
        training_process.await_ends([training])
    assert training.command.process.poll() is not None and len(calls()) == 2


def test_a_run_that_has_only_just_started_is_stopped_as_well(bench, tmp_path):
    """Its name is no line of the output yet: it is the one new directory of the job."""
    start, calls, said, run = bench
    script = tmp_path / "program.py"
    script.write_text(script.read_text().replace('print("run ', 'print("'))
    os.rename(tmp_path / "runs" / run, tmp_path / "away")
    training = start(60)
    os.rename(tmp_path / "away", tmp_path / "runs" / run)
    time.sleep(1)
    training.give_up()
    stopped, followed = calls()[1:]
    assert [call["words"][0] for call in (stopped, followed)] == ["stop.yml", "follow.yml"]
    for call in (stopped, followed):
        assert json.loads(call["words"][-1]) == {"run": run}
    assert said == [f"2 nodes: the logs of {run} were not collected"]  # follow.yml has failed


@pytest.mark.parametrize(("alone", "found"), [("node1", True), ("node2", False)])
def test_of_trainings_at_the_same_time_each_stops_the_run_of_its_own_node(
    bench, tmp_path, alone, found
):
    start, calls, _said, run = bench
    script = tmp_path / "program.py"
    script.write_text(script.read_text().replace('print("run ', 'print("'))
    plan = tmp_path / "runs" / run / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "nodes": [{"name": "node1"}]}))
    os.rename(tmp_path / "runs" / run, tmp_path / "away")
    training = start(60, alone=alone)
    os.rename(tmp_path / "away", tmp_path / "runs" / run)
    time.sleep(1)
    training.give_up()
    assert ["stop.yml" in call["words"][0] for call in calls()[1:2]] == [True] * found


def test_several_trainings_end_each_with_its_own_outcome(bench):
    start = bench[0]
    outcomes = training_process.await_ends([start(0.2), start(1)])
    assert [outcome["ended_well"] for outcome in outcomes] == [True, True]


def test_all_trainings_end_where_one_cannot_be_looked_at_or_stopped(bench, monkeypatch):
    start, _calls, said, _run = bench
    first, second = start(60), start(60)

    def broken():
        raise OSError("no more files")

    monkeypatch.setattr(first, "look", broken)
    monkeypatch.setattr(first, "give_up", broken)
    with pytest.raises(OSError):
        training_process.await_ends([first, second])
    assert second.command.has_ended() and "2 nodes: no more files" in said
    first.command.end()


def test_a_stop_does_not_keep_other_trainings_waiting(bench, tmp_path):
    """A stop asks all nodes, one of which may be down."""
    start, calls, _said, _run = bench
    script = tmp_path / "program.py"
    script.write_text(
        script.read_text().replace(
            '    open(stopped, "w")', '    time.sleep(3)\n    open(stopped, "w")'
        )
    )
    training = start(60, minutes=1)
    while len(calls() if (tmp_path / "called").exists() else ()) < 2:
        begun = time.monotonic()
        assert not training.look()
        assert time.monotonic() - begun < 2
        time.sleep(0.1)
    assert not training.look() and not training.stopped
    (outcome,) = training_process.await_ends([training])
    assert outcome["ended_well"] and training.stopped and len(calls()) == 2


def test_no_run_goes_on_after_ctrl_c(bench, monkeypatch, request):
    for number in (signal.SIGINT, signal.SIGTERM):
        request.addfinalizer(functools.partial(signal.signal, number, signal.getsignal(number)))
    interruption.raise_in_worker()
    start, calls, _said, run = bench
    training = start(60)
    look = training.look

    def interrupted():
        look()
        if training.run:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    monkeypatch.setattr(training, "look", interrupted)
    # The second signal comes while the training is stopped.
    stop = training.stop
    monkeypatch.setattr(training, "stop", lambda: (os.kill(os.getpid(), signal.SIGTERM), stop()))
    with pytest.raises(KeyboardInterrupt):
        training_process.await_ends([training])
    assert json.loads(calls()[1]["words"][-1]) == {"run": run}
    assert training.command.process.poll() is not None


def test_a_command_that_fails_before_a_run_says_why(bench, tmp_path, monkeypatch):
    script = tmp_path / "program.py"
    script.write_text("print('no such job\\x1b[2J'); raise SystemExit(4)")
    (outcome,) = training_process.await_ends([bench[0](1)])
    assert (outcome["run"], outcome["ended_well"]) == ("", False)
    assert outcome["text"].startswith("no such job") and "\x1b" not in outcome["text"]
    assert os.path.exists(outcome["output"])
