# SPDX-License-Identifier: Apache-2.0
"""Thin a stream of rows to a bounded number, in one pass. Pure.

Minima and maxima, the first and the last row stay. Neighbouring rows share a bucket, of which only
the rows that hold a column's smallest or greatest value stay. When there are too many buckets,
neighbouring ones become one. So a spike of a single step among 500,000 is still in the curve
(min-max decimation).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

BUFFER = 64
Row = tuple[Any, ...]  # numbers and None
NumberedRow = tuple[int, Row]


class Thinned:
    """Rows, thinned to at most `points` of them, in their order.

    columns: the indices of the values whose extremes stay. A value of None is not an extreme.
    """

    def __init__(self, points: int, columns: Iterable[int]) -> None:
        self.columns = tuple(columns)
        self.points = max(points, 4 * len(self.columns) + 4)
        self.count = 0  # rows that were added
        self.first: NumberedRow | None = None
        self.last: NumberedRow | None = None
        self.width = 1  # rows that a full bucket stands for
        self._buckets: list[list[NumberedRow]] = []
        self._kept = 0  # rows in full buckets
        self._open: list[NumberedRow] = []  # of the bucket that is being filled
        self._opened = 0  # rows that this bucket stands for

    def add(self, row: Row) -> None:
        """Add one row, a tuple of numbers and None."""
        numbered = self.last = (self.count, row)
        if self.first is None:
            self.first = numbered
        self.count += 1
        self._open.append(numbered)
        self._opened += 1
        if self._opened >= self.width:
            self._close()
        elif len(self._open) >= BUFFER:
            self._open = self._extremes(self._open)

    def _close(self) -> None:
        """Close the bucket that is being filled, and join buckets while they are too many."""
        bucket = self._extremes(self._open)
        self._buckets.append(bucket)
        self._kept += len(bucket)
        self._open, self._opened = [], 0
        # The open bucket, the first and the last row come on top.
        most = self.points - 2 * len(self.columns) - 3
        while self._kept > most and len(self._buckets) > 1 and self.count > self.points:
            self._halve()

    def _halve(self) -> None:
        """Join each two neighbouring buckets."""
        if len(self._buckets) % 2:
            self._open = self._extremes(self._buckets.pop() + self._open)
            self._opened += self.width
        pairs = zip(self._buckets[::2], self._buckets[1::2])
        self._buckets = [self._extremes(one + other) for one, other in pairs]
        self._kept = sum(len(bucket) for bucket in self._buckets)
        self.width *= 2

    def _extremes(self, rows: list[NumberedRow]) -> list[NumberedRow]:
        """Return the rows that hold a column's first smallest or first greatest value.

        Where no column has a value, it is the first row. rows: [(number, row)].
        """
        if len(rows) < 2:
            return rows
        kept: dict[int, Row] = {}
        for column in self.columns:
            lowest: NumberedRow | None = None
            highest: NumberedRow | None = None
            for item in rows:
                value = item[1][column]
                if value is None:
                    continue
                if lowest is None or value < lowest[1][column]:
                    lowest = item
                if highest is None or value > highest[1][column]:
                    highest = item
            if lowest is not None and highest is not None:
                kept.update((lowest, highest))
        return sorted(kept.items()) or rows[:1]

    def rows(self) -> list[Row]:
        """Return the rows that stay, in their order."""
        kept: dict[int, Row] = {number: row for bucket in self._buckets for number, row in bucket}
        kept.update(self._extremes(self._open))
        kept.update(item for item in (self.first, self.last) if item is not None)
        return [kept[number] for number in sorted(kept)]


class Means:
    """Means of a value over spans of time, at most `limit` of them.

    The spans' width grows with the time that is covered. It is a power of 2, in seconds.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.width = max(limit, 2), 1
        self.bins: dict[int, tuple[float, int]] = {}  # number of the span -> (sum, count)

    def add(self, when: float, value: float) -> None:
        """Add a value at a unix time."""
        number = int(when // self.width)
        total, count = self.bins.get(number, (0.0, 0))
        self.bins[number] = (total + value, count + 1)
        while len(self.bins) > self.limit:
            self.widen(self.width * 2)

    def widen(self, width: int) -> None:
        """Join spans until they have this width, a power of 2 not below the present one."""
        merged: dict[int, tuple[float, int]] = {}
        for number, (total, count) in self.bins.items():
            wider = number * self.width // width
            before, count_before = merged.get(wider, (0.0, 0))
            merged[wider] = (before + total, count_before + count)
        self.bins, self.width = merged, width


def sum_means(series: Sequence[Means]) -> tuple[list[float], list[float]]:
    """Return the sum of several Means over time: ([middle of each span], [sum]).

    Between its first and last value, a Means counts with its latest mean. Widens all of them to the
    widest.
    """
    width = max((means.width for means in series), default=1)
    for means in series:
        means.widen(width)
    totals: dict[int, float] = {}
    numbers = sorted({number for means in series for number in means.bins})
    for means in series:
        begin, end, value = min(means.bins, default=0), max(means.bins, default=-1), 0.0
        for number in numbers:
            if begin <= number <= end:
                if number in means.bins:
                    total, count = means.bins[number]
                    value = total / count
                totals[number] = totals.get(number, 0.0) + value
    times = [(number + 0.5) * width for number in sorted(totals)]
    return times, [totals[number] for number in sorted(totals)]
