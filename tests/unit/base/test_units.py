# SPDX-License-Identifier: Apache-2.0
"""Numbers as text."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import units


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0:00"),
        (None, "0:00"),
        (-5, "0:00"),
        (59.9, "0:59"),
        (65, "1:05"),
        (3600, "1:00:00"),
        (90061, "25:01:01"),
    ],
)
def test_a_clock(seconds, text):
    assert units.format_clock(seconds) == text


@pytest.mark.parametrize(
    "seconds, words", [(40, "40 s"), (720, "12 min"), (10800, "3 h"), (200000, "2 days")]
)
def test_an_age_in_words(seconds, words):
    assert units.format_duration(seconds) == words


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (20 << 30, "20 GiB"),
        (1.26 * 2**30, "1.3 GiB"),
        (3 << 50, "3072 TiB"),
    ],
)
def test_bytes(count, text):
    assert units.format_bytes(count) == text


def test_ranges_of_numbers():
    assert units.format_ranges([3, 1, 2, 7, 7]) == "1-3,7"
    assert units.format_ranges([0, 1, 5], ", ") == "0-1, 5"
    assert units.format_ranges([]) == ""


@pytest.mark.parametrize(
    "names, text",
    [
        (["node1"], "node1"),
        (["node1", "node2", "node3", "node7"], "node[1-3,7]"),
        (["gpu", "gpu2", "gpu1"], "gpu, gpu[1-2]"),
        (["node08", "node09", "node10"], "node[08-09], node10"),
        (["a", "b"], "a, b"),
        (["10.0.0.9", "10.0.0.11", "10.0.0.10"], "10.0.0.[9-11]"),
        ([], ""),
    ],
)
def test_many_names_in_few_words(names, text):
    assert units.fold_names(names) == text
