# SPDX-License-Identifier: Apache-2.0
"""logs_run_info: a node's status, or why it is not one."""

from __future__ import annotations

import pytest
from logs_support import RUN, Bench


@pytest.fixture
def bench(load_plugin, monkeypatch, tmp_path):
    return Bench(load_plugin, monkeypatch, tmp_path, "logs_run_info")


def test_the_status_of_the_node(bench):
    status = {"found": False, "ended": True, "state": "none", "known": [], "run": RUN}
    assert bench({"run": RUN}, answer={"status": status})["status"] == status


@pytest.mark.parametrize(
    "answer",
    [
        {"failed": True, "msg": "no such directory"},
        {},
        {"status": "running"},
        {"status": {"found": False}},
        {"status": {"found": True, "ended": False, "run": "../x", "attempt": 1}},
        {"status": {"found": True, "ended": False, "run": "20261120-200000-other-aaaa"}},
    ],
)
def test_an_answer_that_is_not_one_is_refused(bench, answer):
    result = bench({"run": RUN}, answer=answer)
    assert result["failed"] and "status" not in result
