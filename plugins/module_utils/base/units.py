# SPDX-License-Identifier: Apache-2.0
"""Numbers as text: times, bytes, and ranges of numbers and names. Pure."""

from __future__ import annotations

import re

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NUMBERED = re.compile(r"^(.*?)(\d+)$")


def format_clock(seconds):
    """Return seconds as h:mm:ss, or m:ss below an hour."""
    seconds = int(max(0, seconds or 0))
    hours, rest = divmod(seconds, 3600)
    if hours:
        return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{rest // 60}:{rest % 60:02d}"


def format_duration(seconds):
    """Return seconds in the unit that fits: 40 s, 12 min, 3 h, 2 days."""
    for limit, unit, text in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {text}"
    return f"{int(seconds // 86400)} days"


def format_bytes(count):
    """Return a number of bytes in the unit that fits, as users give limits: 512 B, 1.5 GiB."""
    value, unit = float(count), "B"
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            break
        value /= 1024
    text = f"{value:.1f}"
    if unit == UNITS[0] or text.endswith(".0"):
        text = str(int(value))
    return f"{text} {unit}"


def format_ranges(numbers, separator=","):
    """Return whole numbers (texts keep their zeros) as '1-3,7'."""
    pairs = []
    for number in sorted(set(numbers), key=int):
        if pairs and int(number) == int(pairs[-1][1]) + 1:
            pairs[-1][1] = number
        else:
            pairs.append([number, number])
    return separator.join(_format_range(first, last) for first, last in pairs)


def _format_range(first, last):
    if first == last:
        return str(first)
    return f"{first}-{last}"


def fold_names(names):
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
    parts = []
    for (stem, _kind), numbers in groups.items():
        if numbers[0] is None or len(numbers) == 1:
            parts += [stem + (number or "") for number in numbers]
        else:
            parts.append(f"{stem}[{format_ranges(numbers)}]")
    return ", ".join(parts)
