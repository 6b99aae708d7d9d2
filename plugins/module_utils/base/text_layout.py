# SPDX-License-Identifier: Apache-2.0
"""Text in the columns of a terminal.

Pure. The module measures, cuts and fills text, and draws bars and small curves.
"""

from __future__ import annotations

import math
import unicodedata

BAR = ("█", "░")
BAR_ASCII = ("#", ".")
CURVE = "▁▂▃▄▅▆▇█"
CURVE_ASCII = "_.:-=+*#"
NOT_FINITE = "x"


def width(text):
    """Return the columns that a text takes.

    That is two for a wide character (Unicode TR11: W and F), none for one that is put over another.
    """
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char):
    if unicodedata.combining(char):
        return 0
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return 1


def cut(text, columns, end=".."):
    """Return a text that takes at most so many columns.

    `end` replaces the rest, where it fits.
    """
    if width(text) <= columns:
        return text
    if columns <= 2 * len(end):
        end = ""
    taken, room = [], columns - len(end)
    for char in text:
        room -= _columns(char)
        if room < 0:
            break
        taken.append(char)
    return "".join(taken) + end


def fill(text, columns):
    """Return a text of exactly so many columns: filled with spaces, or cut."""
    text = cut(text, columns)
    return text + " " * (columns - width(text))


def bar(fraction, columns=20, signs=BAR_ASCII):
    """Return a bar of so many columns and two brackets.

    An unknown fraction (None) gives a bar of spaces.
    """
    if fraction is None:
        return "[" + " " * columns + "]"
    full = int(round(max(0.0, min(1.0, fraction)) * columns))
    return "[" + signs[0] * full + signs[1] * (columns - full) + "]"


def curve(values, columns, signs=CURVE_ASCII):
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


def _shares(values, count):
    edges = [index * len(values) // count for index in range(count + 1)]
    return [values[begin:end] for begin, end in zip(edges, edges[1:])]


def _mean(values):
    """Return the mean, or None where one of the values is not a number.

    A NaN must not vanish among others.
    """
    if None in values:
        return None
    return sum(values) / len(values)


class Samples:
    """At most `most` values in their order, thinned over the whole time."""

    def __init__(self, most=240):
        self.values, self._most = [], most
        self._share, self._open = 1, []

    def add(self, value):
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
