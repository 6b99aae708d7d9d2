# SPDX-License-Identifier: Apache-2.0
"""Start, detach, stop: exactly the run ends, on every node, and nothing else."""

from __future__ import annotations

import os
import signal

import pytest
from harness import (
    JOBS,
    NODES,
    background,
    ended,
    last_line,
    left_behind,
    new_run,
    on,
    playbook,
    runs,
    training,
    wait_for,
)

JOB = ("-e", f"config={JOBS}/long.yml")


@pytest.fixture(scope="module")
def detached(tmp_path_factory):
    """A long training that was left with Ctrl-C once it had made its first steps, and a bystander
    of the same user on every node.
    """
    for node in NODES:
        on(
            node,
            "systemctl --user reset-failed bystander.service 2>/dev/null; systemd-run --user"
            " --quiet --unit=bystander sleep 3600",
        )
    before, log = runs(), tmp_path_factory.mktemp("stop") / "log"
    controller = background(log, "train", *JOB)
    run = wait_for(lambda: new_run(before), 120)
    wait_for(lambda: training(run), 180)
    os.killpg(controller.pid, signal.SIGINT)
    code = controller.wait(60)
    yield run, code, log.read_text()
    playbook("stop", "-e", f"run={run}")
    for node in NODES:
        on(node, "systemctl --user stop bystander.service", check=False)


def test_ctrl_c_detaches_and_says_how_to_come_back(detached):
    run, code, text = detached
    assert code != 0
    assert (
        f"playbooks/follow.yml -e run={run}" in text and f"playbooks/stop.yml -e run={run}" in text
    )
    steps = len(training(run))
    wait_for(lambda: len(training(run)) > steps, 60)


def test_status_tells_how_it_stands(detached):
    done = playbook("status")
    assert done.returncode == 0
    assert detached[0] in done.stdout or "running" in done.stdout
    assert all("%-10s running" % node in done.stdout for node in NODES)


def test_a_second_run_is_refused_and_told_who_holds_the_nodes(detached):
    done = playbook("train", *JOB)
    assert done.returncode != 0
    assert f"held by Trainyard run {detached[0]}" in done.stdout
    assert all(ended(node, detached[0]) is None for node in NODES), (
        "the refused start must not end the run that holds the nodes"
    )


def test_stop_of_an_unknown_run_names_the_known_ones(detached):
    done = playbook("stop", "-e", "run=20200101-000000-nothing-0000")
    assert done.returncode != 0 and detached[0] in done.stdout
    assert all(ended(node, detached[0]) is None for node in NODES)


def test_stop_leaves_nothing_of_the_run_and_everything_else(detached):
    run = detached[0]
    assert left_behind(run), "nothing was running that could be stopped"
    done = playbook("stop", "-e", f"run={run}")
    assert done.returncode == 0, done.stdout
    assert left_behind(run) == {}
    for node in NODES:
        assert on(node, "ss -Htln 'sport = :17000'") == ""
        assert on(node, "systemctl --user is-active bystander.service") == "active"
        assert on(node, "systemctl --user list-units --all --plain --no-legend 'trainyard-*'") == ""
    again = playbook("stop", "-e", f"run={run}")
    assert again.returncode == 0 and "changed=0" in again.stdout


def test_the_verdict_of_a_stopped_run_is_stopped(detached):
    done = playbook("follow", "-e", f"run={detached[0]}")
    assert done.returncode != 0 and last_line(done.stdout).startswith("STOPPED")
