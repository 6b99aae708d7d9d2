# SPDX-License-Identifier: Apache-2.0
"""logs_show: the answer to a question about a run on the controller."""

from __future__ import annotations

import pytest
from logs_support import CHOICE, RUN, Bench


@pytest.fixture
def bench(load_plugin, monkeypatch, tmp_path):
    return Bench(load_plugin, monkeypatch, tmp_path, "logs_show")


LAST = "ValueError: image 000000012.jpg is truncated"


def test_without_options_it_says_where_the_logs_lie(bench):
    result = bench({"choice": CHOICE})
    assert result["offsets"] == {} and result["changed"] is False
    assert "rank-001.node2.log" in bench.shown[0] and LAST in bench.shown[0]


def test_the_end_of_a_log_and_how_far_it_was_shown(bench):
    result = bench({"choice": CHOICE}, rank="1", lines="1")
    size = (bench.runs / RUN / "attempt-1/rank-001.node2.log").stat().st_size
    assert result["offsets"] == {"rank-001.node2.log": size}
    assert bench.shown[0].strip().endswith(LAST)


@pytest.mark.parametrize(
    "options", [{"rank": "7"}, {"node": "node9"}, {"query": "sum(ranks[].state)"}]
)
def test_what_the_run_does_not_have_is_refused(bench, options):
    assert bench({"choice": CHOICE}, **options)["failed"] and bench.shown == []
