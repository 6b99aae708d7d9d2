# SPDX-License-Identifier: Apache-2.0
"""The facts of a run on the controller, as one dictionary for the report.

It only reads. A part that cannot be read is left out and named in `notes`: half a report of a
broken run is worth more than none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir
from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_open
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import RECORD_BYTES

from .json_values import Json

# Lines shown around a line of evidence, and so much of each.
BEFORE, AFTER, WIDTH = 12, 3, 400
# A line of evidence further down than this is named but not shown: the user waits for the verdict
# while the report is made.
DEEPEST = 2_000_000
MOST_EXCERPTS = 6
MOST_RUNS = 8
# Points of the curves of all ranks together (2 MB of page in all), and the most and the fewest of
# one rank.
POINTS, MOST, FEWEST = 20_000, 2000, 150
PAGE = "report.html"
PLACE = re.compile(r"([\w.+@-]+\.(?:log|txt|out))(?::|, line )(\d+)")


Position = tuple[int, str, int]  # attempt, name of its log, line


class ReportError(Exception):
    """A report that cannot be made.

    The message is for the user.
    """


def newest(runs_dir: str) -> str:
    """Return the id of the newest run in runs_dir.

    Raises ReportError if there is no run.
    """
    names = [
        name
        for name in names_in(runs_dir)
        if os.path.exists(os.path.join(runs_dir, name, "run.json"))
    ]
    if not names:
        raise ReportError(
            f"{runs_dir} holds no run; train one first, or name the directory with"
            " trainyard_runs_dir"
        )
    return names[-1]


def choose_runs(runs_dir: str, run: str, runs: Sequence[str]) -> list[str]:
    """Return the run ids of the requested page: the given ones, or the newest.

    run: one id or nothing. runs: ids to compare, or nothing. Raises ReportError.
    """
    if run and runs:
        raise ReportError(
            "run and runs are both given; run makes one run's report, runs compares several"
        )
    if runs and not 2 <= len(set(runs)) == len(runs) <= MOST_RUNS:
        raise ReportError(f"runs takes two to {MOST_RUNS} different run ids; got {', '.join(runs)}")
    wrong = [name for name in [run, *runs] if name and not attempt_dir.RUN_ID.match(name)]
    if wrong:
        raise ReportError(f"{wrong[0]!r} is no run id")
    return list(runs) or [run or newest(runs_dir)]


def page_path(runs_dir: str, runs: Sequence[str]) -> str:
    """Return the path of these runs' page.

    It lies in its run, or beside the runs that it compares.
    """
    if len(runs) == 1:
        return os.path.join(runs_dir, runs[0], PAGE)
    digest = hashlib.sha256(",".join(runs).encode()).hexdigest()
    return os.path.join(runs_dir, f"compare-{digest[:8]}.html")


def names_in(runs_dir: str) -> list[str]:
    """Return the run ids that have a directory in runs_dir, oldest first."""
    if not os.path.isdir(runs_dir):
        return []
    return sorted(name for name in os.listdir(runs_dir) if attempt_dir.RUN_ID.match(name))


def points_for(ranks: int) -> int:
    """Return the number of points that each of so many ranks gets."""
    return max(FEWEST, min(MOST, POINTS // max(1, ranks)))


def read(
    runs_dir: str, run: str, series_of: Callable[[str, int], Json], points: int | None = None
) -> Json:
    """Return the facts of one run.

    Raises ReportError if there is no such run. The keys are run, plan, plans (by attempt), job,
    record, indexes, series, files, excerpts, report, notes. series_of: series.of_run. points: of
    one rank's curves. None: as many as the page can hold.
    """
    run_dir = os.path.join(runs_dir, run)
    if not attempt_dir.RUN_ID.match(run):
        raise ReportError(f"{run!r} is no run id; it looks like 20261120-103501-ppyoloe-1f2e")
    if not os.path.isdir(run_dir):
        known = ", ".join(names_in(runs_dir)[-5:]) or "none"
        raise ReportError(f"{runs_dir} holds no run {run}; known: {known}")
    reader = _PartReader(run_dir)
    plan = reader.read_mapping("plan.json")
    record = reader.read_mapping("run.json")
    indexes: dict[int, Json] = {}
    plans: dict[int, Json] = {}
    for number in sorted(attempt_numbers(run_dir)):
        # A run of version 1 has one plan. Later attempts may have other nodes.
        plans[number] = reader.read_mapping(f"attempt-{number}/plan.json", plan)
        indexes[number] = reader.read_mapping(f"attempt-{number}/ranks.json")
    points = points or points_for(len(plan.get("ranks") or ()))
    series = reader.read("the curves", {}, series_of, run_dir, points)
    for attempt in series.get("attempts") or ():
        reader.notes += attempt.get("left_out") or ()
    return {
        "run": run,
        "plan": plan,
        "plans": plans,
        "job": reader.read_mapping("job.json"),
        "record": record,
        "indexes": indexes,
        "series": series,
        "files": reader.read("the list of files", [], files, run_dir, indexes),
        "excerpts": reader.read("the lines around the evidence", [], excerpts, run_dir, record),
        "report": os.path.exists(os.path.join(run_dir, PAGE)),
        "notes": reader.notes,
    }


class _PartReader:
    """A reader of a run's directory.

    `notes` names the parts that could not be read.
    """

    def __init__(self, run_dir: str) -> None:
        self.notes: list[str] = []
        self._run_dir = run_dir

    def read(
        self, name: str, default: Any, function: Callable[..., Any], *arguments: object
    ) -> Any:
        """Return the function's result, else the default."""
        try:
            return function(*arguments) or default
        # Whatever a damaged file does to its reader, the other parts still show what happened.
        except Exception as error:
            self.notes.append(f"{name} could not be read: {type(error).__name__}: {error}")
            return default

    def read_mapping(self, path: str, default: Json | None = None) -> Json:
        """Return a JSON file's mapping, else the default or {}.

        path: below the run's directory.
        """
        if default is None:
            default = {}
        return self.read(path, default, mapping, os.path.join(self._run_dir, path))


def mapping(path: str) -> Json:
    """Return a JSON file's mapping, {} where there is no such file.

    Raises ValueError for other content, and OSError.
    """
    if not os.path.exists(path):
        return {}
    data = json.loads(safe_open.read_file(path, RECORD_BYTES).decode("utf-8"))
    if not isinstance(data, dict):
        raise ValueError("it holds no mapping")
    return data


def attempt_numbers(run_dir: str) -> list[int]:
    """Return the numbers of the attempts that have a directory."""
    matches = [re.match(r"attempt-([1-9][0-9]{0,5})\Z", name) for name in os.listdir(run_dir)]
    return [int(match.group(1)) for match in matches if match]


def files(run_dir: str, indexes: Mapping[int, Json]) -> list[Json]:
    """Return [{path, bytes, sha256, folder}] of the content of the run's directory.

    Digests are from ranks.json. Links are never followed.
    """
    digests = {
        f"attempt-{number}/{item['home']}": item["sha256"]
        for number, index in indexes.items()
        for item in index.get("files") or ()
    }
    entries = [_describe_entry(run_dir, path, digests) for path in _list_paths(run_dir)]
    return [entry for entry in entries if entry]


def _list_paths(run_dir: str) -> list[str]:
    """Return the names in the run's directory and the paths in its attempts."""
    paths = []
    for name in sorted(os.listdir(run_dir)):
        if name.startswith("attempt-"):
            inside = sorted(os.listdir(os.path.join(run_dir, name)))
            paths += [os.path.join(name, entry) for entry in inside]
        else:
            paths.append(name)
    return paths


def _describe_entry(run_dir: str, path: str, digests: Mapping[str, str]) -> Json | None:
    """Return {path, bytes, sha256, folder} of an entry that the report lists, or None."""
    full_path, name = os.path.join(run_dir, path), os.path.basename(path)
    try:
        state = os.lstat(full_path)
    except FileNotFoundError:  # another terminal's stream has ended meanwhile
        return None
    if stat.S_ISREG(state.st_mode) and not name.startswith((".", PAGE)):
        return {
            "path": path,
            "bytes": state.st_size,
            "sha256": digests.get(path),
            "folder": False,
        }
    hidden = name.startswith(".") and name != path
    if stat.S_ISDIR(state.st_mode) and not hidden:
        return {"path": path, "bytes": size_of(full_path), "sha256": None, "folder": True}
    return None


def size_of(folder: str) -> int:
    """Return the bytes of the regular files below a directory."""
    return sum(
        os.lstat(os.path.join(here, name)).st_size
        for here, _folders, names in os.walk(folder)
        for name in names
        if stat.S_ISREG(os.lstat(os.path.join(here, name)).st_mode)
    )


def places(record: Json) -> list[Position]:
    """Return [(attempt, log's name, line)] that the verdicts point at, each once.

    The verdict's own line is the first one.
    """
    positions: list[Position] = []
    for attempt in record.get("attempts") or ():
        verdict = attempt.get("verdict") or {}
        if verdict.get("log") and verdict.get("line"):
            name = os.path.basename(str(verdict["log"]))
            positions.append((attempt["number"], name, verdict["line"]))
        for text in verdict.get("evidence") or ():
            positions += [
                (attempt["number"], name, int(line)) for name, line in PLACE.findall(str(text))
            ]
    positions = [item for item in positions if isinstance(item[2], int) and 0 < item[2] <= DEEPEST]
    return list(dict.fromkeys(positions))[:MOST_EXCERPTS]


def excerpts(run_dir: str, record: Json) -> list[Json]:
    """Return [{attempt, log, line, first, lines}]: the lines around the evidence.

    Lines are text, cut to WIDTH characters.
    """
    entries = []
    for number, name, line in places(record):
        path = os.path.join(run_dir, f"attempt-{number}", name)
        if os.path.isfile(path) and not os.path.islink(path):
            first = max(1, line - BEFORE)
            lines = lines_of(path, first, line + AFTER)
            if len(lines) > line - first:
                entries.append(
                    {"attempt": number, "log": name, "line": line, "first": first, "lines": lines}
                )
    return entries


def lines_of(path: str, first: int, last: int) -> list[str]:
    """Return lines first..last of a file, counted from 1.

    A line of gigabytes costs no memory. Raises OSError.
    """
    lines, number, at_line_start = [], 1, True
    with safe_open.open_file(path) as handle:
        while number <= last:
            piece = handle.readline(1 << 16)
            if not piece:
                break
            if at_line_start and number >= first:
                lines.append(piece[: 4 * WIDTH].decode("utf-8", "replace").rstrip("\r\n"))
            at_line_start = piece.endswith(b"\n")
            number += at_line_start
    return [text[:WIDTH] + "..." * (len(text) > WIDTH) for text in lines]
