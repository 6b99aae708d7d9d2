# SPDX-License-Identifier: Apache-2.0
"""Check of a checkpoint's description that another machine gave. That machine is not trusted."""

from __future__ import annotations

from ..base import manifest, safe_names
from . import finder, model_collector


def point_problem(point):
    """Return why a machine's description of a point cannot be one, or None.

    The digest is computed anew from the files, since it names directories.
    """
    if not isinstance(point, dict):
        return "is not a description of a checkpoint"
    return _unsound_files(point) or _unsound_names(point) or _unsound_numbers(point)


def _unsound_files(point):
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


def _unsound_names(point):
    for key in ("name", "stem"):
        if safe_names.part_problem(point.get(key)):
            return f"has no {key} that can be used"
    path = point.get("path")
    if not isinstance(path, str) or not path.startswith("/") or safe_names.problem(path[1:]):
        return "lies at no path that can be used"
    return None


def _unsound_numbers(point):
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


def _is_number(value, types):
    if not isinstance(value, (int, float)) or not isinstance(value, types):
        return False
    return not isinstance(value, bool) and abs(value) < finder.LARGEST
