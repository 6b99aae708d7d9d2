# SPDX-License-Identifier: Apache-2.0
"""run_metrics: where the figures of a run are written, and which users may read them. They are
written completely or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import metrics_file
from prometheus_client.parser import text_string_to_metric_families

RUNS = Path(__file__).resolve().parents[2] / "fixtures" / "series"
RUN = "20261120-190935-raise-1b3e"


@pytest.fixture
def arguments(tmp_path):
    shutil.copytree(RUNS / "failed", tmp_path / "runs" / RUN)
    (tmp_path / "collector").mkdir()
    return {"runs_dir": str(tmp_path / "runs"), "run_id": RUN}


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_runs_own_file(run_action, arguments):
    done = run_action("run_metrics", arguments)
    assert done["changed"] and done["copy"] is None
    assert done["path"].endswith(f"{RUN}/metrics.prom") and mode(done["path"]) == 0o600
    families = text_string_to_metric_families(Path(done["path"]).read_text())
    outcomes = next(family for family in families if family.name == "trainyard_run_outcome")
    assert [s.labels["outcome"] for s in outcomes.samples if s.value] == ["failed"]
    assert not run_action("run_metrics", arguments)["changed"]


def test_the_collectors_file(run_action, arguments, tmp_path):
    arguments["directory"] = str(tmp_path / "collector")
    assert run_action("run_metrics", arguments, check=True)["changed"]
    assert (
        os.listdir(arguments["directory"]) == []
        and not (tmp_path / "runs" / RUN / "metrics.prom").exists()
    )
    done = run_action("run_metrics", arguments)
    assert (
        os.listdir(arguments["directory"]) == [f"trainyard-molecule-{RUN}.prom"]
        and mode(done["copy"]) == 0o644
    )
    assert not run_action("run_metrics", arguments)["changed"]


def test_the_collectors_directory_has_the_newest_runs(run_action, arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_file, "MOST_FILES", 2)
    arguments["directory"] = str(tmp_path / "collector")
    kept = ["trainyard-other-20201120-190935-raise-1b3e.prom", "node.prom"]
    gone = ["trainyard-molecule-raise.prom", "trainyard-molecule-20251120-190935-a-1b3e.prom"]
    newer = "trainyard-molecule-20271120-190935-a-1b3e.prom"
    for name in [*kept, *gone, newer]:
        (tmp_path / "collector" / name).write_text("")
    copy = run_action("run_metrics", arguments)["copy"]
    assert sorted(os.listdir(arguments["directory"])) == sorted(
        [*kept, newer, os.path.basename(copy)]
    )


def test_half_a_file_is_never_seen(run_action, arguments, tmp_path, monkeypatch):
    """Another process may read the directory at any time. Until the file is complete, it has
    another name, which no collector reads.
    """
    arguments["directory"], seen = str(tmp_path / "collector"), []
    replace = os.replace

    def watched(source, target):
        seen.append(
            (
                os.path.basename(source),
                os.path.exists(target),
                Path(source).read_text().endswith("\n"),
            )
        )
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    run_action("run_metrics", arguments)
    assert len(seen) == 2 and all(
        not name.endswith(".prom") and not there and whole for name, there, whole in seen
    )


def test_a_directory_that_cannot_be_written_is_a_warning(run_action, arguments, tmp_path):
    arguments["directory"] = str(tmp_path / "collector" / "gone")
    done = run_action("run_metrics", arguments)
    assert (
        done["changed"]
        and done["copy"] is None
        and "does not see this run" in str(done["warnings"])
    )


def test_a_run_without_a_record(run_action, arguments, tmp_path):
    (tmp_path / "runs" / RUN / "run.json").write_text("")
    assert "run.json is missing" in run_action("run_metrics", arguments)["msg"]


@pytest.mark.parametrize("run", ["../outside", "outside", ".", "x/../../outside"])
def test_what_is_no_run_id_leads_nowhere(run_action, arguments, tmp_path, run):
    source = Path(arguments["runs_dir"]) / arguments["run_id"]
    for place in (tmp_path / "outside", Path(arguments["runs_dir"]) / "outside"):
        shutil.copytree(source, place)
        (place / "metrics.prom").unlink(missing_ok=True)
    before = sorted(tmp_path.rglob("*"))
    assert (
        run_action("run_metrics", dict(arguments, run_id=run))["failed"]
        and sorted(tmp_path.rglob("*")) == before
    )


@pytest.mark.parametrize(
    "path, value",
    [
        (("attempts", 0, "ranks", 0, "last_step"), {"epoch": "x", "step": 1, "steps": 10}),
        (("attempts", 0, "ranks", 0, "last_step"), {"global_step": "x", "step": [1], "ips": "x"}),
        (("attempts", 0, "ranks", 0, "last_step"), {"step": 10**400, "ips": 10**400}),
        (("attempts", 0, "ranks", 0, "last_step"), "x"),
        (("attempts", 0, "ranks"), "x"),
        (("attempts", 0, "verdict"), "x"),
        (("attempts", 0, "number"), "x"),
        (("attempts",), 7),
        (("started",), "x"),
    ],
)
def test_a_malformed_record_leaves_out_its_own_figures(
    run_action, arguments, tmp_path, path, value
):
    file = tmp_path / "runs" / RUN / "run.json"
    record = json.loads(file.read_text())
    attempt = record["attempts"][0]
    record["attempts"].append(dict(attempt, number=0))
    entry = record
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = value
    file.write_text(json.dumps(record))
    done = run_action("run_metrics", arguments)
    assert done["changed"] and "trainyard_run_info{" in Path(done["path"]).read_text()


@pytest.mark.parametrize("text", ["[1]", "7", '"x"'])
def test_a_record_that_is_not_a_mapping(run_action, arguments, tmp_path, text):
    (tmp_path / "runs" / RUN / "run.json").write_text(text)
    assert "run.json is missing" in run_action("run_metrics", arguments)["msg"]
