# SPDX-License-Identifier: Apache-2.0
"""Text in the columns of a terminal."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import text_columns


@pytest.mark.parametrize(
    "text, wide",
    [
        ("", 0),
        ("job", 3),
        ("训练", 4),
        ("ﾊﾞ", 2),
        ("ＡＢ", 4),
        ("é", 1),
        ("e\u0301", 1),
        ("👍🏽", 2),
        ("\u200b", 0),
    ],
)
def test_widths(text, wide):
    assert text_columns.width(text) == wide


@pytest.mark.parametrize(
    "text, room, cut, filled",
    [
        ("training", 8, "training", "training"),
        ("training", 6, "trai..", "trai.."),
        ("训练任务", 7, "训练..", "训练.. "),  # half of a wide character is not shown
        ("训练任务", 3, "训", "训 "),
        ("ab", 0, "", ""),
        ("ab", 4, "ab", "ab  "),
    ],
)
def test_cut_and_filled(text, room, cut, filled):
    assert text_columns.cut(text, room) == cut and text_columns.fill(text, room) == filled


@pytest.mark.parametrize(
    "fraction, text",
    [
        (None, "[    ]"),
        (0, "[....]"),
        (0.5, "[##..]"),
        (1, "[####]"),
        (7, "[####]"),
        (-1, "[....]"),
    ],
)
def test_bars(fraction, text):
    assert text_columns.bar(fraction, 4) == text


@pytest.mark.parametrize(
    "values, room, text",
    [
        ([], 4, ""),
        ([1.0], 4, "_"),
        ([3.0, 3.0], 4, "__"),
        ([1.0, 2.0, 3.0], 4, "_=#"),
        ([1.0, 1.0, 9.0, 9.0], 2, "_#"),
        ([1.0, None, 9.0], 3, "_x#"),
        ([None], 3, "x"),
        ([9.0, 9.0, None, 1.0], 2, "_x"),  # a NaN among others still shows
    ],
)
def test_curves(values, room, text):
    assert text_columns.curve(values, room) == text


def test_samples_stand_for_the_whole_time_in_bounded_memory():
    kept = text_columns.Samples(most=8)
    for value in range(1000):
        kept.add(float(value))
    assert (
        len(kept.values) < 8
        and kept.values == sorted(kept.values)
        and kept.values[0] < 128
        and kept.values[-1] > 700
    )
    kept.add(float("inf"))
    for _index in range(400):
        kept.add(1.0)
    assert None in kept.values
