# SPDX-License-Identifier: Apache-2.0
"""Thinning a stream of rows: bounded, in order, and no extreme is lost."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report.downsample import (
    BUFFER,
    Means,
    Thinned,
    sum_means,
)
from hypothesis import given, settings
from hypothesis import strategies as st

VALUE = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32))
ROWS = st.lists(st.tuples(VALUE, VALUE), max_size=400)


def thin(rows, points):
    thinned = Thinned(points, (1, 2))
    for number, values in enumerate(rows):
        thinned.add((number, *values))
    return thinned


@settings(max_examples=300, deadline=None)
@given(ROWS, st.integers(min_value=12, max_value=90))
def test_extremes_the_first_and_the_last_stay_and_the_order(rows, points):
    kept = thin(rows, points).rows()
    assert len(kept) <= points
    assert [row[0] for row in kept] == sorted({row[0] for row in kept})
    assert all(row[1:] == rows[row[0]] for row in kept)
    assert not rows or (kept[0][0], kept[-1][0]) == (0, len(rows) - 1)
    for column in (0, 1):
        values = [row[column] for row in rows if row[column] is not None]
        left = [row[column + 1] for row in kept if row[column + 1] is not None]
        assert not values or (min(left), max(left)) == (min(values), max(values))
    if len(rows) <= points:
        assert len(kept) == len(rows)


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(min_value=12, max_value=40))
def test_every_stretch_keeps_its_own_extremes(rows, points):
    """A curve's shape, not its ends alone: each stretch of `width` rows that is closed has its
    smallest and greatest value.
    """
    thinned = thin(rows, points)
    kept = {row[0] for row in thinned.rows()}
    for begin in range(0, len(rows) - thinned.width + 1, thinned.width):
        stretch = range(begin, begin + thinned.width)
        values = {number: rows[number][0] for number in stretch if rows[number][0] is not None}
        if values and begin + 2 * thinned.width <= len(rows):
            left = [values[number] for number in stretch if number in kept and number in values]
            assert min(left) == min(values.values()) and max(left) == max(values.values())


def test_a_million_rows_in_bounded_memory():
    thinned, most = Thinned(200, (1,)), 0
    for number in range(300_000):
        thinned.add((number, 1000.0 if number == 123_457 else float(number % 7)))
        if number % 1000 == 0:
            most = max(most, sum(map(len, thinned._buckets)) + len(thinned._open))
    assert most <= 200 + BUFFER
    kept = thinned.rows()
    assert (123_457, 1000.0) in kept and 50 < len(kept) <= 200


@pytest.mark.parametrize("points", [12, 15, 23])
def test_a_spike_stays_wherever_it_is(points):
    for spike in range(90):
        rows = [
            (99.0 if number == spike else number * 37 % 11, number * 17 % 13)
            for number in range(90)
        ]
        assert (spike, *rows[spike]) in thin(rows, points).rows()


def test_rows_of_nothing():
    thinned = thin([(None, None)] * 500, 20)
    assert len(thinned.rows()) <= 20 and thinned.rows()[-1][0] == 499
    assert Thinned(20, (1,)).rows() == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(min_value=1e9, max_value=2e9), st.floats(min_value=0, max_value=1e6)),
        min_size=1,
        max_size=200,
    )
)
def test_means_hold_every_value_in_few_spans(values):
    means = Means(16)
    for when, value in values:
        means.add(when, value)
    assert len(means.bins) <= 16
    assert sum(count for _total, count in means.bins.values()) == len(values)
    assert sum(total for total, _count in means.bins.values()) == pytest.approx(
        sum(value for _when, value in values)
    )
    for when, _value in values:
        assert int(when // means.width) in means.bins


def test_the_sum_of_ranks_that_print_at_different_times():
    one, other = Means(100), Means(100)
    for when in range(0, 100, 2):
        one.add(1000 + when, 10.0)
    for when in range(20, 60, 5):
        other.add(1000 + when, 5.0)
    times, values = sum_means([one, other])
    at = dict(zip(times, values))
    assert (at[1000.5], at[1020.5], at[1022.5], at[1055.5], at[1060.5]) == (
        10.0,
        15.0,
        15.0,
        15.0,
        10.0,
    )
    assert sum_means([]) == ([], [])
    # of two widths the coarser one counts
    coarse = Means(2)
    for when in range(0, 100, 2):
        coarse.add(1000 + when, 1.0)
    assert sum_means([one, coarse])[1][0] == 11.0 and one.width == coarse.width > 32
