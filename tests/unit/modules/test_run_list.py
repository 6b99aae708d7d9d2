# SPDX-License-Identifier: Apache-2.0
"""run_list: the answers of the nodes and the records of the controller, as table and page."""

from __future__ import annotations

import pytest
from core_support import ROOT
from unit.runs.test_run_table import OLD, answer, entry


@pytest.fixture
def given(tmp_path):
    return {
        "runs_dir": str(tmp_path / "runs"),
        "answers": {"node1": answer(entry("node1")), "node2": answer(entry("node2"))},
        "silent": ["node3"],
        "site": "lab",
        "assets": str(ROOT / "roles" / "report"),
    }


def test_the_table_and_the_page_have_the_run(run_action, given):
    result = run_action("run_list", given)
    (run,) = result["runs"]
    assert (run["run"], run["state"], run["nodes"]) == (OLD, "completed", ["node1", "node2"])
    assert any(OLD in line for line in result["lines"])
    assert any("node3" in line for line in result["lines"])
    with open(result["index"], encoding="utf-8") as page:
        assert OLD in page.read()


def test_check_mode_writes_no_page(run_action, given, tmp_path):
    run_action("run_list", given, check=True)
    assert not (tmp_path / "runs").exists()
