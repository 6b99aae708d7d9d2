# SPDX-License-Identifier: Apache-2.0
"""controller_runs_info: the runs that the controller keeps."""

from __future__ import annotations

import json

from core_support import put
from unit.modules.test_run_prune import PLAN, run_id


def test_runs_and_other_things_are_told_apart(run_action, tmp_path):
    name = run_id(9)
    put(tmp_path / name, {"plan.json": json.dumps(PLAN), "run.json": json.dumps({"run": name})})
    put(tmp_path, {"notes.txt": "mine"})
    look = run_action("controller_runs_info", {"runs_dir": str(tmp_path)})["look"]
    assert [run["run"] for run in look["runs"]] == [name]
    assert [item["name"] for item in look["strange"]] == ["notes.txt"]


def test_a_controller_without_runs_has_none(run_action, tmp_path):
    look = run_action("controller_runs_info", {"runs_dir": str(tmp_path / "none")})["look"]
    assert (look["runs"], look["bytes"]) == ([], 0)
