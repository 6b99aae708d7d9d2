# SPDX-License-Identifier: Apache-2.0
"""Endings in which what is seen last is not what happened: a finished training with leftovers, and
a killed agent. Longer ones are in molecule/endings.
"""

from __future__ import annotations

import json
import os
import signal
import time

from harness import (
    PROJECT,
    attempt_file,
    begin,
    ended,
    events,
    last_line,
    left_behind,
    on,
    record,
    verdict,
)

SECONDS_ASLEEP = 40  # more than the difference of clocks that is warned of


def test_a_finished_training_stays_finished_and_a_controller_that_slept_blames_no_clock(tmp_path):
    """Rank 1 leaves a process behind that ignores SIGTERM. systemd kills it 5 s after its node has
    finished, while rank 0 still evaluates. The controller sleeps meanwhile.
    """
    log = tmp_path / "log"
    controller, run = begin(log, "leave")
    os.killpg(controller.pid, signal.SIGSTOP)
    time.sleep(SECONDS_ASLEEP)
    os.killpg(controller.pid, signal.SIGCONT)
    assert controller.wait(180) == 0, log.read_text()
    text = log.read_text()
    assert "clock of" not in text, text
    assert ended("node2", run)["swept"] == "timeout"
    assert not attempt_file("node1", run, "stop.json"), "node1 was told to stop"
    assert verdict(run)["outcome"] == "completed" and "left behind on node2" in last_line(text)
    assert record(run)["restarts"] == 0 and record(run)["outcome"] == "completed"
    assert list((PROJECT / "runs" / run / "attempt-1/checkpoint").glob("*.pdparams"))
    assert left_behind(run) == {}


def test_a_killed_agent_is_named_and_a_damaged_plan_keeps_no_peer_from_being_told(tmp_path):
    """node2's plan.json was edited; then its agent is killed while the training goes on.

    node1's rank stands still meanwhile, so that it does not end on its own before it is told.
    """
    log = tmp_path / "log"
    controller, run = begin(log, "long")
    starts = [item for item in events("node1", run) if item["event"] == "start"]
    (pid,) = [item["pid"] for item in starts if item["rank"] is not None]
    on("node1", f"kill -STOP {pid}")
    on("node2", f"echo ' ' >> .trainyard/runs/{run}/attempt-1/plan.json")
    on("node2", f"systemctl --user kill --kill-who=main --signal=KILL trainyard-{run}-1.service")
    assert controller.wait(120) != 0
    assert ended("node2", run)["peers"] == {"node1": "stopped"}
    assert json.loads(attempt_file("node1", run, "stop.json"))["from"] == "node2"
    said = verdict(run)
    assert (said["cause"], said["node"], said["rank"]) == ("killed", "node2", None), said["text"]
    assert "the agent on node2" in last_line(log.read_text())
