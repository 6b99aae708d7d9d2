# SPDX-License-Identifier: Apache-2.0
"""Durations and ranges as text."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import text_layout


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
def test_durations(seconds, text):
    assert text_layout.span(seconds) == text


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
    assert text_layout.folded(names) == text
