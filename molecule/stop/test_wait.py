# SPDX-License-Identifier: Apache-2.0
"""Starts wait in order for nodes that are held."""

from __future__ import annotations

import json
import os
import signal

from harness import (
    JOBS,
    NODES,
    background,
    ended,
    new_run,
    on,
    playbook,
    runs,
    wait_for,
)

QUICK = ("-e", "rehearse=false")
JOB = ("-e", f"config={JOBS}/one_epoch.yml", *QUICK)
TICKETS = "cat $XDG_RUNTIME_DIR/trainyard-tickets/*.json 2>/dev/null || true"


def tickets(node):
    """Return the ids of the tickets on a node."""
    text = on(node, TICKETS)
    return {json.loads("{" + part)["id"] for part in text.split("{")[1:]}


def waiting(log):
    """Return the first line about its wait that a start has printed, None before it."""
    lines = (line for line in log.read_text().splitlines() if line.startswith("waiting: "))
    return next(lines, None)


def test_starts_wait_in_order_and_each_one_runs(tmp_path):
    before = runs()
    holder = background(tmp_path / "holder", "train", "-e", f"config={JOBS}/long.yml", *QUICK)
    held = wait_for(lambda: new_run(before), 120)
    wait_for(lambda: all(on(node, f"ls .trainyard/runs/{held}", False) for node in NODES), 60)
    before, waiters = runs(), {}
    # The second one wants one of the nodes: the two overlap.
    for place, name in enumerate(("first", "left", "killed", "second"), 1):
        more = ("-e", "nodes=1") if name == "second" else ()
        waiters[name] = background(tmp_path / name, "train", *JOB, *more, "-e", "wait=10m")
        line = wait_for(lambda log=tmp_path / name: waiting(log), 60)
        assert held in line and f"place {place} of {place}" in line
    os.killpg(waiters["left"].pid, signal.SIGINT)
    assert waiters["left"].wait(60) != 0
    wait_for(lambda: len(tickets("node1")) == 3 and len(tickets("node2")) == 2, 20)
    # This one has no chance to remove its ticket. The second one must not wait for it for ever.
    os.kill(waiters["killed"].pid, signal.SIGKILL)
    waiters["killed"].wait(10)
    listed = playbook("runs").stdout
    assert "place 1 of" in listed and "place 2 of" in listed, listed
    assert runs() == before, "a start that waits must not start anything"
    playbook("stop", "-e", f"run={held}")
    holder.wait(60)
    codes = [waiters[name].wait(200) for name in ("first", "second")]
    assert codes == [0, 0], [(tmp_path / name).read_text()[-3000:] for name in ("first", "second")]
    one, two = (run for run in runs() if run not in before)
    assert ended("node1", one)["time"] <= ended("node1", two)["time"]
    assert not tickets("node1")


def test_a_wait_that_is_over_starts_nothing(tmp_path):
    before = runs()
    holder = background(tmp_path / "holder", "train", "-e", f"config={JOBS}/long.yml", *QUICK)
    held = wait_for(lambda: new_run(before), 120)
    wait_for(lambda: all(on(node, f"ls .trainyard/runs/{held}", False) for node in NODES), 60)
    done = playbook("train", *JOB, "-e", "wait=5s", result=tmp_path / "result.json")
    problems = json.loads((tmp_path / "result.json").read_text())["problems"]
    playbook("stop", "-e", f"run={held}")
    holder.wait(60)
    assert done.returncode != 0 and problems[0]["codes"] == ["wait.timed_out"]
    assert not any(tickets(node) for node in NODES)
