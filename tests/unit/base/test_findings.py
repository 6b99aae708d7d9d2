# SPDX-License-Identifier: Apache-2.0
"""Findings: what differs is named by its nodes, and a table says it once."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import finding


def test_the_nodes_that_differ_from_most_are_named():
    (found,) = findings.unequal(
        "environment", "paddlepaddle", {"a": "2.6.2", "b": "2.6.1", "c": "2.6.2"}, "sync"
    )
    assert (
        found["nodes"] == ["b"]
        and found["text"] == "paddlepaddle differs: 2.6.2 on a, c; 2.6.1 on b"
        and found["level"] == "stop"
    )
    assert findings.unequal("environment", "paddlepaddle", {"a": 1, "b": 1}) == []
    assert findings.unequal("clock", "x", {"a": 1, "b": 2})[0]["nodes"] == [
        "a",
        "b",
    ]  # neither is the rule


def test_equal_findings_of_many_nodes_are_one_row_and_the_worst_comes_first():
    found = [
        finding("shm", "is 64 MB", "raise it", "n%d" % number, "warn") for number in range(6)
    ] + [finding("port", "17000 is taken", nodes="n1")]
    lines = findings.lines(found)
    assert lines == [
        "STOP  n1                         port  17000 is taken",
        "WARN  n0, n1, n2, n3 and 2 more  shm   is 64 MB",
        "%son n0, n1, n2, n3, n4, n5" % (" " * (4 + 25 + 4 + 6)),
        "%s-> raise it" % (" " * (4 + 25 + 4 + 6)),
    ]
    assert len(found) == 7 and found[0]["nodes"] == [
        "n0"
    ]  # the findings themselves stay as they were
    assert findings.lines([]) == [] and findings.lines([finding("plan", "x")])[0].startswith(
        "STOP  all nodes  plan  x"
    )


def test_only_stops_stop():
    found = [finding("a", "x", level=level) for level in findings.LEVELS]
    assert [item["level"] for item in findings.stops(found)] == ["stop"]
    with pytest.raises(ValueError):
        finding("a", "x", level="error")
