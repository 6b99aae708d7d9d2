# SPDX-License-Identifier: Apache-2.0
"""run_info: the runs that the controller's record knows before any node does."""

from __future__ import annotations

import json
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import restart_policy
from core_support import RUN, compiled, put

OTHER = RUN.replace("ppyoloe", "other")


def test_what_the_controller_knows_of_a_run_that_no_node_knows_yet(tmp_path, run_action):
    asked = {"runs_dir": str(tmp_path), "run_id": RUN}
    assert run_action("run_info", asked)["known"] is False
    put(
        tmp_path / RUN,
        {"plan.json": json.dumps(compiled(count=2)), "attempt-2/x": "", "attempt-1/x": ""},
    )
    assert {key: run_action("run_info", asked)[key] for key in ("known", "number", "nodes")} == {
        "known": True,
        "number": 2,
        "nodes": ["node1", "node2"],
    }


def decided(run_id, ended, again=True, number=1, more=()):
    """A run's record with an attempt that is to be started again."""
    entry = dict(
        run_json.new_entry(number),
        ended=ended,
        verdict={"outcome": "failed", "cause": "killed"},
        again={"again": again},
    )
    return dict(run_json.new_record(run_id, "job", ended), attempts=[entry, *more])


def test_whose_restart_may_wait(tmp_path, run_action):
    """What was decided so, is not begun, and is not of yesterday; of this site; in the place of the
    next attempt.
    """
    now = time.time()
    refused = dict(
        run_json.new_entry(2),
        ended=now,
        verdict={"outcome": "failed", "cause": run_json.NOT_STARTED},
    )
    kept = {
        "a": decided("", now),
        "b": decided("", now, again=False),
        "c": decided("", now - restart_policy.PENDING_SECONDS - 60),
        "d": decided("", now, more=[run_json.new_entry(2)]),
        "e": decided("", now, more=[refused]),
        "f": dict(decided("", now), version=9),
        "7": dict(decided("", now), attempts=["x"]),
        "6": dict(decided("", now), attempts=[{"again": 1}]),
        "8": None,
        "9": decided("", now),
    }
    for mark, record in kept.items():
        made = dict(compiled(count=2), site="other" if mark == "9" else "here")
        files = {
            "attempt-1/plan.json": json.dumps(made),
            **({"run.json": json.dumps(record)} if record else {}),
        }
        files.update({"attempt-2/plan.json": json.dumps(made)} if mark in "de" else {})
        put(tmp_path / (OTHER[:-4] + mark * 4), files)
    put(
        tmp_path,
        {
            "conform.json": "{}",
            "notes/run.json": json.dumps(kept["a"]),
            "notes/attempt-1/plan.json": json.dumps(made | {"site": "here"}),
        },
    )
    asked = {"runs_dir": str(tmp_path), "run_id": "", "site": "here"}
    waiting = run_action("run_info", asked)["waiting"]
    assert waiting == [
        [OTHER[:-4] + "eeee", 3, ["node1", "node2"]],
        [OTHER[:-4] + "aaaa", 2, ["node1", "node2"]],
    ]
    assert run_action("run_info", dict(asked, runs_dir=str(tmp_path / "none")))["waiting"] == []


@pytest.mark.parametrize("run", ["../" + RUN, RUN + "\n", "/etc"])
def test_the_controller_looks_for_no_run_outside_of_its_runs(tmp_path, run_action, run):
    refused = run_action("run_info", {"runs_dir": str(tmp_path), "run_id": run})
    assert refused["failed"] and refused["code"] == "attempt.bad_run_id"
