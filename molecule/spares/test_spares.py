# SPDX-License-Identifier: Apache-2.0
"""A detached run on real nodes that loses rank 0's node, and then the spare that took its place.

The spare is destroyed, with the newest checkpoint on its disk.
"""

from __future__ import annotations

import json
import re
import subprocess

import harness
import pytest
from harness import PROJECT, attempt_file, new_run, on, playbook, quick_job, record, runs, wait_for

DETACHED = ("-e", "detach=true", "-e", "max_restarts=5")
NODES = ("node1", "node2", "node3")
# Seconds after the start in which the nodes believe that a lost one may train by the controller's
# word (supervisor_order.GRANTED_SECONDS).
GRANTED = 120
EPOCH = 12  # steps
# Steps between two checkpoints. They take 72 s or more: a copy of 122 MB takes 6 to 15 s, and the
# next one begins a minute after it, so the replica is of the newest checkpoint but for the copy.
INTERVAL = 8 * EPOCH
LATE = INTERVAL - 14  # steps after a save: the replica has it, and the next one is some seconds off
STEP = re.compile(r"Epoch: \[(\d+)\] \[ *(\d+)/12\]")


def container(verb, node, *options):
    """Let Docker do something with a node's container."""
    argv = ["docker", verb, *options, f"trainyard-molecule-{node}"]
    subprocess.run(argv, check=True, capture_output=True)


def state(node, run):
    """Return what the run's supervisor on a node says, {} before it says anything."""
    path = f".trainyard/runs/{run}/supervisor/{node}/status.json"
    return json.loads(on(node, f"cat {path} 2>/dev/null || echo {{}}"))


def saved_after(run, attempt):
    """Return what node2 says once a later attempt has a replica there, and None before.

    `copied` is the step of that replica.
    """
    said = state("node2", run)
    number = said.get("attempt", 0)
    if number <= attempt:
        return None
    kept = json.loads(attempt_file("node2", run, "replica.json", number) or "{}")
    if "step" not in kept:
        return None
    return dict(said, copied=kept["step"])


def trained(node, run, attempt):
    """Return how many steps of the whole training the log of a node's rank shows."""
    epoch, step = STEP.findall(attempt_file(node, run, "log/workerlog.0", attempt))[-1]
    return EPOCH * int(epoch) + int(step) + 1


def shortly_before_a_save(node, run, said):
    """Return the steps that an attempt has trained when the most is to be lost, and None before."""
    steps = trained(node, run, said["attempt"])
    return steps if LATE <= steps % INTERVAL <= LATE + 4 else None


@pytest.fixture(scope="module")
def kept():
    """A detached run that lost node1, and then node3 for good, whose place node1 took again."""
    harness.INVENTORY = PROJECT / "molecule/inventory_with_spare"
    harness.NODES["node3"] = "198.51.100.103"
    for verb in ("local", "provision"):
        done = playbook(verb, *(("-e", "suite=paddledetection") if verb == "provision" else ()))
        assert done.returncode == 0, done.stdout
    known = runs()
    done = playbook("train", *quick_job("saves_seldom"), *DETACHED)
    assert done.returncode == 0, done.stdout
    run = new_run(known)
    try:
        assert "node3 stands by" in done.stdout
        before = wait_for(lambda: saved_after(run, 0), 300)
        container("kill", "node1")
        first = wait_for(lambda: saved_after(run, 1), GRANTED + 300)
        container("start", "node1")
        wait_for(lambda: on("node1", "echo up", check=False) == "up", 60)
        wait_for(lambda: state("node1", run).get("attempt") == first["attempt"], 60)
        first = wait_for(lambda: saved_after(run, 1), 60)
        first["trained"] = wait_for(lambda: shortly_before_a_save("node3", run, first), 180)
        container("rm", "node3", "--force", "--volumes")
        del harness.NODES["node3"]
        replica = attempt_file("node2", run, "replica.json", first["attempt"])
        first["replica"] = json.loads(replica)["step"]
        second = wait_for(lambda: saved_after(run, first["attempt"]), 360)
        yield run, [before, first, second]
    finally:
        for node in NODES:
            subprocess.run(["docker", "start", f"trainyard-molecule-{node}"], capture_output=True)
        playbook("stop", "-e", f"run={run}", "-e", "lost=node3")
        subprocess.run(["docker", "rm", "-f", "trainyard-molecule-node3"], capture_output=True)


def test_the_spare_takes_the_place_of_the_lost_node(kept):
    _run, states = kept
    members = [said["members"] for said in states]
    assert members == [["node1", "node2"], ["node3", "node2"], ["node1", "node2"]]


def test_both_losses_are_named_and_neither_is_a_restart_without_progress(kept):
    _run, states = kept
    trained = [said["attempt"] for said in states[:-1]]
    verdicts = [v for v in states[-1]["verdicts"] if v["attempt"] in trained]
    assert [(v["verdict"]["cause"], v["failed"]) for v in verdicts] == [
        ("unreachable", ["node1"]),
        ("unreachable", ["node3"]),
    ]
    assert all(v["saved"] and v["delay"] == 0 for v in verdicts)


def test_a_lost_disk_costs_what_its_replica_lacked(kept):
    run, states = kept
    for earlier, later in zip(states, states[1:]):
        plan = json.loads(attempt_file("node2", run, "plan.json", later["attempt"]))
        assert plan["resume"]["step"] >= earlier["copied"] > 0
        assert plan["nodes"][0]["name"] == later["members"][0]


def test_a_destroyed_node_of_rank_0_costs_at_most_an_interval(kept):
    run, (_before, first, second) = kept
    assert first["members"][0] == "node3"
    resumed = json.loads(attempt_file("node2", run, "plan.json", second["attempt"]))["resume"]
    assert resumed["step"] == first["replica"]
    assert LATE <= first["trained"] - resumed["step"] <= INTERVAL


def test_a_later_command_collects_each_attempt_from_its_nodes(kept, tmp_path):
    run, (_before, first, second) = kept
    follower = harness.background(tmp_path / "log", "follow", "-e", f"run={run}")

    def collected():
        return {a["number"]: a for a in record(run)["attempts"] if a["verdict"]}

    try:
        wait_for(lambda: first["attempt"] in collected(), 240)
    finally:
        follower.terminate()
        follower.wait(30)
    attempts = collected()
    assert 1 in attempts and second["attempt"] not in attempts
    for number, home in ((1, {"node1", "node2"}), (first["attempt"], {"node2"})):
        assert {rank["node"] for rank in attempts[number]["ranks"]} == home
        assert {node["node"] for node in attempts[number]["nodes"]} == home
    assert attempts[first["attempt"]]["verdict"]["node"] == "node3"


def test_a_stop_is_final_without_the_destroyed_node(kept):
    run, _states = kept
    done = playbook("stop", "-e", f"run={run}", "-e", "lost=node3")
    assert done.returncode == 0, done.stdout
    for node in ("node1", "node2"):
        unit = f"yardsupervisor-{run}-1-{node}.service"
        gone = f"ls .config/systemd/user/{unit} 2>/dev/null || true"
        wait_for(lambda node=node, gone=gone: on(node, gone) == "", 90)
        assert on(node, "grep -c trainyard-run .ssh/authorized_keys || true") == "0"
        assert on(node, f"ls .trainyard/mesh/runs/{run} 2>/dev/null || true") == ""
    assert harness.left_behind(run) == {}
