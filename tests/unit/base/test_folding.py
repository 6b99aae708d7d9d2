# SPDX-License-Identifier: Apache-2.0
"""folding: words for many ranks at once."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import folding


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([3], "rank 3"),
        ([3, 3], "rank 3"),
        ([1, 0], "ranks 0, 1"),
        (range(4), "ranks 0, 1, 2, 3"),
        (range(5), "ranks 0-4"),
        ([9, *range(8), 20, *range(12, 18)], "ranks 0-7, 9, 12-17, 20"),
    ],
)
def test_ranks_in_words(numbers, words):
    assert folding.list_ranks(numbers) == words


def test_ranks_of_many_nodes_are_counted_by_node():
    ranks = [{"rank": rank, "node": f"node{rank // 8 + 1}"} for rank in range(40)]
    assert folding.name_ranks(ranks[5:9]) == "ranks 5, 6, 7 on node1, rank 8 on node2"
    assert folding.name_ranks(ranks[:32]).count(" on node") == 4
    assert folding.name_ranks(ranks[::-1]) == "ranks 0-39 on 5 nodes"


def test_many_equal_ones_are_a_group_where_the_first_stood():
    items = [{"n": n, "key": "abaaacaab"[n]} for n in range(9)]
    groups = folding.group(items, lambda item: item["key"])
    assert [[item["n"] for item in group] for group in groups] == [
        [0, 2, 3, 4, 6, 7],
        [1],
        [5],
        [8],
    ]


def test_what_has_no_key_stays_alone():
    assert folding.group([{"n": n} for n in range(9)], lambda item: None) == [
        [{"n": n}] for n in range(9)
    ]
