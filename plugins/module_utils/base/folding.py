# SPDX-License-Identifier: Apache-2.0
"""Words for many ranks at once, so that a verdict over eight ranks per node stays short.

The functions are pure. Candidates with the same end and the same error become one group.
"""

from __future__ import annotations

import typing

FOLD = 5  # from so many equal ones on they are one line, and numbers in a row a range
NODES = 4  # of more nodes only the number is said


def list_numbers(numbers: typing.Iterable[int]) -> str:
    """Return numbers as "0, 1, 4-9, 12": in order, with many in a row as a range."""
    parts: list[str] = []
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    for run in runs:
        if len(run) >= FOLD:
            parts.append(f"{run[0]}-{run[-1]}")
        else:
            parts.extend(map(str, run))
    return ", ".join(parts)


def list_ranks(numbers: typing.Iterable[int]) -> str:
    """Return "rank 1" or "ranks 1, 4-9"."""
    numbers = list(numbers)
    if len(set(numbers)) == 1:
        return f"rank {numbers[0]}"
    return "ranks " + list_numbers(numbers)


def name_ranks(ranks: typing.Sequence[dict[str, typing.Any]]) -> str:
    """Return "ranks 0-7 on node1, ranks 8, 9 on node2". ranks: each with `rank` and `node`."""
    places: dict[str, list[int]] = {}
    for rank in sorted(ranks, key=lambda rank: int(rank["rank"])):
        places.setdefault(rank["node"], []).append(rank["rank"])
    if len(places) > NODES:
        return f"{list_ranks(rank['rank'] for rank in ranks)} on {len(places)} nodes"
    return ", ".join(f"{list_ranks(numbers)} on {node}" for node, numbers in places.items())


def group(
    items: typing.Iterable[dict[str, typing.Any]],
    key: typing.Callable[[dict[str, typing.Any]], object],
) -> list[list[dict[str, typing.Any]]]:
    """Return items in groups: FOLD and more with the same key are one, others are alone.

    A group stands where its first item stood. An item whose key is None is alone.
    """
    keys = [(item, key(item)) for item in items]
    members: dict[object, list[dict[str, typing.Any]]] = {}
    for item, name in keys:
        members.setdefault(name, []).append(item)
    groups = []
    for item, name in keys:
        same = members[name]
        if name is None or len(same) < FOLD:
            groups.append([item])
        elif same[0] is item:
            groups.append(same)
    return groups
