# SPDX-License-Identifier: Apache-2.0
"""run_states_info: the runs of a node by their own files, the newest ended ones and no more."""

from __future__ import annotations

import json

import pytest
import run_states_info
from core_support import RUN, attempt_files, compiled, program, put

OVER = {"event": "launcher_end", "exit_code": 0, "signal": None}


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A home with an attempt that has completed, on a machine whose units have all ended."""
    program(
        tmp_path / "bin",
        "systemctl",
        'case "$*" in *list-units*) ;; *) echo inactive ;; esac',
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = attempt_files(tmp_path / ".trainyard", compiled(count=2, devices=2), "node1")
    ended = json.dumps({"service_result": "success", "stopped_by": None})
    put(path, {"ranks.jsonl": json.dumps(OVER) + "\n", "exit.json": ended})
    return "node1"


def test_a_run_has_its_state_job_and_nodes(run_module, node):
    result = run_module(run_states_info, {"node": node})
    (run,) = result["runs"]
    assert (run["run"], run["state"], run["ended"]) == (RUN, "completed", True)
    assert (run["node"], run["nodes"]) == ("node1", ["node1", "node2"])
    assert result["changed"] is False and result["left_out"] == 0


def test_older_runs_are_counted(run_module, node):
    result = run_module(run_states_info, {"node": node, "most": 0})
    assert (result["runs"], result["left_out"]) == ([], 1)


def test_a_node_without_runs_has_none(run_module, node):
    result = run_module(run_states_info, {"node": node, "base": "elsewhere"})
    assert (result["runs"], result["left_out"]) == ([], 0)
