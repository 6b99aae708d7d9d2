# SPDX-License-Identifier: Apache-2.0
"""Text in the columns of a terminal: its width, cut and filled, a bar, a small curve, a time, many
names in few words. Pure, controller only.
"""

from __future__ import annotations

import math
import re
import unicodedata

BAR = ("█", "░")
BAR_ASCII = ("#", ".")
CURVE = "▁▂▃▄▅▆▇█"
CURVE_ASCII = "_.:-=+*#"
NOT_FINITE = "x"
_NUMBERED = re.compile(r"^(.*?)(\d+)$")


def span(seconds):
    """Return seconds as h:mm:ss, or m:ss below an hour."""
    seconds = int(max(0, seconds or 0))
    hours, rest = divmod(seconds, 3600)
    return (
        "%d:%02d:%02d" % (hours, rest // 60, rest % 60)
        if hours
        else "%d:%02d" % (rest // 60, rest % 60)
    )


def width(text):
    """Return the columns that a text takes: two for a wide character (Unicode TR11: W and F), none
    for one that is put over another.
    """
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char):
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text, columns, end=".."):
    """Return a text that takes at most so many columns; what is left out shows as `end`, where that
    fits.
    """
    if width(text) <= columns:
        return text
    end = end if columns > 2 * len(end) else ""
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
    """Return a bar of so many columns and two brackets; an unknown fraction (None) gives a bar of
    spaces.
    """
    if fraction is None:
        return "[" + " " * columns + "]"
    full = int(round(max(0.0, min(1.0, fraction)) * columns))
    return "[" + signs[0] * full + signs[1] * (columns - full) + "]"


def curve(values, columns, signs=CURVE_ASCII):
    """Return values as a line of at most so many signs, the lowest value first sign, the highest
    last; None (no number) shows as x.

    More values than columns are put together: each sign stands for the mean of its share.
    """
    values = (
        values if len(values) <= columns else [_mean(share) for share in _shares(values, columns)]
    )
    known = [value for value in values if value is not None]
    if not known:
        return NOT_FINITE * len(values)
    low, high = min(known), max(known)
    steps = (len(signs) - 1) / (high - low) if high > low else 0.0
    if not (
        math.isfinite(steps) and math.isfinite(high - low)
    ):  # so near to each other, or so far, that a float cannot tell
        low, steps = 0.0, 0.0
    return "".join(
        NOT_FINITE if value is None else signs[int(round((value - low) * steps))]
        for value in values
    )


def _shares(values, count):
    edges = [index * len(values) // count for index in range(count + 1)]
    return [values[begin:end] for begin, end in zip(edges, edges[1:])]


def _mean(values):
    """The mean, or None where one of the values is no number: a NaN must not vanish among others."""
    return None if None in values else sum(values) / len(values)


class Samples:
    """Values in the order they came, thinned so that they always stand for the whole time in at
    most `most` of them.
    """

    def __init__(self, most=240):
        self.values, self._most, self._share, self._open = [], most, 1, []

    def add(self, value):
        """value: a number, or None for one that is not finite."""
        self._open.append(value if value is None or math.isfinite(value) else None)
        if len(self._open) < self._share:
            return
        self.values.append(_mean(self._open))
        self._open = []
        if len(self.values) >= self._most:
            self.values = [
                _mean(self.values[index : index + 2]) for index in range(0, len(self.values), 2)
            ]
            self._share *= 2


def folded(names):
    """Return names in few words, in their order: [node1, node2, node3, node7, gpu] gives
    'node[1-3,7], gpu'.
    """
    groups = {}
    for name in names:
        match = _NUMBERED.match(name)
        stem, number = match.groups() if match else (name, None)
        # node01 and node1 are two names: what begins with 0 is kept apart by its length.
        key = (stem, number and len(number) * number.startswith("0"))
        groups.setdefault(key, []).append(number)
    words = []
    for (stem, _kind), numbers in groups.items():
        if numbers[0] is None or len(numbers) == 1:
            words += [stem + (number or "") for number in numbers]
        else:
            words.append(f"{stem}[{ranges(numbers)}]")
    return ", ".join(words)


def ranges(numbers):
    """Return whole numbers (texts keep their zeros) as '1-3,7'."""
    runs = []
    for number in sorted(set(numbers), key=int):
        if runs and int(number) == int(runs[-1][1]) + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
