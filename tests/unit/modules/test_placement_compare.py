# SPDX-License-Identifier: Apache-2.0
"""placement_compare: the nodes that are asked for files by name."""

from __future__ import annotations


def fact(*buckets):
    places = {"data/coco": {"buckets": "".join(mark * 8 for mark in buckets)}}
    return {"placement": {"places": places}}


def test_one_that_agrees_with_most_comes_first(run_action):
    facts = {"node1": fact("a", "b"), "node2": fact("a", "c"), "node3": fact("a", "b")}
    result = run_action("placement_compare", {"facts": facts})
    assert result["nodes"] == ["node1", "node2"] and result["changed"] is False
    assert list(result["buckets"]) == ["data/coco"]


def test_nodes_that_agree_or_know_nothing_are_not_asked(run_action):
    facts = {"node1": fact("a"), "node2": fact("a"), "node3": {}}
    result = run_action("placement_compare", {"facts": facts})
    assert result["nodes"] == [] and result["buckets"] == {}
