# SPDX-License-Identifier: Apache-2.0
"""What the report reads on the controller: which run, the lines around the evidence, and what is
damaged.
"""

from __future__ import annotations

import os

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import load as core
from report_support import bring

ONE, TWO = "20261120-103501-ppyoloe-1f2e", "20261120-103502-ppyoloe-1f2e"


@pytest.fixture
def runs(tmp_path):
    for run in (TWO, ONE):
        (tmp_path / run).mkdir()
        (tmp_path / run / "run.json").write_text("{}")
    (tmp_path / "20261120-103503-ppyoloe-1f2e").mkdir()  # was never begun
    (tmp_path / "zzz").mkdir()
    return str(tmp_path)


def test_the_newest_run_is_taken_where_none_is_named(runs):
    assert core.choose_runs(runs, "", []) == [TWO]
    assert core.page_path(runs, [TWO]) == os.path.join(runs, TWO, "report.html")
    assert (
        core.page_path(runs, [ONE, TWO])
        == core.page_path(runs, [ONE, TWO])
        != core.page_path(runs, [TWO, ONE])
    )


@pytest.mark.parametrize(
    "run, several, said",
    [
        ("", [ONE], "runs takes two to 8 different run ids"),
        ("", [ONE, ONE], "runs takes two to 8 different run ids"),
        (ONE, [ONE, TWO], "run and runs are both given"),
    ],
)
def test_what_cannot_be_meant_is_refused(runs, run, several, said):
    with pytest.raises(core.ReportError, match=said):
        core.choose_runs(runs, run, several)


@pytest.mark.parametrize(
    "run, said",
    [
        ("../../etc", "is no run id"),
        ("20261120-103504-ppyoloe-1f2e", "holds no run .* known: .*" + TWO),
    ],
)
def test_a_run_that_is_not_there_is_refused(runs, run, said):
    with pytest.raises(core.ReportError, match=said):
        core.read(runs, run, lambda *_given: {})


def test_no_run_at_all_is_refused(tmp_path):
    with pytest.raises(core.ReportError, match="holds no run; train one first"):
        core.newest(str(tmp_path / "none"))


def test_a_reader_that_fails_costs_its_part_only(tmp_path):
    run = bring(tmp_path, "raised")

    def broken(_run_dir, _points):
        raise RuntimeError("torn")

    found = core.read(str(tmp_path), run, broken)
    assert len(found["notes"]) == 1 and found["series"] == {}
    assert "curves" in found["notes"][0] and found["notes"][0].endswith(": RuntimeError: torn")
    assert found["record"]["job"] == "raise" and len(found["excerpts"]) == 1


def test_lines_around_the_evidence(tmp_path):
    run = bring(tmp_path, "raised")
    (found,) = core.read(str(tmp_path), run, lambda *_given: {})["excerpts"]
    assert (found["attempt"], found["log"], found["line"], found["first"]) == (
        1,
        "rank-001.node2.log",
        26,
        14,
    )
    assert found["lines"][26 - 14] == "ValueError: image 000000012.jpg is truncated"


def test_evidence_may_name_other_lines(tmp_path):
    run = bring(tmp_path, "raised")
    evidence = [
        "rank 0: it says so (rank-000.node1.log:65)",
        "launcher.node2.log, line 2",
        "rank-000.node1.log:65 again",
        "none.log:3",
    ]
    found = core.excerpts(
        str(tmp_path / run), {"attempts": [{"number": 1, "verdict": {"evidence": evidence}}]}
    )
    assert [(item["log"], item["line"]) for item in found] == [
        ("rank-000.node1.log", 65),
        ("launcher.node2.log", 2),
    ]
    assert "TIMEOUT" in found[0]["lines"][12]


def test_a_log_is_never_followed_out_of_the_run(tmp_path):
    run = bring(tmp_path, "raised")
    secret = tmp_path / "secret.log"
    secret.write_text("private\n" * 40)
    log = tmp_path / run / "attempt-1" / "rank-001.node2.log"
    log.unlink()
    log.symlink_to(secret)
    found = core.read(str(tmp_path), run, lambda *_given: {})
    assert found["excerpts"] == [] and "attempt-1/rank-001.node2.log" not in [
        item["path"] for item in found["files"]
    ]
    verdict = {"log": "../../secret.log", "line": 3, "evidence": ["../../../secret.log:3"]}
    assert (
        core.excerpts(str(tmp_path / run), {"attempts": [{"number": 1, "verdict": verdict}]}) == []
    )


def test_a_line_without_an_end_is_cut(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(b"one\n" + b"x" * (1 << 18) + b"\nthree\nfour")
    assert core.lines_of(str(path), 1, 4) == ["one", "x" * core.WIDTH + "...", "three", "four"]
    assert core.lines_of(str(path), 3, 9) == ["three", "four"]


def test_files_have_the_digests_of_the_nodes_and_folders_their_sizes(tmp_path):
    run = bring(tmp_path, "raised")
    (tmp_path / run / "attempt-1" / "vdl").mkdir()
    (tmp_path / run / "attempt-1" / "vdl" / "vdlrecords.1.log").write_bytes(b"12345")
    (tmp_path / run / "report.html").write_text("the last one")
    found = {
        item["path"]: item for item in core.read(str(tmp_path), run, lambda *_given: {})["files"]
    }
    assert found["attempt-1/rank-000.node1.log"]["sha256"].startswith("0b9a7c70d5ae")
    assert found["attempt-1/vdl"] == {
        "path": "attempt-1/vdl",
        "bytes": 5,
        "sha256": None,
        "folder": True,
    }
    assert "plan.json" in found and "report.html" not in found


def test_many_ranks_get_fewer_points_each():
    assert (
        core.points_for(1) == core.points_for(8) == 2000
        and core.points_for(64) * 64 <= core.POINTS
        and core.points_for(512) == core.FEWEST
    )


@pytest.mark.parametrize("run, runs", [("../x", []), ("", ["/etc", "../x"])])
def test_a_report_is_of_runs_only(tmp_path, run, runs):
    with pytest.raises(core.ReportError):
        core.choose_runs(str(tmp_path), run, runs)
