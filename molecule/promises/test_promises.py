# SPDX-License-Identifier: Apache-2.0
"""conform.yml on real nodes: every line holds, and one that does not is named and costs the exit
code.
"""

from __future__ import annotations

import json

import pytest
from harness import JOBS, PROJECT, last_line, on, playbook, runs

# Suite -> a job whose completed run its lines stand on; where the other scenarios have run, there
# is one.
WITNESSES = {"paddledetection": "short", "paddleocr": "recognition", "paddleseg": "segmentation"}


def completed(run):
    """Return the suite of a run that completed on molecule's nodes, which still hold it, or
    None.
    """
    folder = PROJECT / "runs" / run
    record = json.loads((folder / "run.json").read_text())
    # a run whose controller was killed has no verdict
    if (
        not record["attempts"]
        or (record["attempts"][-1]["verdict"] or {}).get("outcome") != "completed"
    ):
        return None
    plan = json.loads((folder / "plan.json").read_text())
    if plan["site"] != "molecule" or len(plan["nodes"]) < 2:
        return None
    held = on("node2", f"ls -d .trainyard/runs/{run} 2>/dev/null || true")
    return plan["suite"]["name"] if held else None


@pytest.fixture(scope="module")
def witnesses():
    """Train what no scenario before this one has."""
    known = {completed(run) for run in runs()}
    for suite, job in WITNESSES.items():
        if suite not in known:
            done = playbook("train", "-e", f"config={JOBS}/{job}.yml", timeout=1500)
            assert done.returncode == 0, done.stdout


def test_every_promise_holds(witnesses):
    done = playbook("conform")
    print(done.stdout)
    assert done.returncode == 0 and last_line(done.stdout).startswith("37 of 37 promises hold"), (
        done.stdout[-6000:]
    )


def test_a_node_that_lost_its_run_is_named(witnesses):
    run = max(run for run in runs() if completed(run) == "paddleseg")
    plan = f".trainyard/runs/{run}/attempt-1/plan.json"
    on("node2", f"mv {plan} {plan}.kept")
    try:
        done = playbook("conform")
    finally:
        on("node2", f"mv {plan}.kept {plan}")
    assert done.returncode != 0 and "NOT HELD: B4" in done.stdout and "on node2" in done.stdout, (
        done.stdout[-6000:]
    )
