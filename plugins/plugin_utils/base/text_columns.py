# SPDX-License-Identifier: Apache-2.0
"""Text in the columns of a terminal: measure, cut and fill it, draw bars and small curves. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import wcwidth

BAR = ("█", "░")
BAR_ASCII = ("#", ".")
CURVE = "▁▂▃▄▅▆▇█"
CURVE_ASCII = "_.:-=+*#"
NOT_FINITE = "x"


def width(text: str) -> int:
    """Return the columns that a text takes: two for a wide character, none for an accent."""
    return wcwidth.width(text, control_codes="ignore")


def cut(text: str, columns: int, end: str = "..") -> str:
    """Return a text that takes at most so many columns.

    `end` replaces the rest, where it fits.
    """
    if width(text) <= columns:
        return text
    if columns <= 2 * len(end):
        end = ""
    taken: list[str] = []
    room = columns - len(end)
    for character in wcwidth.iter_graphemes(text):
        room -= width(character)
        if room < 0:
            break
        taken.append(character)
    return "".join(taken) + end


def fill(text: str, columns: int) -> str:
    """Return a text of exactly so many columns: filled with spaces, or cut."""
    text = cut(text, columns)
    return text + " " * (columns - width(text))


def bar(fraction: float | None, columns: int = 20, signs: Sequence[str] = BAR_ASCII) -> str:
    """Return a bar of so many columns and two brackets.

    An unknown fraction (None) gives a bar of spaces.
    """
    if fraction is None:
        return "[" + " " * columns + "]"
    full = int(round(max(0.0, min(1.0, fraction)) * columns))
    return "[" + signs[0] * full + signs[1] * (columns - full) + "]"


def curve(values: Sequence[float | None], columns: int, signs: str = CURVE_ASCII) -> str:
    """Return values as a line of at most so many signs.

    The lowest value is the first sign, the highest the last one. None (not a number) shows as x. Of
    more values than columns, each sign stands for the mean of its share.
    """
    if len(values) > columns:
        values = [_mean(share) for share in _shares(values, columns)]
    known = [value for value in values if value is not None]
    if not known:
        return NOT_FINITE * len(values)
    low, high = min(known), max(known)
    steps = 0.0
    if high > low:
        steps = (len(signs) - 1) / (high - low)
    # The values may be so near to each other, or so far, that a float cannot tell.
    if not (math.isfinite(steps) and math.isfinite(high - low)):
        low, steps = 0.0, 0.0
    line = []
    for value in values:
        if value is None:
            line.append(NOT_FINITE)
        else:
            line.append(signs[int(round((value - low) * steps))])
    return "".join(line)


def _shares(values: Sequence[float | None], count: int) -> list[Sequence[float | None]]:
    edges = [index * len(values) // count for index in range(count + 1)]
    return [values[begin:end] for begin, end in zip(edges, edges[1:])]


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None where one of the values is not a number.

    A NaN must not vanish among others.
    """
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    return sum(numbers) / len(numbers)


class Samples:
    """At most `most` values in their order, thinned over the whole time."""

    def __init__(self, most: int = 240) -> None:
        self.values: list[float | None] = []
        self._most, self._share = most, 1
        self._open: list[float | None] = []

    def add(self, value: float | None) -> None:
        """Add a number, or None for one that is not finite."""
        if value is not None and not math.isfinite(value):
            value = None
        self._open.append(value)
        if len(self._open) < self._share:
            return
        self.values.append(_mean(self._open))
        self._open = []
        if len(self.values) >= self._most:
            self.values = [
                _mean(self.values[index : index + 2]) for index in range(0, len(self.values), 2)
            ]
            self._share *= 2
