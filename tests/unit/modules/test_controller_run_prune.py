# SPDX-License-Identifier: Apache-2.0
"""controller_run_prune: the runs that the controller has, and which of them it keeps."""

from __future__ import annotations

import json
import time

from ansible_collections.trainyard.cluster.plugins.module_utils.runs import prune_scan
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import stream_lock
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import controller_runs
from core_support import ROOT, put
from unit.modules.test_run_prune import PLAN, run_id


def test_what_home_says_of_a_run(tmp_path):
    name = run_id(9)
    record = {"run": name, "attempts": [{"verdict": {"outcome": "completed", "unreachable": []}}]}
    put(
        tmp_path / name,
        {
            "plan.json": json.dumps(PLAN),
            "run.json": json.dumps(record),
            "attempt-1/checkpoint/best_model.pdparams": "w",
        },
    )
    found = controller_runs.describe_run(str(tmp_path), name, {})
    assert (found["settled"], found["completed"], found["checkpoint"], found["odd"]) == (
        True,
        True,
        "best_model",
        "",
    )
    for changes, settled in (
        ({"outcome": "lost"}, False),
        ({"unreachable": ["node2"]}, False),
        ({"outcome": "failed"}, True),
        ({"outcome": None}, False),
    ):
        verdict = dict(record["attempts"][0]["verdict"], **changes)
        put(
            tmp_path / name,
            {"run.json": json.dumps({"run": name, "attempts": [{"verdict": verdict}]})},
        )
        assert controller_runs.describe_run(str(tmp_path), name, {})["settled"] is settled, changes
    for attempts, begun in (
        ([], 5),
        ([{"started": 7, "verdict": None}], 7),
        ([{"ended": 9, "verdict": verdict, "again": {"again": True}}], 9),
    ):
        put(
            tmp_path / name,
            {"run.json": json.dumps({"run": name, "started": 5, "attempts": attempts})},
        )
        said = controller_runs.describe_run(str(tmp_path), name, {})
        assert (said["settled"], said["begun"]) == (False, begun), attempts
    put(tmp_path / name, {"run.json": json.dumps({"run": "other"})})
    assert controller_runs.describe_run(str(tmp_path), name, {})["odd"]


def test_what_is_being_brought_home_is_in_use(tmp_path, run_action):
    name = run_id(9)
    put(
        tmp_path / name,
        {
            "plan.json": json.dumps(PLAN),
            "run.json": json.dumps({"run": name}),
            "attempt-1/.stream.node2": "",
        },
    )
    # a lock that nobody holds is what a killed process has left
    assert controller_runs.held_runs(str(tmp_path)) == {}
    lock = stream_lock.Lock(str(tmp_path / name / "attempt-1"), "node1")
    try:
        look = run_action("controller_runs_info", {"runs_dir": str(tmp_path)})["look"]
        (held,) = [run["held"] for run in look["runs"]]
        assert "its logs" in held
        result = run_action("controller_run_prune", {"runs_dir": str(tmp_path), "names": [name]})
        assert (result["removed"], result["problems"]) == ([], [f"{name} stays: {held}"])
    finally:
        lock.close()
    assert run_action("controller_run_prune", {"runs_dir": str(tmp_path), "names": [name]})[
        "removed"
    ] == [name]


def test_the_real_runs_are_understood():
    """The runs that other trainings on this machine have left, if there are any."""
    folder = ROOT / "runs"
    found = prune_scan.scan_runs(
        str(folder), lambda name: controller_runs.describe_run(str(folder), name, {})
    )
    assert [run for run in found["runs"] if not run["nodes"] and not run["odd"]] == []


def test_a_run_that_was_begun_after_the_look_stays(tmp_path, run_action):
    name, asked = (
        run_id(9),
        {"runs_dir": str(tmp_path), "names": [run_id(9)]},
    )
    put(
        tmp_path / name,
        {
            "plan.json": json.dumps(PLAN),
            "run.json": json.dumps({"run": name, "started": time.time(), "attempts": []}),
        },
    )
    (problem,) = run_action("controller_run_prune", asked)["problems"]
    assert problem.startswith(f"{name} stays: ") and "begun" in problem
    put(tmp_path / name, {"run.json": json.dumps({"run": name, "started": 5, "attempts": []})})
    assert run_action("controller_run_prune", asked)["removed"] == [name]


def test_check_mode_removes_nothing(tmp_path, run_action):
    name = run_id(9)
    put(tmp_path / name, {"plan.json": json.dumps(PLAN), "run.json": json.dumps({"run": name})})
    asked = {"runs_dir": str(tmp_path), "names": [name]}
    result = run_action("controller_run_prune", asked, check=True)
    assert result["changed"] is True and (tmp_path / name).exists()
