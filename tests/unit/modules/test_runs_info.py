# SPDX-License-Identifier: Apache-2.0
"""runs_info: the runs of a node, and the directories that are not a run."""

from __future__ import annotations

import pytest
import runs_info
from core_support import program, put
from unit.modules.test_run_prune import lay, run_id


@pytest.fixture
def systemd_without_units(tmp_path, monkeypatch):
    """Put a systemctl that knows no unit first on PATH."""
    program(tmp_path / "bin", "systemctl", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")


def test_runs_and_other_things_are_told_apart(run_module, tmp_path, systemd_without_units):
    lay(tmp_path, 9)
    put(tmp_path / "runs", {"notes.txt": "mine"})
    result = run_module(runs_info, {"folder": str(tmp_path)})
    assert result["changed"] is False
    assert [run["run"] for run in result["look"]["runs"]] == [run_id(9)]
    assert [item["name"] for item in result["look"]["strange"]] == ["notes.txt"]


def test_a_node_without_runs_has_none(run_module, tmp_path, systemd_without_units):
    look = run_module(runs_info, {"folder": str(tmp_path / "none")})["look"]
    assert (look["runs"], look["strange"], look["bytes"]) == ([], [], 0)
