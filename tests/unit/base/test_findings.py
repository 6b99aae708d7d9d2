# SPDX-License-Identifier: Apache-2.0
"""Findings: what differs is named by its nodes, and a table says it once."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import finding


def test_the_nodes_that_differ_from_most_are_named():
    (found,) = findings.unequal(
        "environment.packages_differ",
        "paddlepaddle",
        {"a": "2.6.2", "b": "2.6.1", "c": "2.6.2"},
        "sync",
    )
    assert (
        found["nodes"] == ["b"]
        and (found["check"], found["code"]) == ("environment", "environment.packages_differ")
        and found["text"].startswith("paddlepaddle ")
        and found["text"].endswith(": 2.6.2 on a, c; 2.6.1 on b")
        and found["level"] == "stop"
    )
    assert findings.unequal("environment.packages_differ", "paddlepaddle", {"a": 1, "b": 1}) == []
    assert findings.unequal("clock.off", "x", {"a": 1, "b": 2})[0]["nodes"] == [
        "a",
        "b",
    ]  # neither is the rule


def test_equal_findings_of_many_nodes_are_one_row_and_the_worst_comes_first():
    found = [
        finding("shm.full", "is 64 MB", "raise it", f"n{number}", "warn") for number in range(6)
    ] + [finding("port.taken", "17000 is taken", nodes="n1")]
    lines = findings.lines(found)
    assert lines == [
        "STOP  n1                         port.taken  17000 is taken",
        "WARN  n0, n1, n2, n3 and 2 more  shm.full    is 64 MB",
        "%son n0, n1, n2, n3, n4, n5" % (" " * (4 + 25 + 10 + 6)),
        "%s-> raise it" % (" " * (4 + 25 + 10 + 6)),
    ]
    assert len(found) == 7 and found[0]["nodes"] == [
        "n0"
    ]  # the findings themselves stay as they were
    assert findings.lines([]) == [] and findings.lines([finding("plan.impossible", "x")]) == [
        "STOP  all nodes  plan.impossible  x"
    ]


def test_only_stops_stop():
    found = [finding("a.b", "x", level=level) for level in findings.LEVELS]
    assert [item["level"] for item in findings.stops(found)] == ["stop"]
    with pytest.raises(ValueError):
        finding("a.b", "x", level="error")


@pytest.mark.parametrize("code", ["disk", "disk.", ".full", ""])
def test_a_code_needs_a_check_and_a_reason(code):
    with pytest.raises(ValueError):
        finding(code, "x")


def test_a_finding_that_an_earlier_version_kept_shows_its_check():
    kept = {"check": "network", "level": "note", "nodes": ["n1"], "text": "x", "remedy": ""}
    assert findings.lines([kept]) == ["NOTE  n1  network  x"]
