# SPDX-License-Identifier: Apache-2.0
"""The choice of the resume point among the checkpoints of all machines.

A node is not trusted: a description that cannot be a checkpoint's is skipped, and the others count.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import CODE
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    finder,
    point_check,
)

Point = dict[str, Any]
# attempt, name, why, and the machine (`node`).
Row = dict[str, Any]


def valid_answers(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return `found` of `choose` without the points that cannot be one.

    Each of them becomes an entry of skipped, with the reason.
    """
    answers = {}
    for machine, answer in found.items():
        if not isinstance(answer, dict):
            answer = {}
        rows = answer.get("skipped")
        if not isinstance(rows, list):
            rows = []
        skipped = [_skipped(row) for row in rows[:1000] if isinstance(row, dict)]
        point = answer.get("point")
        problem = point and point_check.point_problem(point)
        if problem:
            code = "checkpoint.invalid_answer"
            skipped.append(finder.describe_skipped(code, _attempt_number(point), problem))
            point = None
        answers[machine] = {"point": point, "skipped": skipped}
    return answers


def _attempt_number(row: Any) -> int:
    """Return the attempt's number in a machine's answer, 0 where it is not valid."""
    if not isinstance(row, dict):
        return 0
    number = row.get("attempt")
    if not isinstance(number, int) or isinstance(number, bool):
        return 0
    return number


def _skipped(row: dict[str, Any]) -> Row:
    name, why = str(row.get("name") or "")[:200], str(row.get("why") or "")[:1000]
    code = row.get("code")
    if not isinstance(code, str) or not CODE.match(code):
        code = "checkpoint.invalid_answer"
    return finder.describe_skipped(code, _attempt_number(row), why, name)


def choose(found: dict[str, Any]) -> tuple[Point | None, list[Row]]:
    """Return (point or None, skipped) of the answers of all machines. Pure.

    found: {node's name or finder.CONTROLLER: {point, skipped}}. The best point is taken. Where two
    machines have different bytes under one name of one attempt, that of the node on which rank 0
    saved it counts, and the others are skipped. The point gets source (the machine that it is taken
    from, a node rather than the controller), sources ([{source, path}] of all machines with the
    same digest, the likeliest first) and note.
    """
    skipped, points = [], []
    for machine, answer in sorted(valid_answers(found).items()):
        skipped += [dict(row, node=machine) for row in answer["skipped"]]
        if answer["point"]:
            points.append(dict(answer["point"], source=machine))
    if not points:
        return None, finder.sort_skipped(skipped)
    points.sort(key=_preference, reverse=True)
    best = points[0]
    same = [
        point
        for point in points
        if (point["attempt"], point["name"]) == (best["attempt"], best["name"])
    ]
    chosen = next((point for point in same if _is_first(point)), best)
    for point in same:
        if point["digest"] != chosen["digest"]:
            why = f"differs from the one on {chosen['source']}, which is taken"
            row = finder.describe_skipped(
                "checkpoint.differs", point["attempt"], why, point["name"]
            )
            skipped.append(dict(row, node=point["source"]))
    equal = [point for point in points if point["digest"] == chosen["digest"]]
    equal.sort(
        key=lambda point: (
            point["source"] == finder.CONTROLLER,
            not _is_first(point),
            point["source"],
        )
    )
    sources = [{"source": point["source"], "path": point["path"]} for point in equal]
    return dict(chosen, **sources[0], sources=sources, note=_remark(chosen)), finder.sort_skipped(
        skipped
    )


def _is_first(point: Point) -> bool:
    """Return whether the point lies on the node whose rank 0 saved it."""
    return point["source"] == point.get("first")


def _preference(point: Point) -> tuple[Any, ...]:
    return finder.sort_key(point), _is_first(point), point["source"] != finder.CONTROLLER


def _remark(point: Point) -> str:
    if point["instead"]:
        return (
            f"no other checkpoint is complete; the epoch in which {point['name']} was saved may not"
            " have been done to its end"
        )
    return ""


def describe_choice(point: Point | None, skipped: list[Row]) -> list[str]:
    """Return the choice as lines for people: the point, then the skipped checkpoints."""
    passed_over = []
    for row in skipped:
        name = row["name"] or "the directory"
        passed_over.append(
            f"skipped: {name} of attempt {row['attempt']} on {row['node']}: {row['why']}"
            f" ({row['code']})"
        )
    if point is None:
        nothing = (
            "there is no complete checkpoint to resume from: the training starts from the beginning"
        )
        return [*passed_over, nothing]
    result = [f"resumed from {finder.describe_point(point)}"]
    if point["note"]:
        result.append("note: " + point["note"])
    return result + passed_over
