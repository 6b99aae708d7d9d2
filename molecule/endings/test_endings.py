# SPDX-License-Identifier: Apache-2.0
"""Endings in which what is seen last is not what happened: a rank that ends itself while the
controller's disk is full, packets that get lost one way, and a supervisor that does not come back.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from harness import (
    NODES,
    attempt_file,
    background,
    begin,
    ended,
    last_line,
    new_run,
    on,
    playbook,
    quick_job,
    record,
    root,
    runs,
    verdict,
    wait_for,
)


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
        *quick_job("end"),
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


def test_a_run_that_lost_rank_0s_disk_goes_on_from_the_replica(tmp_path):
    """node1 loses all that the run has there while nobody follows. The resume finds the replica."""
    controller, run = begin(tmp_path / "log", "saves")
    wait_for(lambda: attempt_file("node2", run, "replica.json"), 180)
    controller.kill()
    controller.wait(10)
    unit = f"trainyard-{run}-1.service"
    held = json.loads(attempt_file("node2", run, "replica.json"))
    on("node1", f"systemctl --user kill --signal=KILL {unit}; rm -rf .trainyard/runs/{run}")
    wait_for(lambda: ended("node2", run), 90)
    state = on("node2", f"systemctl --user is-active yardreplica-{run}-1.service || true")
    assert state == "inactive"
    resumed = background(tmp_path / "resumed", "resume", "-e", f"run={run}", "-e", "rehearse=false")
    try:
        plan = json.loads(wait_for(lambda: attempt_file("node2", run, "plan.json", 2), 180))
        assert plan["resume"]["name"] == held["name"], (tmp_path / "resumed").read_text()
        assert plan["resume"]["epoch"] == held["epoch"] >= 1
        log = "log/workerlog.0"
        wait_for(lambda: "Epoch: [" in attempt_file("node1", run, log, 2), 180)
        # It came from node to node, and not by way of the controller.
        assert "staging directory: checkpoints" not in (tmp_path / "resumed").read_text()
    finally:
        playbook("stop", "-e", f"run={run}")
        resumed.wait(120)


def test_the_ranks_of_a_node_whose_supervisor_does_not_come_back_end():
    """Its votes on the disk are damaged, and it is killed. On a single node no peer ends them."""
    before = runs()
    done = playbook("train", *quick_job("long"), "-e", "detach=true", "-e", "nodes=1")
    assert done.returncode == 0, done.stdout
    run = new_run(before)
    place, unit = f".trainyard/runs/{run}/supervisor/node1", f"yardsupervisor-{run}-1-node1.service"
    try:
        wait_for(lambda: on("node1", f"cat {place}/lease.json", check=False), 60)
        on("node1", f"echo x > {place}/state.json; systemctl --user kill --signal=KILL {unit}")
        # The controller has granted the first attempt 90 s.
        wait_for(lambda: ended("node1", run), 150)
        stop = json.loads(attempt_file("node1", run, "stop.json"))
        assert (stop["by"], stop["from"]) == ("peer", "the nodes of the run")
        assert on("node1", f"systemctl --user is-active {unit} || true") == "inactive"
        assert on("node1", f"ls .config/systemd/user/{unit} 2>/dev/null || true") == ""
    finally:
        done = playbook("stop", "-e", f"run={run}")
    assert done.returncode == 0, done.stdout
