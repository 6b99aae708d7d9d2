# SPDX-License-Identifier: Apache-2.0
"""One rank dies: everything stops in time, with and without the controller, and the verdict names the culprit."""

from __future__ import annotations

import json
import os
import signal
import subprocess

from harness import JOBS, NODES, PROJECT, background, ended, events, last_line, left_behind, new_run, on, playbook, runs, training, wait_for


def children(pid):
    """Return the pids of a process's children; Ansible's workers are in sessions of their own."""
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as handle:
        return [int(word) for word in handle.read().split()]


BUDGET = 10.0  # seconds from a rank's death until everything is stopped


def seconds_to_stop(run):
    """Return the seconds between the first rank's death and the end of the last node's unit; the nodes share one clock here."""
    died = min(event["time"] for node in NODES for event in events(node, run) if event["event"] == "end")
    return max(ended(node, run)["time"] for node in NODES) - died


def test_a_raised_exception_is_named_with_node_rank_and_exit_code():
    before = runs()
    done = playbook("train", "-e", "config=%s/raise.yml" % JOBS)
    run = new_run(before)
    print(done.stdout)
    assert done.returncode != 0
    verdict = last_line(done.stdout)
    assert verdict.startswith("FAILED: rank 1 on node2 (local rank 0) raised ValueError: image 000000012.jpg is truncated (exit code 1)")
    assert "runs/%s/attempt-1/rank-001.node2.log" % run in verdict
    log = (PROJECT / "runs" / run / "attempt-1" / "rank-001.node2.log").read_text()
    line = int(verdict.split("rank-001.node2.log:")[1].split(";")[0])
    assert "truncated" in log.splitlines()[line - 1]
    assert (PROJECT / "runs" / run / "attempt-1" / "rank-000.node1.log").stat().st_size > 0
    took = seconds_to_stop(run)
    print("%.1f seconds from the exception to everything stopped, with the controller" % took)
    assert took < BUDGET
    assert left_behind(run) == {}


def test_a_killed_rank_stops_all_although_the_controller_is_gone(tmp_path):
    before = runs()
    controller = background(tmp_path / "log", "train", "-e", "config=%s/kill.yml" % JOBS)
    run = wait_for(lambda: new_run(before), 120)
    wait_for(lambda: all(any(event["event"] == "start" for event in events(node, run)) for node in NODES), 120)
    assert controller.poll() is None, "the controller was to be killed while it follows"
    workers = children(controller.pid)
    os.killpg(controller.pid, signal.SIGKILL)
    wait_for(lambda: all(ended(node, run) for node in NODES), 240)
    took = seconds_to_stop(run)
    print("%.1f seconds from the kill to everything stopped, without the controller" % took)
    assert took < BUDGET
    assert left_behind(run) == {}
    assert ended("node2", run)["peers"] == {"node1": "stopped"} or ended("node1", run)["stopped_by"] is None

    done = playbook("follow", "-e", "run=%s" % run)
    print(done.stdout)
    assert done.returncode != 0
    assert last_line(done.stdout).startswith("FAILED: rank 1 on node2 (local rank 0) was killed by SIGKILL")
    record = json.loads((PROJECT / "runs" / run / "run.json").read_text())
    assert record["attempts"][0]["verdict"]["signal"] == "SIGKILL"
    wait_for(lambda: not [pid for pid in workers if os.path.exists("/proc/%d" % pid)], 30)


def test_a_node_that_vanishes_is_named_and_the_others_logs_come_home(tmp_path):
    before, log = runs(), tmp_path / "log"
    controller = background(log, "train", "-e", "config=%s/long.yml" % JOBS)
    run = wait_for(lambda: new_run(before), 120)
    wait_for(lambda: training(run), 180)
    subprocess.run(["docker", "kill", "trainyard-molecule-node2"], check=True, stdout=subprocess.DEVNULL)
    try:
        assert controller.wait(240) != 0
        text = log.read_text()
        print(text)
        assert last_line(text).startswith("LOST: node2 did not answer") or "rank 1 on node2" in last_line(text)
        assert (PROJECT / "runs" / run / "attempt-1" / "rank-000.node1.log").stat().st_size > 0
        assert ended("node1", run), "node1 still holds its device"
    finally:
        subprocess.run(["docker", "start", "trainyard-molecule-node2"], check=True, stdout=subprocess.DEVNULL)
        wait_for(lambda: on("node2", "systemctl --user is-system-running", check=False) in ("running", "degraded"), 60)
