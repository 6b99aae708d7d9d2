# SPDX-License-Identifier: Apache-2.0
"""The logs are fetched to the controller while a real training runs. They are as on the nodes, with
each byte once, also where the connection is cut meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess

import pytest
from harness import (
    ENVIRONMENT,
    JOBS,
    NODES,
    PROJECT,
    command,
    new_run,
    on,
    playbook,
    runs,
    senders,
    training,
    wait_for,
)

LOGS = {"log/workerlog.0": {"node1": "rank-000.node1.log", "node2": "rank-001.node2.log"}}
LOGS.update(
    {
        name: {node: home % node for node in NODES}
        for name, home in (("logs.txt", "launcher.%s.log"), ("ranks.jsonl", "ranks.%s.jsonl"))
    }
)


def steps_at_home(home):
    path = home / "rank-000.node1.log"
    return path.read_text(errors="replace").count("Epoch: [") if path.exists() else 0


def grown(home, steps):
    def more_steps_at_home():
        return steps_at_home(home) > steps

    wait_for(more_steps_at_home, 120)


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    """A training that was followed; node1's stream was killed twice, then the run was stopped. What
    came of it, and where.
    """
    before, out, cuts = runs(), tmp_path_factory.mktemp("stream") / "out.json", []
    environment = dict(
        ENVIRONMENT, ANSIBLE_STDOUT_CALLBACK="ansible.posix.json"
    )  # every task's result, which nobody sees otherwise
    with open(out, "wb") as handle:
        words = command("train", "-e", f"config={JOBS}/long.yml")
        controller = subprocess.Popen(
            words,
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            start_new_session=True,
        )
    try:
        run = wait_for(lambda: new_run(before), 300)
        home = PROJECT / "runs" / run / "attempt-1"
        wait_for(lambda: training(run), 300)
        grown(home, 0)
        for _cut in range(2):
            cuts.append((wait_for(lambda: senders("node1"), 60), steps_at_home(home)))
            for pid in cuts[-1][0]:
                os.kill(pid, signal.SIGKILL)
            grown(home, cuts[-1][1])
        running = {
            "mode": os.stat(home / "rank-000.node1.log").st_mode & 0o777,
            "there": len(training(run)),
            "here": steps_at_home(home),
        }
        playbook("stop", "-e", f"run={run}")
        controller.wait(300)
    finally:
        if controller.poll() is None:
            os.killpg(controller.pid, signal.SIGINT)
            controller.wait(60)
    results = {}
    for play in json.loads(out.read_text())["plays"]:
        for task in play["tasks"]:
            results[task["task"]["name"].rpartition(" : ")[2]] = task["hosts"]
    return {"run": run, "home": home, "cuts": cuts, "running": running, "results": results}


def test_the_logs_were_here_while_it_ran(streamed):
    assert streamed["running"]["mode"] == 0o600
    assert streamed["running"]["here"] >= 3
    assert all(len(pids) == 1 for pids, _steps in streamed["cuts"]), (
        "there was no stream, or more than one, to be cut"
    )


@pytest.mark.parametrize("node", NODES)
def test_what_is_at_home_is_what_the_node_has(streamed, node):
    for file, homes in LOGS.items():
        there = on(
            node, "sha256sum .trainyard/runs/{}/attempt-1/{}".format(streamed["run"], file)
        ).split()[0]
        assert hashlib.sha256((streamed["home"] / homes[node]).read_bytes()).hexdigest() == there, (
            file
        )
    names = sorted(path.name for path in streamed["home"].iterdir() if path.is_file())
    assert not [name for name in names if name.startswith(".")], (
        "a lock or a part of a file was left"
    )
    index = {
        item["home"]: item
        for item in json.loads((streamed["home"] / "ranks.json").read_text())["files"]
    }
    assert set(index) == set(names) - {"ranks.json", "plan.json"}


@pytest.mark.parametrize("node", NODES)
def test_each_byte_crossed_once_and_nothing_was_left_for_the_end(streamed, node):
    stream = streamed["results"]["Follow the attempt until it ends"][node]["status"]["stream"]
    here = sum(path.stat().st_size for path in streamed["home"].glob(f"*.{node}.*"))
    assert stream["bytes"] == here > 0
    assert stream["restarts"] == (2 if node == "node1" else 0)
    assert (
        streamed["results"]["Find the logs that were not copied while the run was followed"][
            "node1"
        ]["missing"][node]
        == {}
    )


def test_no_sender_is_left_anywhere(streamed):
    assert {node: senders(node) for node in NODES} == {node: [] for node in NODES}
    for node in NODES:
        wait_for(lambda there=node: not on(there, "pgrep -f '[s]hipping.py' || true"), 30)
    assert streamed["run"]
