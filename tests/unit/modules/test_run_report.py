# SPDX-License-Identifier: Apache-2.0
"""The report's module and role: what is written, and that a report that cannot be made changes
nothing of how a run ended.
"""

from __future__ import annotations

import json
import os
import stat

import pytest
from core_support import ROOT
from report_support import Page, bring
from system.test_playbooks import ansible, site

ASSETS = str(ROOT / "roles" / "report")
# The report role after a run; run_record decides, then come figures and page, then the task that
# fails.
AFTER = """
- hosts: localhost
  gather_facts: false
  pre_tasks:
    - add_host: {name: node1, run_attempt: {run_id: %s, number: 1, nodes: [node1, node2]}}
  vars: {trainyard_runs_dir: "%s", report_nodes: [node1, node2]}
  tasks:
    - import_role: {name: report, tasks_from: verdict}
    - import_role: {name: report}
"""


def arguments(runs_dir, **more):
    return dict({"runs_dir": str(runs_dir), "assets": ASSETS}, **more)


def test_the_page_is_whole_and_nobody_elses(run_action, tmp_path):
    run = bring(tmp_path, "raised")
    dry = run_action("run_report", arguments(tmp_path), check=True)
    path = tmp_path / run / "report.html"
    assert dry["report"] == str(path) and dry["changed"] and not path.exists()
    made = run_action("run_report", arguments(tmp_path, run=run))
    assert (
        made["report"] == str(path)
        and made["notes"] == []
        and made["bytes"] == path.stat().st_size
        and "warnings" not in made
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "raised ValueError" in Page(path.read_text(encoding="utf-8")).text
    (tmp_path / run / "job.json").write_text('{"description": "said later"}', encoding="utf-8")
    assert run_action("run_report", arguments(tmp_path, run=run))[
        "changed"
    ] and "said later" in path.read_text(encoding="utf-8")
    assert sorted(os.listdir(tmp_path / run)) == [
        "attempt-1",
        "curve.json",
        "job.json",
        "plan.json",
        "report.html",
        "run.json",
    ], "nothing else is left"


def test_several_runs_make_one_page_beside_them(run_action, tmp_path):
    runs = [bring(tmp_path, name) for name in ("raised", "series/recognition")]
    made = run_action("run_report", arguments(tmp_path, runs=runs))
    assert os.path.dirname(made["report"]) == str(tmp_path) and os.path.basename(
        made["report"]
    ).startswith("compare-")
    assert Page(open(made["report"], encoding="utf-8").read()).text.startswith(
        "Comparison of 2 runs"
    )


def test_the_verb_says_where_the_page_is_and_warns_of_what_is_damaged(tmp_path):
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    run = bring(runs_dir, "raised")
    (runs_dir / run / "run.json").write_text("{\x1b", encoding="utf-8")
    code, output = ansible(
        str(tmp_path),
        "-i",
        site(str(tmp_path)),
        "playbooks/report.yml",
        "-e",
        f"trainyard_runs_dir={runs_dir}",
    )
    assert code == 0 and f"runs/{run}/report.html" in output and "UNREACHABLE" not in output, output
    assert "not complete: run.json " in output and "\x1b" not in output


def test_a_record_of_an_unheard_shape_is_told_in_words(run_action, tmp_path):
    run = bring(tmp_path, "raised")
    (tmp_path / run / "run.json").write_text('{"attempts": [7]}', encoding="utf-8")
    made = run_action("run_report", arguments(tmp_path, run=run))
    assert made["failed"] and made["msg"].startswith("no report: ") and "Traceback" not in str(made)


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"run": "../x"}, "is no run id"),
        ({"run": "20261120-103504-x-1f2e"}, "holds no run"),
        ({}, "train one first"),
    ],
)
def test_a_run_that_is_not_there_is_an_error(run_action, tmp_path, asked, said):
    made = run_action("run_report", arguments(tmp_path, **asked))
    assert made["failed"] and said in made["msg"]


def test_a_report_that_cannot_be_made_changes_no_outcome(tmp_path):
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    run = bring(runs_dir, "raised")
    (runs_dir / run / "report.html").mkdir()  # whatever writes there fails
    (tmp_path / "after.yml").write_text(AFTER % (run, runs_dir), encoding="utf-8")
    code, output = ansible(str(tmp_path), "-i", site(str(tmp_path)), str(tmp_path / "after.yml"))
    assert "figures were not written" in output and "rescued=1" in output, output
    said = json.loads((runs_dir / run / "run.json").read_text(encoding="utf-8"))["attempts"][0][
        "verdict"
    ]
    # the last task told how the run ended
    sentence = said["text"].partition(";")[0]  # the remedy gets the inventory in use
    assert sentence in output.splitlines()[-1] and code != 0 and "failed=1" in output
