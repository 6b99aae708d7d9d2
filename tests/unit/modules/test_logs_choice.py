# SPDX-License-Identifier: Apache-2.0
"""logs_choice: the run by the nodes' answers, or by what is on the controller."""

from __future__ import annotations

import pytest
from logs_support import RUN, Bench

OTHER = "20261120-200000-other-aaaa"


@pytest.fixture
def bench(load_plugin, monkeypatch, tmp_path):
    return Bench(load_plugin, monkeypatch, tmp_path, "logs_choice")


def test_a_run_that_is_on_the_controller_needs_no_node(bench):
    result = bench({"run": RUN, "answers": {}})
    assert (result["run"], result["number"], result["ended"], result["goes_on"]) == (RUN, 1, [], [])


def test_the_newest_run_and_the_node_that_does_not_answer(bench):
    silent = {"node1": {"unreachable": True, "msg": "no route"}}
    result = bench({"answers": silent})
    assert (result["run"], result["silent"]) == (RUN, ["node1"])
    assert [text.split()[0] for text in bench.warned] == ["node1"]


@pytest.mark.parametrize("run", ["../../x", "20200101-000000-none-0000"])
def test_no_such_run(bench, run):
    assert bench({"run": run, "answers": {}})["failed"]


def test_only_nodes_on_which_it_goes_on_are_followed(bench):
    status = {"found": True, "ended": False, "run": OTHER, "attempt": 1, "attempts": [1]}
    answers = {"node1": {"status": dict(status, nodes=["node1"], known=[OTHER])}}
    assert bench({"answers": answers})["follow"] == []
    result = bench({"answers": answers}, follow="true")
    assert (result["run"], result["goes_on"], result["follow"]) == (OTHER, ["node1"], ["node1"])
