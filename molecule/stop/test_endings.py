# SPDX-License-Identifier: Apache-2.0
"""Endings in which what is seen last is not what happened: a finished training with leftovers, a
rank that ends itself, a killed agent, packets that get lost one way, a controller without disk.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from harness import (
    JOBS,
    NODES,
    PROJECT,
    attempt_file,
    background,
    ended,
    last_line,
    left_behind,
    new_run,
    on,
    playbook,
    root,
    runs,
    training,
    wait_for,
)

QUICK = ("-e", "rehearse=false")
SECONDS_ASLEEP = 40  # more than the difference of clocks that is warned of


def job(name):
    return ("-e", f"config={JOBS}/{name}.yml", *QUICK)


def record(run, folder=PROJECT / "runs"):
    """Return a run's record on the controller."""
    return json.loads((folder / run / "run.json").read_text())


def verdict(run, folder=PROJECT / "runs"):
    """Return the verdict in a run's record."""
    return record(run, folder)["attempts"][-1]["verdict"]


def begin(log, name, *more):
    """Start a job in the background and return (process, run) once it has made steps."""
    before = runs()
    controller = background(log, "train", *job(name), *more)
    run = wait_for(lambda: new_run(before), 120)
    wait_for(lambda: training(run), 120)
    return controller, run


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


@pytest.fixture
def small_disk(tmp_path):
    """A directory for runs on a disk of its own, with room for the records and not for logs."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", str(folder)], check=True
    )
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_rank_that_ends_itself_is_named_although_the_controllers_disk_is_full(
    small_disk, tmp_path
):
    """`sys.exit(0)` before its fourth step. The log, the index and the record find no room here."""
    folder = small_disk / "runs"
    filler = small_disk / "full"
    log = tmp_path / "log"
    controller = background(
        log,
        "train",
        *job("end"),
        "-e",
        json.dumps({"trainyard_runs_dir": str(folder), "trainyard_collect_free": 0}),
    )
    (run,) = wait_for(lambda: folder.exists() and [p.name for p in folder.glob("2*")], 120)
    wait_for(lambda: on("node1", f"ls .trainyard/runs/{run}/attempt-1/log", check=False), 60)
    with filler.open("wb", buffering=0) as handle, pytest.raises(OSError):
        while True:
            handle.write(b"x" * 4096)
    assert controller.wait(180) != 0
    text = log.read_text()
    assert last_line(text).startswith("FAILED: rank 1 on node2"), text
    assert "cause.ended_early" in text and "[verdict.not_recorded]" in text
    assert "are not copied" in text and "No space left" in text, "no word while it follows"
    assert "rsync ended" not in "\n".join(text.splitlines()[-12:])
    filler.unlink()
    done = playbook("follow", "-e", f"run={run}", "-e", f"trainyard_runs_dir={folder}")
    assert last_line(done.stdout).startswith("FAILED: rank 1 on node2"), done.stdout
    attempt = record(run, folder)["attempts"][-1]
    assert (attempt["verdict"]["cause"], attempt["verdict"]["rank"]) == ("ended_early", 1)
    assert (attempt["again"]["again"], attempt["again"]["reason"]) == (False, "never")
    assert (folder / run / "attempt-1/rank-001.node2.log").exists()


def test_a_killed_agent_is_named_and_a_damaged_plan_keeps_no_peer_from_being_told(tmp_path):
    """node2's plan.json was edited; then its agent is killed while the training goes on."""
    log = tmp_path / "log"
    controller, run = begin(log, "long")
    on("node2", f"echo ' ' >> .trainyard/runs/{run}/attempt-1/plan.json")
    on("node2", f"systemctl --user kill --kill-who=main --signal=KILL trainyard-{run}-1.service")
    assert controller.wait(120) != 0
    told = json.loads(attempt_file("node1", run, "stop.json"))
    assert (told["by"], told["from"]) == ("peer", "node2"), told
    said = verdict(run)
    assert (said["cause"], said["node"], said["rank"]) == ("killed", "node2", None), said["text"]
    assert "the agent on node2" in last_line(log.read_text())


def test_packets_that_get_lost_one_way_accuse_nobody_and_replace_no_better_verdict(tmp_path):
    """node2 hears nothing of node1's SSH server, and then nothing of the controller."""
    log = tmp_path / "log"
    controller, run = begin(log, "long")
    deaf = f"-s {NODES['node1']} -p tcp --sport 22 -j DROP"
    cut = "-s $(ip route show default | cut -d' ' -f3) -j DROP"
    root("node2", f"iptables -I INPUT {deaf}; iptables -I INPUT {cut}")
    try:
        assert controller.wait(150) != 0
    finally:
        root("node2", f"iptables -D INPUT {deaf}; iptables -D INPUT {cut}")
    first = verdict(run)
    assert (first["outcome"], first["node"]) == ("lost", "node2"), first["text"]
    # Both answer now: alone, this look would accuse nobody.
    wait_for(lambda: on("node2", "true", check=False) == "", 30)
    done = playbook("follow", "-e", f"run={run}")
    assert verdict(run) == first, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "[verdict.kept]" in line]
    assert "node2 lost node1" in line, line
    fresh = playbook("follow", "-e", f"run={run}", "-e", f"trainyard_runs_dir={tmp_path}/runs")
    said = verdict(run, tmp_path / "runs")
    assert (said["outcome"], said["cause"], said["node"]) == ("failed", "node_lost", None), (
        fresh.stdout
    )
    assert "LOST: node1" not in fresh.stdout
