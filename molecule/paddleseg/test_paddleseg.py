# SPDX-License-Identifier: Apache-2.0
"""A short real PP-LiteSeg training on two nodes over --master, looked at from outside."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from harness import JOBS, NODES, PROJECT, last_line, left_behind, new_run, on, playbook, runs


@pytest.fixture(scope="module")
def trained():
    before = runs()
    done = playbook("train", "-e", f"config={JOBS}/segmentation.yml", timeout=1500)
    print(done.stdout)
    return done, new_run(before)


def test_completes_and_the_loss_falls(trained):
    done, run = trained
    assert done.returncode == 0 and last_line(done.stdout).startswith(
        "COMPLETED: 2 ranks on 2 nodes"
    )
    log = (PROJECT / "runs" / run / "attempt-1" / "rank-000.node1.log").read_text()
    losses = [float(loss) for loss in re.findall(r"\[TRAIN\].* loss: ([\d.]+),", log)]
    assert len(losses) == 10 and sum(losses[-3:]) < 0.95 * sum(losses[:3]), (
        f"the loss does not fall: {losses}"
    )
    assert re.search(r"^evaluation   miou [\d.]+", done.stdout, re.M), "the evaluation was not read"


def test_the_ranks_met_at_the_master_in_inventory_order(trained):
    run = trained[1]
    plan = json.loads((PROJECT / "runs" / run / "plan.json").read_text())
    assert plan["argv"][4:6] == ["--master=198.51.100.101:17000", "--nnodes=2"] and not any(
        "--ips" in word for word in plan["argv"]
    )
    for rank, node in enumerate(NODES):
        started = [
            json.loads(line)
            for line in on(node, f"cat .trainyard/runs/{run}/attempt-1/ranks.jsonl").splitlines()
        ]
        first = next(event for event in started if event["event"] == "start")
        assert first["rank"] == rank and first["endpoints_as_planned"], first
        reported = on(node, f"cat .trainyard/runs/{run}/attempt-1/log/envlog.0")
        # the launcher's own ports come from the range that the plan gives it
        ports = [
            int(port)
            for port in re.findall(
                r"198\.51\.100\.10[12]:(\d+)",
                reported.split("PADDLE_TRAINER_ENDPOINTS")[1].split("\n")[0],
            )
        ]
        assert len(ports) == 2 and all(17001 <= port <= 17064 for port in ports), ports


def test_a_checkpoint_that_is_a_folder_is_home_bit_for_bit(trained):
    run = trained[1]
    home = PROJECT / "runs" / run / "attempt-1" / "checkpoint"
    assert {str(path.relative_to(home)) for path in home.rglob("*.pdparams")} == {
        "best_model/model.pdparams"
    }
    there = on(
        "node1",
        f"sha256sum .trainyard/runs/{run}/attempt-1/output/pp_liteseg/best_model/model.pdparams",
    ).split()[0]
    here = subprocess.run(
        ["sha256sum", home / "best_model" / "model.pdparams"],
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout.split()[0]
    assert here == there and not left_behind(run)
