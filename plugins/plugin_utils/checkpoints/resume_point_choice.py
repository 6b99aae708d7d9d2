# SPDX-License-Identifier: Apache-2.0
"""The choice of the resume point among the checkpoints of all machines.

A node is not trusted: a description that cannot be a checkpoint's is skipped, and the others count.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest, safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import CODE
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    finder,
    model_collector,
)

Point = dict[str, Any]
# attempt, name, why, and the machine (`node`).
Row = dict[str, Any]


def point_problem(point: Any) -> str | None:
    """Return why a machine's description of a point cannot be one, or None.

    The digest is computed anew from the files, since it names directories.
    """
    if not isinstance(point, dict):
        return "is not a description of a checkpoint"
    return _unsound_files(point) or _unsound_names(point) or _unsound_numbers(point)


def _unsound_files(point: Point) -> str | None:
    files = point.get("files")
    try:
        model_collector.check_files(files)
    except model_collector.CheckpointError as error:
        return str(error)
    if not files or not all(model_collector.is_plain_path(path) for path in files):
        return "has no files, or names that no checkpoint has"
    if point.get("digest") != manifest.digest(files):
        return "has a digest that is not that of its files"
    return None


def _unsound_names(point: Point) -> str | None:
    for key in ("name", "stem"):
        if safe_names.part_problem(point.get(key)):
            return f"has no {key} that can be used"
    path = point.get("path")
    if not isinstance(path, str) or not path.startswith("/") or safe_names.problem(path[1:]):
        return "lies at no path that can be used"
    return None


def _unsound_numbers(point: Point) -> str | None:
    whole = [point.get("attempt")]
    whole += [point[key] for key in ("epoch", "step") if point.get(key) is not None]
    if not all(_is_number(number, int) for number in whole):
        return "has no whole numbers for attempt, epoch and step"
    numbers = [point.get("saved")]
    if point.get("lr") is not None:
        numbers.append(point["lr"])
    if not all(_is_number(number, (int, float)) for number in numbers):
        return "has no times and rates that are numbers"
    if not 0 < point["attempt"] < 10**6:
        return "has no attempt's number"
    if not isinstance(point.get("instead"), bool) or not isinstance(point.get("first", ""), str):
        return "has fields `instead` or `first` of the wrong type"
    return None


def _is_number(value: Any, types: type | tuple[type, ...]) -> bool:
    if not isinstance(value, (int, float)) or not isinstance(value, types):
        return False
    return not isinstance(value, bool) and abs(value) < finder.LARGEST


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
        problem = point and point_problem(point)
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
