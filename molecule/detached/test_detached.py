# SPDX-License-Identifier: Apache-2.0
"""A run that its nodes restart, on real nodes: a later command collects every attempt of a detached
one, a stop is final in the middle of a restart, and a command that follows shows each attempt.
"""

from __future__ import annotations

import json
import time

import pytest
from harness import (
    NODES,
    PROJECT,
    attempt_file,
    background,
    begin,
    kill_rank,
    left_behind,
    new_run,
    on,
    playbook,
    quick_job,
    record,
    runs,
    wait_for,
)

DETACHED = ("-e", "detach=true", "-e", "max_restarts=5")
TOLD = "/tmp/told"
WRITE = {"command": ["sh", "-c", f"cat >> {TOLD}; echo >> {TOLD}"], "from_nodes": True}
NOTIFY = ("-e", json.dumps({"trainyard_notify": [WRITE]}))


def state(node, run):
    """Return what the run's supervisor on a node says, {} before it says anything."""
    path = f".trainyard/runs/{run}/supervisor/{node}/status.json"
    return json.loads(on(node, f"cat {path} 2>/dev/null || echo {{}}"))


def states(run, field):
    """Return one field of what each supervisor says."""
    return [state(node, run).get(field) for node in NODES]


def unit(run, node):
    """Return the name of a supervisor's unit."""
    return f"yardsupervisor-{run}-1-{node}.service"


def saved_in(run, attempt):
    """Return the checkpoint that the nodes have agreed on, once that attempt has written one."""
    points = [point for point in states(run, "point") if point and point["attempt"] == attempt]
    return len(points) == len(NODES) and points[0]


@pytest.fixture(scope="module")
def kept():
    """A detached run that was restarted twice while nobody followed it.

    First a rank was killed. Then the leader stood still, and a rank was killed.
    """
    before = runs()
    for node in NODES:
        on(node, f"rm -f {TOLD}")
    done = playbook("train", *quick_job("saves"), *DETACHED, *NOTIFY)
    assert done.returncode == 0, done.stdout
    run = new_run(before)
    wait_for(lambda: saved_in(run, 1), 240)
    kill_rank("node2", run, 1)
    wait_for(lambda: saved_in(run, 2), 240)
    leader = state("node1", run)["leader"]
    on(leader, f"systemctl --user kill --kill-whom=main --signal=STOP {unit(run, leader)}")
    kill_rank("node2", run, 2)
    wait_for(lambda: all(attempt_file(node, run, "plan.json", 3) for node in NODES), 120)
    yield run
    playbook("stop", "-e", f"run={run}")


def test_train_comes_back_and_the_nodes_restart_the_run(kept):
    decided = state("node1", kept)["verdicts"]
    assert [(v["attempt"], v["verdict"]["cause"], v["again"]) for v in decided] == [
        (1, "killed", True),
        (2, "killed", True),
    ]
    assert [v["verdict"]["rank"] for v in decided] == [1, 1]
    plans = {attempt_file(node, kept, "plan.json", 3) for node in NODES}
    assert len(plans) == 1 and json.loads(plans.pop())["resume"]["attempt"] == 2


def test_the_nodes_tell_each_event_once(kept):
    told = [line for node in NODES for line in on(node, f"cat {TOLD} || true").splitlines()]
    events = [json.loads(line) for line in told]
    assert sorted((event["attempt"], event["event"], event["code"]) for event in events) == [
        (1, "failed", "killed"),
        (1, "started", ""),
        (2, "failed", "killed"),
        (2, "restarted", ""),
        (3, "restarted", ""),
    ]
    assert {event["run"] for event in events} == {kept}


def test_a_resume_is_refused_while_the_nodes_restart_the_run(kept):
    done = playbook("resume", "-e", f"run={kept}")
    assert done.returncode != 0
    assert "resume.supervised" in done.stdout or "resume.still_running" in done.stdout


def test_a_question_about_a_run_that_nobody_has_followed_is_about_its_newest_attempt(kept):
    status = playbook("status", "-e", f"run={kept}")
    assert status.returncode == 0 and "attempt 3" in status.stdout, status.stdout
    asked = {"run": kept, "query": "[[attempt, ranks[].rank]]"}
    logs = playbook("logs", "-e", json.dumps(asked))
    assert logs.returncode == 0, logs.stdout
    assert "[3, [0, 1]]" in logs.stdout.splitlines()


def test_a_later_command_collects_every_attempt_and_follows_the_newest(kept, tmp_path):
    follower = background(tmp_path / "log", "follow", "-e", f"run={kept}")
    try:
        wait_for(
            lambda: [a["number"] for a in record(kept)["attempts"] if a["verdict"]] == [1, 2],
            120,
        )
        wait_for(lambda: "attempt 3" in (tmp_path / "log").read_text(), 120)
    finally:
        follower.terminate()
        follower.wait(30)
    attempts = record(kept)["attempts"]
    assert [(a["number"], a["verdict"]["cause"], a["verdict"]["rank"]) for a in attempts] == [
        (1, "killed", 1),
        (2, "killed", 1),
    ]
    assert attempts[1]["resume"]["attempt"] == 1 and attempts[1]["started"]
    assert [a["by"] for a in attempts] == ["controller", "nodes"]
    assert [(a["again"]["again"], a["again"]["by"]) for a in attempts] == [(True, "nodes")] * 2
    # Their models stay on the nodes, which go on from them.
    assert all(a["ranks"] and not a["checkpoint"] for a in attempts)


def test_a_stop_in_the_middle_of_a_restart_is_final(kept):
    kill_rank("node2", kept, 3)
    done = playbook("stop", "-e", f"run={kept}")
    assert done.returncode == 0, done.stdout
    assert states(kept, "is_stopped") == [True, True]
    newest = states(kept, "attempt")
    for node in NODES:
        gone = f"systemctl --user is-active {unit(kept, node)} || true"
        wait_for(lambda node=node, gone=gone: on(node, gone) == "inactive", 90)
        assert on(node, f"ls .config/systemd/user/{unit(kept, node)} 2>/dev/null || true") == ""
    time.sleep(2)
    assert states(kept, "attempt") == newest and left_behind(kept) == {}


def test_the_end_of_a_run_brings_its_newest_model(kept):
    # The newest attempt was stopped before it could save.
    done = playbook("follow", "-e", f"run={kept}")
    attempts = record(kept)["attempts"]
    saved = [attempt["number"] for attempt in attempts if attempt["checkpoint"]]
    assert saved in ([attempts[-1]["number"]], [attempts[-1]["resume"]["attempt"]]), done.stdout
    folder = PROJECT / "runs" / kept / f"attempt-{saved[0]}/checkpoint"
    assert list(folder.glob("*.pdparams"))


def test_a_command_that_follows_shows_the_attempts_that_the_nodes_begin(tmp_path):
    controller, run = begin(tmp_path / "log", "saves", "-e", "max_restarts=3")
    try:
        wait_for(lambda: saved_in(run, 1), 120)
        kill_rank("node2", run, 1)
        wait_for(lambda: saved_in(run, 2), 120)
        wait_for(lambda: "attempt 2" in (tmp_path / "log").read_text(), 60)
        (first,) = record(run)["attempts"]
        assert (first["verdict"]["cause"], first["again"]["by"]) == ("killed", "nodes")
        assert first["by"] == "controller" and not first["checkpoint"]
    finally:
        playbook("stop", "-e", f"run={run}")
    assert controller.wait(120) != 0
    attempts = record(run)["attempts"]
    assert [attempt["by"] for attempt in attempts] == ["controller", "nodes"]
    assert [bool(attempt["checkpoint"]) for attempt in attempts] == [False, True]
    assert record(run)["outcome"] == "stopped" and left_behind(run) == {}
