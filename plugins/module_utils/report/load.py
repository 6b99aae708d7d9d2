# SPDX-License-Identifier: Apache-2.0
"""What is at home of a run, as one dictionary for the report. Reads only; controller only.

A part that cannot be read is left out and named in `notes`: half a report of a broken run is worth
more than none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat

from ..attempts import attempt_dir
from ..base import manifest, safe_open

# Lines shown around a line of evidence, and so much of each.
BEFORE, AFTER, WIDTH = 12, 3, 400
# A line of evidence further down than this is named and not shown: the report is made while the
# user waits for the verdict.
DEEPEST = 2_000_000
MOST_EXCERPTS = 6
MOST_RUNS = 8
# Points of the curves over all ranks together (2 MB of page in all), and the most and the fewest of
# one rank.
POINTS, MOST, FEWEST = 20_000, 2000, 150
PAGE = "report.html"
PLACE = re.compile(r"([\w.+@-]+\.(?:log|txt|out))(?::|, line )(\d+)")


class ReportError(Exception):
    """A run that no report can be made of; the message is for the user."""


def newest(runs_dir):
    """Return the id of the newest run that is at home in runs_dir; raises ReportError where there
    is none.
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


def wanted(runs_dir, run, runs):
    """Return the run ids that a page is asked of: the one, the newest, or the several; raises
    ReportError.
    """
    if run and runs:
        raise ReportError(
            "run and runs are both given; run makes one run's report, runs compares several"
        )
    if runs and not 2 <= len(set(runs)) == len(runs) <= MOST_RUNS:
        raise ReportError(
            "runs takes two to %d different run ids; got %s" % (MOST_RUNS, ", ".join(runs))
        )
    wrong = [name for name in [run, *runs] if name and not attempt_dir.RUN_ID.match(name)]
    if wrong:
        raise ReportError(f"{wrong[0]!r} is no run id")
    return list(runs) or [run or newest(runs_dir)]


def page_path(runs_dir, runs):
    """Return where the page of these runs lies: with its run, or beside the runs that it compares."""
    if len(runs) == 1:
        return os.path.join(runs_dir, runs[0], PAGE)
    return os.path.join(
        runs_dir, "compare-{}.html".format(hashlib.sha256(",".join(runs).encode()).hexdigest()[:8])
    )


def names_in(runs_dir):
    """Return the run ids that have a directory in runs_dir, oldest first."""
    return (
        sorted(name for name in os.listdir(runs_dir) if attempt_dir.RUN_ID.match(name))
        if os.path.isdir(runs_dir)
        else []
    )


def points_for(ranks):
    """Return how many points each of so many ranks gets."""
    return max(FEWEST, min(MOST, POINTS // max(1, ranks)))


def read(runs_dir, run, series_of, points=None):
    """Return {run, plan, plans (by attempt), job, record, indexes, series, files, excerpts, report,
    notes} of one run; raises ReportError.

    series_of: series.of_run. points: of one rank's curves; None: as many as the page can hold.
    """
    run_dir = os.path.join(runs_dir, run)
    if not attempt_dir.RUN_ID.match(run):
        raise ReportError(f"{run!r} is no run id; it looks like 20261120-103501-ppyoloe-1f2e")
    if not os.path.isdir(run_dir):
        raise ReportError(
            "{} holds no run {}; known: {}".format(
                runs_dir, run, ", ".join(names_in(runs_dir)[-5:]) or "none"
            )
        )
    notes = []

    def part(name, default, function, *arguments):
        try:
            return function(*arguments) or default
        except Exception as error:  # whatever a damaged file does to its reader, the other parts still tell what happened
            notes.append(f"{name} could not be read: {type(error).__name__}: {error}")
            return default

    plan = part("plan.json", {}, mapping, os.path.join(run_dir, "plan.json"))
    record = part("run.json", {}, mapping, os.path.join(run_dir, "run.json"))
    indexes, plans = {}, {}
    for number in sorted(attempt_numbers(run_dir)):
        # a run of version 1 has one plan; later attempts may have other nodes
        plans[number] = part(
            "attempt-%d/plan.json" % number,
            plan,
            mapping,
            os.path.join(run_dir, "attempt-%d" % number, "plan.json"),
        )
        path = os.path.join(run_dir, "attempt-%d" % number, "ranks.json")
        indexes[number] = part("attempt-%d/ranks.json" % number, {}, mapping, path)
    points = points or points_for(len(plan.get("ranks") or ()))
    series = part("the curves", {}, series_of, run_dir, points)
    notes += [
        text for attempt in series.get("attempts") or () for text in attempt.get("left_out") or ()
    ]
    return {
        "run": run,
        "plan": plan,
        "plans": plans,
        "job": part("job.json", {}, mapping, os.path.join(run_dir, "job.json")),
        "record": record,
        "indexes": indexes,
        "series": series,
        "files": part("the list of files", [], files, run_dir, indexes),
        "excerpts": part("the lines around the evidence", [], excerpts, run_dir, record),
        "report": os.path.exists(os.path.join(run_dir, PAGE)),
        "notes": notes,
    }


def mapping(path):
    """Return a JSON file's mapping, {} where there is no such file; raises ValueError for what is
    none.
    """
    if not os.path.exists(path):
        return {}
    found = json.loads(safe_open.read_file(path, manifest.RECORD_BYTES).decode("utf-8"))
    if not isinstance(found, dict):
        raise ValueError("it holds no mapping")
    return found


def attempt_numbers(run_dir):
    """Return the numbers of the attempts that have a directory."""
    found = [re.match(r"attempt-([1-9][0-9]{0,5})\Z", name) for name in os.listdir(run_dir)]
    return [int(match.group(1)) for match in found if match]


def files(run_dir, indexes):
    """Return [{path, bytes, sha256, folder}] of what the run's directory holds; digests from
    ranks.json. Links are never followed.
    """
    known = {
        "attempt-%d/%s" % (number, item["home"]): item["sha256"]
        for number, index in indexes.items()
        for item in index.get("files") or ()
    }
    found = []
    for name in sorted(os.listdir(run_dir)):
        inside = (
            sorted(os.listdir(os.path.join(run_dir, name))) if name.startswith("attempt-") else [""]
        )
        for entry in inside:
            path = os.path.join(name, entry) if entry else name
            try:
                state = os.lstat(os.path.join(run_dir, path))
            except FileNotFoundError:  # another terminal's stream has ended meanwhile
                continue
            if stat.S_ISREG(state.st_mode) and not os.path.basename(path).startswith((".", PAGE)):
                found.append(
                    {
                        "path": path,
                        "bytes": state.st_size,
                        "sha256": known.get(path),
                        "folder": False,
                    }
                )
            elif stat.S_ISDIR(state.st_mode) and not entry.startswith("."):
                found.append(
                    {
                        "path": path,
                        "bytes": size_of(os.path.join(run_dir, path)),
                        "sha256": None,
                        "folder": True,
                    }
                )
    return found


def size_of(folder):
    """Return the bytes of the regular files below a directory."""
    return sum(
        os.lstat(os.path.join(here, name)).st_size
        for here, _folders, names in os.walk(folder)
        for name in names
        if stat.S_ISREG(os.lstat(os.path.join(here, name)).st_mode)
    )


def places(record):
    """Return [(attempt, log's name, line)] that the verdicts point at, the verdict's own first,
    each once.
    """
    found = []
    for attempt in record.get("attempts") or ():
        verdict = attempt.get("verdict") or {}
        if verdict.get("log") and verdict.get("line"):
            found.append(
                (attempt["number"], os.path.basename(str(verdict["log"])), verdict["line"])
            )
        for text in verdict.get("evidence") or ():
            found += [
                (attempt["number"], name, int(line)) for name, line in PLACE.findall(str(text))
            ]
    found = [
        (number, name, line)
        for number, name, line in found
        if isinstance(line, int) and 0 < line <= DEEPEST
    ]
    return list(dict.fromkeys(found))[:MOST_EXCERPTS]


def excerpts(run_dir, record):
    """Return [{attempt, log, line, first, lines}]: the lines around each place of the evidence, as
    text, cut to WIDTH characters.
    """
    found = []
    for number, name, line in places(record):
        path = os.path.join(run_dir, "attempt-%d" % number, name)
        if os.path.isfile(path) and not os.path.islink(path):
            first = max(1, line - BEFORE)
            lines = lines_of(path, first, line + AFTER)
            if len(lines) > line - first:
                found.append(
                    {"attempt": number, "log": name, "line": line, "first": first, "lines": lines}
                )
    return found


def lines_of(path, first, last):
    """Return lines first..last (counted from 1) of a file; a line of gigabytes costs no memory."""
    found, number, begun = [], 1, True
    with safe_open.open_file(path) as handle:
        while number <= last:
            piece = handle.readline(1 << 16)
            if not piece:
                break
            if begun and number >= first:
                found.append(piece[: 4 * WIDTH].decode("utf-8", "replace").rstrip("\r\n"))
            begun = piece.endswith(b"\n")
            number += begun
    return [text[:WIDTH] + "..." * (len(text) > WIDTH) for text in found]
