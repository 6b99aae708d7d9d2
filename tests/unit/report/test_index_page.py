# SPDX-License-Identifier: Apache-2.0
"""The page of all runs: its text holds no markup of a node's, its curve is the training's."""

from __future__ import annotations

import json

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import (
    index_page,
    report_page,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import run_table
from core_support import ROOT
from report_support import ATTACK, NOW, bring

ASSETS = str(ROOT / "roles" / "report")


def test_the_report_of_a_run_writes_the_page_with_its_curve(tmp_path):
    run = bring(tmp_path, "series/recognition")
    report_page.write_page(str(tmp_path), run, [], ASSETS, write=True)
    losses = json.loads((tmp_path / run / "curve.json").read_text())["loss"]
    assert 2 <= len(losses) <= index_page.CURVE_POINTS
    record = index_page.read_records(str(tmp_path))[run]
    assert losses[-1] == record["attempts"][-1]["ranks"][0]["last_step"]["loss"]
    text = (tmp_path / "index.html").read_text()
    assert f'<a href="{run}/report.html">{run}</a>' in text
    assert "<polyline points=" in text


def test_the_place_of_a_recorded_run_is_counted_as_that_of_one_that_goes_on(tmp_path):
    run = bring(tmp_path, "raised")
    (row,) = run_table.merge({}, index_page.read_records(str(tmp_path)), [])
    assert (row.progress, row.unit) == ("epoch 1/8  step 5/12", "images/s")
    for plan in ("[]", '{"suite": "x"}', '{"suite": {"logs": {"step": []}}}'):
        (tmp_path / run / "plan.json").write_text(plan)
        (row,) = run_table.merge({}, index_page.read_records(str(tmp_path)), [])
        assert row.progress == "epoch 0  step 4/12" and row.unit is None


def test_a_check_writes_nothing(tmp_path):
    bring(tmp_path, "raised")
    index_page.write(str(tmp_path), "lab", [], ASSETS, NOW, write_file=False)
    assert not (tmp_path / "index.html").exists()


def test_texts_of_nodes_are_no_markup(tmp_path):
    row = run_table.Row("20261120-103501-x-1f2e", job=ATTACK, owner=ATTACK, code=ATTACK)
    row.nodes, row.silent, row.progress, row.unit, row.speed = [ATTACK], [ATTACK], ATTACK, ATTACK, 1
    index_page.write(str(tmp_path), ATTACK, [row], ASSETS, NOW, write_file=True)
    text = (tmp_path / "index.html").read_text()
    assert text.count("<script") == 1 and "<img" not in text and "\x1b" not in text


@pytest.mark.parametrize("values", [[], [1.0], ["x", None], [float("nan")], [True, False]])
def test_fewer_than_two_numbers_are_no_curve(values):
    assert index_page.points_of(values) is None


def test_a_curve_fits_its_picture():
    points = index_page.points_of([5.0, 1.0, 3.0])
    assert points == "0.0,1.0 60.0,27.0 120.0,14.0"
    assert index_page.points_of([2.0, 2.0])  # a flat one divides by nothing
