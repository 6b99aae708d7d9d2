# SPDX-License-Identifier: Apache-2.0
"""A short real recognition training on two nodes, and a config that cannot be met."""

from __future__ import annotations

import re

import pytest
import yaml
from harness import JOBS, PROJECT, last_line, left_behind, new_run, playbook, runs


@pytest.fixture(scope="module")
def trained():
    before = runs()
    done = playbook("train", "-e", f"config={JOBS}/recognition.yml", timeout=1200)
    print(done.stdout)
    return done, new_run(before)


def test_two_nodes_learn_to_read(trained):
    done, run = trained
    assert done.returncode == 0 and last_line(done.stdout).startswith(
        "COMPLETED: 2 ranks on 2 nodes"
    )
    log = (PROJECT / "runs" / run / "attempt-1" / "rank-000.node1.log").read_text()
    losses = [float(loss) for loss in re.findall(r", loss: ([\d.]+),", log)]
    assert losses[-1] < 0.5 * losses[0], f"the loss does not fall: {losses}"
    assert float(re.search(r"^evaluation   best ([\d.]+)", done.stdout, re.M).group(1)) > 0.3
    assert not left_behind(run)


def test_the_best_model_is_home_and_the_last_one_on_request(trained):
    home = PROJECT / "runs" / trained[1] / "attempt-1" / "checkpoint"
    best, last = (
        {stem + ending for ending in (".pdparams", ".pdopt", ".states")}
        for stem in ("best_accuracy", "latest")
    )
    assert {path.name for path in home.iterdir()} == best
    done = playbook("follow", "-e", f"run={trained[1]}", "-e", "collect_checkpoint=last")
    assert done.returncode == 0 and {path.name for path in home.iterdir()} == best | last, (
        done.stdout
    )


def test_data_that_is_not_there_is_named_before_a_node_is_asked(tmp_path):
    job = yaml.safe_load((PROJECT / JOBS / "recognition.yml").read_text())
    job["overrides"]["Train.dataset.label_file_list"] = ["train_data/ic15_data/none.txt"]
    (tmp_path / "job.yml").write_text(yaml.safe_dump(job))
    before = runs()
    done = playbook("train", "-e", "config=%s" % (tmp_path / "job.yml"))
    assert done.returncode != 0 and new_run(before) is None and "Probe the node" not in done.stdout
    said = " ".join(done.stdout.split())
    assert (
        "Train.dataset.label_file_list: train_data/ic15_data/none.txt is not in the data set"
        " 'ic15_data'" in said
    )
