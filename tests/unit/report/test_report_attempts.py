# SPDX-License-Identifier: Apache-2.0
"""The report of a run that was started again: every attempt with its own plan, its verdict, and
from what it went on.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import (
    load,
    report_view,
    series,
)
from core_support import ROOT

OLD = ROOT / "tests/fixtures/raised/20261120-190935-raise-1b3e"
AGAIN = {
    "again": True,
    "reason": None,
    "why": "something from outside ended it",
    "delay": 10,
    "number": 1,
    "of": 2,
    "cause": "killed",
}
POINT = {
    "attempt": 1,
    "name": "0",
    "digest": "d" * 64,
    "epoch": 1,
    "step": None,
    "lr": 0.5,
    "source": "node1",
    "note": "",
}


@pytest.fixture
def twice(tmp_path):
    """A real run of version 1 that went on as version 2: its second attempt ran on node9 instead of
    node2.
    """
    run = tmp_path / OLD.name
    shutil.copytree(OLD, run)
    shutil.copytree(OLD / "attempt-1", run / "attempt-2")
    moved = (OLD / "plan.json").read_text(encoding="utf-8").replace('"node2"', '"node9"')
    for folder in ("", "attempt-2"):
        (run / folder / "plan.json").write_text(moved, encoding="utf-8")
    (run / "attempt-1" / "plan.json").write_text(
        (OLD / "plan.json").read_text(encoding="utf-8"), encoding="utf-8"
    )
    for path in sorted((run / "attempt-2").glob("*node2*")):
        path.rename(path.with_name(path.name.replace("node2", "node9")))
    (run / "attempt-2" / "ranks.json").unlink(missing_ok=True)
    record = run_json.read(str(OLD))
    record = run_json.merge_entry(record, dict(record["attempts"][0], again=AGAIN))
    entry = run_json.new_entry(2, started=record["ended"] + 10, resume=POINT)
    run_json.write_entry(str(run), record, entry)
    return load.read(str(tmp_path), OLD.name, series.of_run)


def test_every_attempt_is_shown_with_its_own_plan(twice):
    view = report_view.view(twice, 1795200000)
    first, second = view["attempts"]
    assert [{row["node"] for row in attempt["ranks"]} for attempt in (first, second)] == [
        {"node1", "node2"},
        {"node1", "node9"},
    ]
    assert first["verdict"]["badge"] == "FAILED" and view["verdict"]["number"] == 2
    [(title, words)] = first["story"]
    assert title == "restart"
    assert words.startswith("1 of 2 in 10 s,") and words.endswith(AGAIN["why"])
    [(title, words)] = second["story"]
    assert title == "went on from"
    assert re.findall("[0-9.]+", words) == ["2", "0", "1", "1", "0.5"]
    assert words.endswith("learning rate 0.5")
    assert twice["notes"] == [] and json.dumps(view)


def test_each_attempts_curves_are_its_own(twice):
    assert {curve["label"] for curve in report_view.view(twice, 0)["data"]["curves"]} >= {
        "rank 0, attempt 1",
        "rank 0, attempt 2",
    }
    assert [attempt["number"] for attempt in twice["series"]["attempts"]] == [1, 2]
    assert twice["series"]["nodes"] == ["node1", "node9"]
    assert [sorted(attempt["clock"]) for attempt in twice["series"]["attempts"]] == [
        ["node1", "node2"],
        ["node1", "node9"],
    ]
