# SPDX-License-Identifier: Apache-2.0
"""Failures that ranks have in common: the error of each rank is its own."""

from __future__ import annotations

import line_cases
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import common_failures

ABOVE = line_cases.LOST[: line_cases.LOST.index("OSError")]
VAGUE = ABOVE + "ValueError: the batch does not fit\n"
MISSING = ABOVE + "ModuleNotFoundError: No module named 'shapely'\n"


def decided(folder, logs):
    """Return the verdict where rank 0 ended two seconds before rank 1."""
    line_cases.lay(folder, logs, 0)
    return line_cases.corpus.decide(folder)


@pytest.mark.parametrize(
    ("logs", "code", "rank", "cause"),
    [
        ([VAGUE, VAGUE], "verdict.common", None, "python_exception"),
        ([MISSING, MISSING], "verdict.common", 0, "import_error"),
        ([VAGUE, line_cases.LOST], "verdict.named", 0, "python_exception"),
        ([MISSING, VAGUE], "verdict.tied", None, "unknown"),
    ],
)
def test_what_all_ranks_raise(logs, code, rank, cause, tmp_path):
    found = decided(tmp_path, logs)
    assert (found["code"], found["rank"], found["cause"]) == (code, rank, cause), found["text"]
    if code == "verdict.common":
        assert found["line"] == 4 and found["log"]


def candidate(rank, node, kind="ValueError", weight=100, **error):
    """Return a candidate with an error of its own."""
    error = {"kind": kind, "text": "x", "cause": "python_exception", "grade": "primary", **error}
    return {
        "rank": rank,
        "node": node,
        "weight": weight,
        "signal": None,
        "exit_code": 1,
        "lines": 9,
        "error": {"line": 9, "handled": False, "survived": False, **error},
    }


PLAN = [{"rank": rank, "node": f"node{1 + rank // 2}"} for rank in range(4)]


def ranks_of(candidates, plan=PLAN):
    """Return the ranks that have the failure in common."""
    return [c["rank"] for c in common_failures.find_common(candidates, plan)]


def test_ranks_of_one_node_among_others_have_nothing_in_common_with_the_job():
    assert ranks_of([candidate(0, "node1"), candidate(2, "node2")]) == [0, 2]
    assert ranks_of([candidate(2, "node2"), candidate(3, "node2")]) == []


def test_on_one_node_all_ranks_must_have_it():
    plan = [dict(rank, node="node1") for rank in PLAN[:2]]
    both = [candidate(0, "node1"), candidate(1, "node1")]
    assert ranks_of(both, plan) == [0, 1]
    assert ranks_of(both[:1], plan) == []
    assert ranks_of(both[:1], plan[:1]) == []


def test_another_failure_that_may_have_been_the_first_leaves_it_open():
    both = [candidate(0, "node1"), candidate(2, "node2")]
    assert ranks_of([*both, candidate(3, "node2", kind="KeyError", weight=80)]) == []
    assert ranks_of([*both, candidate(3, "node2", kind="KeyError", weight=20)]) == [0, 2]


def test_what_follows_others_is_nothing_of_its_own():
    assert ranks_of([candidate(0, "node1", grade="secondary"), candidate(2, "node2")]) == []
    assert ranks_of([candidate(None, "node1"), candidate(None, "node2")]) == []
    silent = candidate(2, "node2", weight=40)
    assert ranks_of([candidate(0, "node1"), silent]) == []
    silent["error"]["closing"] = True
    assert ranks_of([candidate(0, "node1"), silent]) == [0, 2]
