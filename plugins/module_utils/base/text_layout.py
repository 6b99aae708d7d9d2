# SPDX-License-Identifier: Apache-2.0
"""Durations, and ranges of names and numbers, as text. Pure."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"^(.*?)(\d+)$")


def span(seconds):
    """Return seconds as h:mm:ss, or m:ss below an hour."""
    seconds = int(max(0, seconds or 0))
    hours, rest = divmod(seconds, 3600)
    if hours:
        return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{rest // 60}:{rest % 60:02d}"


def folded(names):
    """Return names as a short text, in their order.

    [node1, node2, node3, node7, gpu] gives 'node[1-3,7], gpu'.
    """
    groups = {}
    for name in names:
        stem, number = name, None
        match = _NUMBERED.match(name)
        if match:
            stem, number = match.groups()
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
    pairs = []
    for number in sorted(set(numbers), key=int):
        if pairs and int(number) == int(pairs[-1][1]) + 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return ",".join(_range_text(first, last) for first, last in pairs)


def _range_text(first, last):
    if first == last:
        return str(first)
    return f"{first}-{last}"
