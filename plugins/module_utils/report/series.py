# SPDX-License-Identifier: Apache-2.0
"""What a run's logs say over time: curves, evaluations, phases, marks and the settings to compare
by, from what lies in runs/<run id>.

One pass over every log, in bounded memory (downsample.py). A file that is missing, torn or of an
older version is left out: nothing here raises for what a run left behind. Times are unix seconds of
the controller's clock.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat

from ..attempts.evidence import read_events
from ..base.sanitize import printable_data, secrets_of
from ..logs.parser import Table, TableError
from ..logs.timestamps import Clock, span
from ..runs import plan_origin
from . import chart_events, curves, phases, settings
from .downsample import summed

LIMIT = 64 << 20  # bytes of a JSON file that are read
# Bytes of an attempt's logs that are read for its curves, and of each of them at least: the verdict
# is shown after the report is made.
MOST, SHARE = 256 << 20, 8 << 20
LONGEST = 20_000  # characters of a verdict's sentence
QUARTER = 900  # time zones differ by quarters of an hour
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOG = re.compile(r"^rank-(\d{3,6})\.([A-Za-z0-9][A-Za-z0-9._-]*)\.log$")
_ATTEMPT = re.compile(r"^attempt-(\d{1,6})$")


def of_run(run_dir, points=2000, folder=None):
    """Everything about a run over time. points: how many step lines of each rank stay, at most.
    Never raises for what the run left behind.

    folder: where the suites' tables lie (plan_origin.py).
    """
    run, job = (_mapping(_json(os.path.join(run_dir, name))) for name in ("run.json", "job.json"))
    numbers = _numbers(run_dir)
    plan = _plan(os.path.join(run_dir, "plan.json"), run, max(numbers, default=1), run_dir, folder)
    if not plan.get("job") and job:
        plan = dict(plan, job=job)
    recorded = {
        a["number"]: a for a in _dicts(run.get("attempts")) if isinstance(a.get("number"), int)
    }
    attempts, begun = [], _number(run.get("started"))
    for number in sorted(set(recorded) | set(numbers)):
        own, entry = os.path.join(run_dir, "attempt-%d" % number), recorded.get(number) or {}
        begun = _number(entry.get("started")) or begun
        attempts.append(
            _Attempt(
                own,
                number,
                _plan(os.path.join(own, "plan.json"), run, number, run_dir, folder) or plan,
                entry,
                begun,
            ).result(points)
        )
        begun = _number(entry.get("ended"))
    bests = [attempt.pop("best") for attempt in attempts]
    best = max((b for b in bests if b), key=lambda b: b["value"], default={})
    keys = ("rank", "node", "local_rank", "device", "endpoint")
    head = {
        "run": run.get("run") or os.path.basename(os.path.normpath(run_dir)),
        "job": run.get("job") or _mapping(plan.get("job")).get("name"),
        "suite": _mapping(plan.get("suite")).get("name"),
        "unit": _mapping(_mapping(_mapping(plan.get("suite")).get("logs")).get("step")).get("unit"),
        "nodes": [str(node["name"]) for node in _dicts(plan.get("nodes")) if node.get("name")],
        "ranks": [{key: rank.get(key) for key in keys} for rank in _planned(plan)],
        "best": best,
    }
    return dict(
        printable_data(head, *secrets_of(plan)),
        attempts=attempts,
        settings=settings.of_plan(plan, run),
    )


def _plan(path, run, number, run_dir, folder):
    """The plan at home. Its log patterns are run here, so one that it has neither made nor examined
    gets the shipped ones.
    """
    data, plan = _bytes(path) or b"null", _mapping(_json(path))
    known = not plan or plan_origin.ours(
        data, run, number, os.path.join(run_dir, "attempt-%d" % number)
    )
    return plan if known else plan_origin.with_shipped_patterns(plan, folder)


class _Attempt:
    """One attempt's directory at home."""

    def __init__(self, directory, number, plan, record, before):
        self.directory, self.number, self.plan, self.record, self.before = (
            directory,
            number,
            plan,
            record,
            before,
        )
        self.secrets = secrets_of(plan)
        self.logs = _mapping(_mapping(plan.get("suite")).get("logs"))
        try:
            self.table = Table(self.logs)
        except TableError:
            self.table, self.logs = Table(), {}
        found = record.get("ranks") or _mapping(_json(os.path.join(directory, "ranks.json"))).get(
            "ranks"
        )
        self.ranks = {r["rank"]: r for r in _dicts(found) if isinstance(r.get("rank"), int)}
        self.planned = {r["rank"]: r for r in _planned(plan)}
        self.files = self._files()
        every = [self.planned, self.ranks, self.files]
        self.where = {
            rank: str(known[rank]["node"])
            for known in reversed(every)
            for rank in known
            if known[rank].get("node")
        }
        self.nodes = list(dict.fromkeys(self.where[rank] for rank in sorted(self.where)))
        self.left_out = []
        self.events, self.units = {}, {}
        for node in self.nodes:
            self.events[node] = read_events(_bytes(os.path.join(directory, f"ranks.{node}.jsonl")))
            self.units[node] = _mapping(_json(os.path.join(directory, f"exit.{node}.json")))
        said = {str(n.get("node")): n for n in _dicts(record.get("nodes"))}
        self.said = {node: said.get(node, {}) for node in self.nodes}
        self.ahead = {node: phases.ahead(self._bounds(node)) for node in self.nodes}
        self.offset = {node: self._offset(node) for node in self.nodes}

    def _files(self):
        """{rank: {node, paths}}: a rank's logs at home; what was brought before a log was truncated
        or replaced comes first.
        """
        found, names = {}, _names(self.directory)
        there = frozenset(names)
        for name in names:
            match = _LOG.match(name)
            if match:
                older = itertools.takewhile(
                    there.__contains__, (f"{name}.{n}" for n in itertools.count(1))
                )
                paths = [os.path.join(self.directory, file) for file in (*older, name)]
                found[int(match.group(1))] = {"node": match.group(2), "paths": paths}
        return found

    def known(self, rank):
        """A rank's findings in the record, and what its node's events say, which is there before
        there is a record.
        """
        events = self.events[self.where[rank]]["ranks"].get(rank, {})
        return dict(
            self.ranks.get(rank, {}),
            **{key: value for key, value in events.items() if value is not None},
        )

    def _bounds(self, node):
        """(least, most) seconds that a node's clock can be ahead: a start follows the command, an
        end comes before it is recorded.
        """
        launched = self.events[node]["launcher"].get("started")
        ended, recorded = _number(self.units[node].get("time")), _number(self.record.get("ended"))
        most = [launched - self.before] if launched is not None and self.before is not None else []
        return ended - recorded if ended is not None and recorded is not None else None, min(
            most, default=None
        )

    def _offset(self, node):
        """Seconds that the node's zone is east of UTC: as it said, or as its logs' dates stand to
        the times that the agent noted.
        """
        if _number(self.said[node].get("utc_offset")) is not None:
            return _number(self.said[node]["utc_offset"])
        for rank in sorted(rank for rank in self.files if self.where[rank] == node):
            known = self.known(rank)
            descriptor = _descriptor(self.files[rank]["paths"][0])
            if descriptor is None:
                continue
            try:
                first, last = span(descriptor, 0, _number(known.get("started")))
            finally:
                os.close(descriptor)
            for naive, real in (
                (first, _number(known.get("started"))),
                (last, _number(known.get("mtime"))),
            ):
                if naive is not None and real is not None:
                    return float(round((naive - real) / QUARTER) * QUARTER)
        return None

    def result(self, points):
        scans = {rank: self._scan(rank, points) for rank in sorted(self.files)}
        printing = [rank for rank in scans if scans[rank][0].steps]
        lives = {
            rank: self._life(rank, *scans.get(rank, (None, {}))) for rank in sorted(self.where)
        }
        leader = next((rank for rank in printing if scans[rank][0].begin is not None), None)
        times = [
            t
            for life in lives.values()
            for t in (
                life["launched"],
                life["process"],
                life["dated"],
                life["last"],
                life["ended"],
                life["written"],
            )
        ]
        times = [t for t in times if t is not None]
        lines, evaluations, saved = [], [], []
        for rank, life in lives.items():
            curve = scans[rank][0] if rank in scans else None
            lead = leader is not None and life["step"] is None and life["process"] is not None
            if lead:
                life = dict(
                    life,
                    step=lives[leader]["step"],
                    last=_least(lives[leader]["last"], life["ended"]),
                    pace=lives[leader]["pace"],
                )
            lines += phases.timeline(rank, life, curve.signs if curve else [], lead)
            evaluations += [
                dict(entry, rank=rank) for entry in (curve.evaluations if curve else [])
            ]
            saved += [dict(entry, rank=rank) for entry in (curve.saved_at if curve else [])]
        result = {
            "number": self.number,
            "begin": min(times, default=self.before),
            "end": max(times, default=_number(self.record.get("ended"))),
            "verdict": printable_data(self.record.get("verdict"), *self.secrets, limit=LONGEST),
            "series": {rank: scans[rank][0].rows() for rank in printing},
            "summed": self._summed([scans[rank][0].speed for rank in printing], printing),
            "evaluations": printable_data(evaluations, *self.secrets),
            "saved": printable_data(saved, *self.secrets),
            "phases": lines,
            "marks": printable_data(chart_events.marks_of(self, scans, lives), *self.secrets),
            "clock": self.ahead,
            "utc_offset": self.offset,
            "left_out": self.left_out,
            "best": max(
                (s[0].best for s in scans.values() if s[0].best),
                key=lambda b: b["value"],
                default=None,
            ),
        }
        if result["best"]:
            result["best"] = dict(result["best"], attempt=self.number)
        return result

    def _scan(self, rank, points):
        """(Curve, {dated, seeks, found}) of a rank's log."""
        node = self.where[rank]
        near = (
            _number(self.ranks.get(rank, {}).get("started"))
            or self.before
            or _modified(self.files[rank]["paths"][-1])
        )
        clock = Clock((self.offset[node] or 0.0) + self.ahead[node], near)
        curve, begun = curves.Curve(self.table, self.logs, clock, points), {}
        for path in self.files[rank]["paths"]:
            descriptor = _descriptor(path)
            if descriptor is None:
                continue
            try:
                curve.feed(
                    b"\n" if begun else b""
                )  # what was brought of a log before may end within a line
                begun = begun or curves.beginning(descriptor, self.table, clock)
                out = curves.read(descriptor, curve, max(SHARE, MOST // len(self.files)))
                if out:
                    said = "attempt-%d/%s: %d MB in its middle were not read for the curves"
                    self.left_out.append(said % (self.number, os.path.basename(path), out >> 20))
            except OSError:
                pass  # a failing disk: what was read so far counts
            finally:
                os.close(descriptor)
        curve.finish()
        return curve, begun

    def _life(self, rank, curve, begun):
        """The times of one rank's life by the controller's clock, None where nobody saw them."""
        node = self.where[rank]
        known = self.known(rank)
        ended = _least(_number(known.get("ended")))
        ended = (
            _number(self.units[node].get("time"))
            if ended is None and known.get("started") is not None
            else ended
        )
        asked = None
        if self.units[node].get("stopped_by"):
            ends = [_number(e.get("ended")) for e in self.events[node]["ranks"].values()]
            asked = _number(self.said[node].get("stopped_at"))
            asked = _least(*ends, _number(self.units[node].get("time"))) if asked is None else asked
        off, error = self.ahead[node], known.get("first_error") or known.get("error")
        times = {
            "launched": self.events[node]["launcher"].get("started"),
            "process": _number(known.get("started")),
            "ended": ended,
            "asked": asked,
            "written": _number(known.get("mtime")) or _number(known.get("last_time")),
        }
        times = {key: None if value is None else value - off for key, value in times.items()}
        times.update(dict.fromkeys(("dated", "seeks", "found")), **begun)
        times["said"] = (
            chart_events.said_at(error, _number(known.get("mtime")), times["ended"], off)
            if isinstance(error, dict)
            else None
        )
        times["fault"] = (
            times["ended"] if known.get("signal") and times["said"] is None else times["said"]
        )
        if not curve or curve.begin is None:
            return dict(times, step=None, last=None, pace=None)
        return dict(
            times,
            step=curve.begin,
            last=curve.last,
            pace=(curve.last - curve.begin) / max(curve.steps - 1, 1),
        )

    def _summed(self, speeds, printing):
        """The speed of all ranks together over time, and in `note` how it was counted."""
        if not any(means.bins for means in speeds):
            return {"time": [], "ips": [], "note": None}
        times, values = summed(speeds)
        note, total = None, len(self.planned)
        if total > len(printing) and _mapping(self.logs.get("step")).get("ranks") == "first":
            values = [value * total / len(printing) for value in values]
            who = (
                "rank %d's" % printing[0]
                if len(printing) == 1
                else "the mean of ranks {}".format(", ".join(map(str, printing)))
            )
            note = (
                "%s times the number of ranks (%d): the suite prints steps on its first rank only"
                % (who, total)
            )
        elif total > len(printing):
            note = "of the %d ranks that printed steps; the run has %d" % (len(printing), total)
        return {"time": times, "ips": values, "note": note}


def _mapping(value):
    return value if isinstance(value, dict) else {}


def _dicts(value):
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _number(value):
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _least(*values):
    return min((value for value in values if value is not None), default=None)


def _planned(plan):
    return [rank for rank in _dicts(plan.get("ranks")) if isinstance(rank.get("rank"), int)]


def _names(directory):
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _numbers(run_dir):
    return [
        int(match.group(1)) for match in (_ATTEMPT.match(name) for name in _names(run_dir)) if match
    ]


def _descriptor(path):
    """An open regular file, or None."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor


def _modified(path):
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _bytes(path):
    descriptor = _descriptor(path)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        return handle.read(LIMIT)


def _json(path):
    try:
        return json.loads((_bytes(path) or b"null").decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
