# SPDX-License-Identifier: Apache-2.0
"""A run of two nodes that its nodes restart loses one: for a while where the other one may train
alone, and for good where it may not.
"""

from __future__ import annotations

import json
import subprocess

import harness
import pytest
from harness import attempt_file, new_run, on, playbook, quick_job, runs, wait_for

ALLOWED = ("-e", "detach=true", "-e", "max_restarts=5", "-e", "min_nodes=1")
# Seconds after the start in which node1 believes that a lost node2 may train by the controller's
# word (supervisor_order.GRANTED_SECONDS).
GRANTED = 120


def container(verb):
    """Let Docker do something with node2's container."""
    subprocess.run(["docker", verb, "trainyard-molecule-node2"], check=True, capture_output=True)


def state(node, run):
    """Return what the run's supervisor on a node says, {} before it says anything."""
    path = f".trainyard/runs/{run}/supervisor/{node}/status.json"
    return json.loads(on(node, f"cat {path} 2>/dev/null || echo {{}}"))


def trains_after(run, attempt):
    """Return what node1 says once a later attempt has written a checkpoint, and None before."""
    said = state("node1", run)
    is_later = said.get("attempt", 0) > attempt
    if is_later and (said.get("point") or {}).get("attempt") == said["attempt"]:
        return said
    return None


@pytest.fixture(scope="module")
def kept():
    """A detached run that trained on both nodes, on node1 alone, and on both again."""
    known = runs()
    done = playbook("train", *quick_job("saves"), *ALLOWED)
    assert done.returncode == 0, done.stdout
    run = new_run(known)
    try:
        states = [wait_for(lambda: trains_after(run, 0), 240)]
        container("kill")
        states.append(wait_for(lambda: trains_after(run, 1), GRANTED + 180))
        alone = states[-1]["attempt"]
        container("start")
        wait_for(lambda: on("node2", "echo up", check=False) == "up", 60)
        wait_for(lambda: state("node2", run).get("attempt") == alone, 60)
        harness.kill_rank("node1", run, alone)
        states.append(wait_for(lambda: trains_after(run, alone), 240))
        yield run, states
    finally:
        subprocess.run(["docker", "start", "trainyard-molecule-node2"], capture_output=True)
        playbook("stop", "-e", f"run={run}")


def test_one_node_trains_while_the_other_is_away(kept):
    _run, states = kept
    members = [said["members"] for said in states]
    assert members == [["node1", "node2"], ["node1"], ["node1", "node2"]]


def test_each_attempt_begins_where_the_one_before_had_saved(kept):
    run, states = kept
    for earlier, later in zip(states, states[1:]):
        plan = json.loads(attempt_file("node1", run, "plan.json", later["attempt"]))
        assert plan["resume"]["step"] >= earlier["point"]["step"] > 0
        assert [node["name"] for node in plan["nodes"]] == later["members"]
        assert {rank["node"] for rank in plan["ranks"]} == set(later["members"])


def test_a_stop_by_the_only_voter_is_final_on_both(kept):
    run, _states = kept
    done = playbook("stop", "-e", f"run={run}")
    assert done.returncode == 0, done.stdout
    for node in ("node1", "node2"):
        unit = f"yardsupervisor-{run}-1-{node}.service"
        gone = f"ls .config/systemd/user/{unit} 2>/dev/null || true"
        wait_for(lambda node=node, gone=gone: on(node, gone) == "", 90)
    assert harness.left_behind(run) == {}


def test_a_run_that_lost_a_node_for_good_is_stopped_and_goes_on_without_it():
    known = runs()
    done = playbook("train", *quick_job("saves"), "-e", "detach=true")
    assert done.returncode == 0, done.stdout
    run = new_run(known)
    try:
        wait_for(lambda: trains_after(run, 0), 240)
        container("kill")
        named = ("-e", f"run={run}")
        done = playbook("stop", *named)
        assert done.returncode != 0 and "NOT FINAL" in harness.last_line(done.stdout)
        assert "resume.supervised" in playbook("resume", *named, "-e", "min_nodes=1").stdout
        done = playbook("stop", *named, "-e", "lost=node2")
        assert done.returncode == 0, done.stdout
        done = playbook("resume", *named, "-e", "min_nodes=1", "-e", "detach=true")
        assert done.returncode == 0, done.stdout
        said = wait_for(lambda: trains_after(run, 1), 120)
        assert said["members"] == ["node1"]
    finally:
        subprocess.run(["docker", "start", "trainyard-molecule-node2"], capture_output=True)
        wait_for(lambda: on("node2", "echo up", check=False) == "up", 60)
        playbook("stop", *named)
    unit = f"yardsupervisor-{run}-1-node2.service"
    assert unit in on("node2", "ls .config/systemd/user")
    playbook("stop", *named, "-e", "lost=node1")
    assert unit not in on("node2", "ls .config/systemd/user")
