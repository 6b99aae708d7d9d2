# SPDX-License-Identifier: Apache-2.0
"""A run over time, from the files in runs/<run id>.

That is its curves, evaluations, phases, marks, and the settings to compare by. One pass over every
log, in bounded memory (downsample.py). A file that is missing, torn or of an older version is left
out: nothing here raises for what a run left behind. Times are unix seconds of the controller's
clock.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.evidence import read_events
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    Secrets,
    printable_data,
    secrets_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.parser import Table, TableError
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.timestamps import Clock, span

from ..runs import plan_origin
from . import chart_events, curves, phases, settings
from .curves import Curve
from .downsample import Means, sum_means
from .json_values import Json, finite_number, mapping_of, mappings_of
from .phases import Life, LogBeginning, Phase

LIMIT = 64 << 20  # bytes of a JSON file that are read
# Bytes of an attempt's logs that are read for its curves, and of each of them at least. The limit
# is there because the verdict is shown after the report is made.
MOST, SHARE = 256 << 20, 8 << 20
LONGEST = 20_000  # characters of a verdict's sentence
QUARTER = 900  # time zones differ by quarters of an hour
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOG = re.compile(r"^rank-(\d{3,6})\.([A-Za-z0-9][A-Za-z0-9._-]*)\.log$")
_ATTEMPT = re.compile(r"^attempt-(\d{1,6})$")


@dataclass
class LogFiles:
    """A rank's logs on the controller.

    Copies from before a log was truncated or replaced come first.
    """

    node: str
    paths: list[str]


@dataclass
class RankScan:
    """What a rank's log says over time."""

    curve: Curve
    beginning: LogBeginning


def of_run(run_dir: str, points: int = 2000, folder: str | None = None) -> Json:
    """Return a run over time.

    It never raises for what the run left behind. points: step lines of each rank that stay, at
    most. folder: the directory of the suites' tables (plan_origin.py).
    """
    run, job = (mapping_of(_json(os.path.join(run_dir, name))) for name in ("run.json", "job.json"))
    numbers = _numbers(run_dir)
    source = _PlanSource(run_dir, run, folder)
    plan = source.read_plan("plan.json", max(numbers, default=1))
    if not plan.get("job") and job:
        plan = dict(plan, job=job)
    attempts = _read_attempts(run_dir, run, numbers, source, plan, points)
    bests = [attempt.pop("best") for attempt in attempts]
    best: Json = max(filter(None, bests), key=lambda entry: entry["value"], default={})
    return dict(
        printable_data(dict(_describe_run(run_dir, run, plan), best=best), *secrets_of(plan)),
        attempts=attempts,
        settings=settings.of_plan(plan, run),
    )


def _read_attempts(
    run_dir: str, run: Json, numbers: Iterable[int], source: _PlanSource, plan: Json, points: int
) -> list[Json]:
    """Return the result of each attempt that has a directory or is recorded.

    plan: the run's.
    """
    recorded = {
        entry["number"]: entry
        for entry in mappings_of(run.get("attempts"))
        if isinstance(entry.get("number"), int)
    }
    results, before = [], finite_number(run.get("started"))
    for number in sorted(set(recorded) | set(numbers)):
        record = recorded.get(number) or {}
        before = finite_number(record.get("started")) or before
        attempt_plan = source.read_plan(f"attempt-{number}/plan.json", number) or plan
        directory = os.path.join(run_dir, f"attempt-{number}")
        attempt = Attempt(directory, number, attempt_plan, record, before)
        results.append(attempt.result(points))
        before = finite_number(record.get("ended"))
    return results


def _describe_run(run_dir: str, run: Json, plan: Json) -> Json:
    keys = ("rank", "node", "local_rank", "device", "endpoint")
    suite = mapping_of(plan.get("suite"))
    return {
        "run": run.get("run") or os.path.basename(os.path.normpath(run_dir)),
        "job": run.get("job") or mapping_of(plan.get("job")).get("name"),
        "suite": suite.get("name"),
        "unit": mapping_of(mapping_of(suite.get("logs")).get("step")).get("unit"),
        "nodes": [str(node["name"]) for node in mappings_of(plan.get("nodes")) if node.get("name")],
        "ranks": [{key: rank.get(key) for key in keys} for rank in _planned(plan)],
    }


class _PlanSource:
    """Reads the plans on the controller, with log patterns that are safe to run here."""

    def __init__(self, run_dir: str, run: Json, folder: str | None) -> None:
        self._run_dir, self._run, self._folder = run_dir, run, folder

    def read_plan(self, name: str, number: int) -> Json:
        """Return the plan in a file below the run's directory.

        number: of its attempt. Its log patterns are run here. A plan that the controller has
        neither made nor examined therefore gets the shipped ones.
        """
        path = os.path.join(self._run_dir, name)
        data, plan = _bytes(path) or b"null", mapping_of(_json(path))
        directory = os.path.join(self._run_dir, f"attempt-{number}")
        if not plan or plan_origin.is_trusted(data, self._run, number, directory):
            return plan
        return plan_origin.with_shipped_patterns(plan, self._folder)


class Attempt:
    """One attempt's directory on the controller.

    before: when it was started at the earliest, by the controller's clock, or None.
    """

    def __init__(
        self, directory: str, number: int, plan: Json, record: Json, before: float | None
    ) -> None:
        self.directory, self.number = directory, number
        self.plan, self.record, self.before = plan, record, before
        self.secrets: Secrets = secrets_of(plan)
        self.logs = mapping_of(mapping_of(plan.get("suite")).get("logs"))
        try:
            self.table = Table(self.logs)
        except TableError:
            self.table, self.logs = Table(), {}
        self.ranks = self._recorded_ranks()
        self.planned = {rank["rank"]: rank for rank in _planned(plan)}
        self.files = self._files()
        self.where = self._nodes_of_ranks()
        self.nodes = list(dict.fromkeys(self.where[rank] for rank in sorted(self.where)))
        self.left_out: list[str] = []
        self.events: dict[str, Json] = {}
        self.units: dict[str, Json] = {}
        for node in self.nodes:
            self.events[node] = read_events(_bytes(os.path.join(directory, f"ranks.{node}.jsonl")))
            self.units[node] = mapping_of(_json(os.path.join(directory, f"exit.{node}.json")))
        entries = {str(entry.get("node")): entry for entry in mappings_of(record.get("nodes"))}
        self.node_records = {node: entries.get(node, {}) for node in self.nodes}
        self.ahead = {node: phases.clock_offset(self._bounds(node)) for node in self.nodes}
        self.offset = {node: self._offset(node) for node in self.nodes}

    def _recorded_ranks(self) -> dict[int, Json]:
        """Return {rank: what run.json, else ranks.json has of it}."""
        entries = self.record.get("ranks")
        if not entries:
            index = mapping_of(_json(os.path.join(self.directory, "ranks.json")))
            entries = index.get("ranks")
        return {
            entry["rank"]: entry
            for entry in mappings_of(entries)
            if isinstance(entry.get("rank"), int)
        }

    def _nodes_of_ranks(self) -> dict[int, str]:
        """Return {rank: node} by the plan, else the record, else the log's name."""
        nodes = {rank: files.node for rank, files in self.files.items()}
        for entries in (self.ranks, self.planned):
            for rank, entry in entries.items():
                if entry.get("node"):
                    nodes[rank] = str(entry["node"])
        return nodes

    def _files(self) -> dict[int, LogFiles]:
        """Return {rank: its logs on the controller}."""
        logs: dict[int, LogFiles] = {}
        names = _names(self.directory)
        existing = frozenset(names)
        for name in names:
            match = _LOG.match(name)
            if match:
                numbered = (f"{name}.{number}" for number in itertools.count(1))
                older = itertools.takewhile(existing.__contains__, numbered)
                paths = [os.path.join(self.directory, file) for file in (*older, name)]
                logs[int(match.group(1))] = LogFiles(match.group(2), paths)
        return logs

    def known(self, rank: int) -> Json:
        """Return a rank's findings in the record, updated by its node's events.

        The events are there before there is a record.
        """
        findings = dict(self.ranks.get(rank, {}))
        for key, value in self.events[self.where[rank]]["ranks"].get(rank, {}).items():
            if value is not None:
                findings[key] = value
        return findings

    def _bounds(self, node: str) -> tuple[float | None, float | None]:
        """Return (least, most) seconds that a node's clock can be ahead, either None.

        A start follows the command, and an end comes before it is recorded.
        """
        least = most = None
        launched = finite_number(self.events[node]["launcher"].get("started"))
        if launched is not None and self.before is not None:
            most = launched - self.before
        ended, recorded = (
            finite_number(self.units[node].get("time")),
            finite_number(self.record.get("ended")),
        )
        if ended is not None and recorded is not None:
            least = ended - recorded
        return least, most

    def _offset(self, node: str) -> float | None:
        """Return the seconds that the node's zone is east of UTC, or None.

        It is the node's own answer, or the difference between its logs' dates and the times that
        the agent recorded.
        """
        answer = finite_number(self.node_records[node].get("utc_offset"))
        if answer is not None:
            return answer
        for rank in sorted(rank for rank in self.files if self.where[rank] == node):
            offset = self._offset_of_log(rank)
            if offset is not None:
                return offset
        return None

    def _offset_of_log(self, rank: int) -> float | None:
        """Return the seconds east of UTC by which a rank's log is dated, or None."""
        known = self.known(rank)
        started, modified = finite_number(known.get("started")), finite_number(known.get("mtime"))
        descriptor = _descriptor(self.files[rank].paths[0])
        if descriptor is None:
            return None
        try:
            first, last = span(descriptor, 0, started)
        finally:
            os.close(descriptor)
        for printed, real in ((first, started), (last, modified)):
            if printed is not None and real is not None:
                return float(round((printed - real) / QUARTER) * QUARTER)
        return None

    def result(self, points: int) -> Json:
        """Return the attempt over time, as of_run's `attempts` have it."""
        scans = {rank: self._scan(rank, points) for rank in sorted(self.files)}
        printing = [rank for rank in scans if scans[rank].curve.steps]
        lives = {rank: self._life(rank, scans.get(rank)) for rank in sorted(self.where)}
        evaluations: list[Json] = []
        saved: list[Json] = []
        for rank in lives:
            if rank in scans:
                curve = scans[rank].curve
                evaluations += [dict(entry, rank=rank) for entry in curve.evaluations]
                saved += [dict(entry, rank=rank) for entry in curve.saved_at]
        times = list(_known_times(lives))
        return {
            "number": self.number,
            "begin": min(times, default=self.before),
            "end": max(times, default=finite_number(self.record.get("ended"))),
            "verdict": printable_data(self.record.get("verdict"), *self.secrets, limit=LONGEST),
            "series": {rank: scans[rank].curve.rows() for rank in printing},
            "summed": self._summed([scans[rank].curve.speed for rank in printing], printing),
            "evaluations": printable_data(evaluations, *self.secrets),
            "saved": printable_data(saved, *self.secrets),
            "phases": self._phases(scans, printing, lives),
            "marks": printable_data(chart_events.marks_of(self, scans, lives), *self.secrets),
            "clock": self.ahead,
            "utc_offset": self.offset,
            "left_out": self.left_out,
            "best": self._best(scans),
        }

    def _best(self, scans: Mapping[int, RankScan]) -> Json | None:
        """Return the best evaluation of the attempt's ranks, or None."""
        bests = [scan.curve.best for scan in scans.values() if scan.curve.best]
        if not bests:
            return None
        return dict(max(bests, key=lambda best: best["value"]), attempt=self.number)

    def _phases(
        self, scans: Mapping[int, RankScan], printing: Sequence[int], lives: Mapping[int, Life]
    ) -> list[Phase]:
        """Return the phases of all ranks.

        A rank without steps of its own has the leader's.
        """
        dated = (rank for rank in printing if scans[rank].curve.begin is not None)
        leader = lives.get(next(dated, -1))
        result: list[Phase] = []
        for rank, life in lives.items():
            follows = leader is not None and life.step is None and life.process is not None
            if leader is not None and follows:
                last = _least(leader.last, life.ended)
                life = replace(life, step=leader.step, last=last, pace=leader.pace)
            signs = []
            if rank in scans:
                signs = scans[rank].curve.signs
            result += phases.rank_phases(rank, life, signs, follows)
        return result

    def _scan(self, rank: int, points: int) -> RankScan:
        """Return what a rank's log says over time."""
        node, paths = self.where[rank], self.files[rank].paths
        near = finite_number(self.ranks.get(rank, {}).get("started")) or self.before
        near = near or _modified(paths[-1])
        clock = Clock((self.offset[node] or 0.0) + self.ahead[node], near)
        curve = Curve(self.table, self.logs, clock, points)
        beginning: LogBeginning | None = None
        most = max(SHARE, MOST // len(self.files))
        for path in paths:
            descriptor = _descriptor(path)
            if descriptor is None:
                continue
            try:
                if beginning is None:
                    beginning = curves.beginning(descriptor, self.table, clock)
                else:
                    curve.feed(b"\n")  # an earlier copy of a log may end within a line
                self._note_left_out(path, curves.read(descriptor, curve, most))
            except OSError:
                pass  # a failing disk: what was read so far counts
            finally:
                os.close(descriptor)
        curve.finish()
        return RankScan(curve, beginning or LogBeginning())

    def _note_left_out(self, path: str, size: int) -> None:
        if size:
            self.left_out.append(
                f"attempt-{self.number}/{os.path.basename(path)}: {size >> 20} MB in its middle"
                " were not read for the curves"
            )

    def _life(self, rank: int, scan: RankScan | None) -> Life:
        """Return the times of one rank by the controller's clock.

        scan: None where the rank has no log.
        """
        node = self.where[rank]
        known, offset = self.known(rank), self.ahead[node]
        written = finite_number(known.get("mtime"))
        life = Life(
            launched=_subtract(finite_number(self.events[node]["launcher"].get("started")), offset),
            process=_subtract(finite_number(known.get("started")), offset),
            ended=_subtract(self._end_of_rank(node, known), offset),
            stop_requested=_subtract(self._stop_time(node), offset),
            written=_subtract(written or finite_number(known.get("last_time")), offset),
            log=LogBeginning(),
        )
        error = known.get("first_error") or known.get("error")
        if isinstance(error, dict):
            life.error = chart_events.error_time(error, written, life.ended, offset)
        life.fault = life.error
        if known.get("signal") and life.error is None:
            life.fault = life.ended
        if scan is None:
            return life
        life.log, curve = scan.beginning, scan.curve
        if curve.begin is not None and curve.last is not None:
            life.step, life.last = curve.begin, curve.last
            life.pace = (curve.last - curve.begin) / max(curve.steps - 1, 1)
        return life

    def _end_of_rank(self, node: str, known: Json) -> float | None:
        """Return when a rank ended by its node's clock: at the latest with its unit."""
        ended = finite_number(known.get("ended"))
        if ended is None and known.get("started") is not None:
            return finite_number(self.units[node].get("time"))
        return ended

    def _stop_time(self, node: str) -> float | None:
        """Return the time of a stop request by the node's clock, or None.

        Where the request's time is unknown, it is the first end on the node.
        """
        if not self.units[node].get("stopped_by"):
            return None
        requested = finite_number(self.node_records[node].get("stopped_at"))
        if requested is not None:
            return requested
        ends = [finite_number(entry.get("ended")) for entry in self.events[node]["ranks"].values()]
        return _least(*ends, finite_number(self.units[node].get("time")))

    def _summed(self, speeds: Sequence[Means], printing: Sequence[int]) -> Json:
        """Return the speed of all ranks over time, with a `note` on how it was counted."""
        if not any(means.bins for means in speeds):
            return {"time": [], "ips": [], "note": None}
        times, values = sum_means(speeds)
        note, total, count = None, len(self.planned), len(printing)
        if total > count and mapping_of(self.logs.get("step")).get("ranks") == "first":
            values = [value * total / count for value in values]
            speed = f"the mean of ranks {', '.join(map(str, printing))}"
            if count == 1:
                speed = f"rank {printing[0]}'s"
            note = (
                f"{speed} times the number of ranks ({total}): the suite prints steps on its first"
                " rank only"
            )
        elif total > count:
            note = f"of the {count} ranks that printed steps; the run has {total}"
        return {"time": times, "ips": values, "note": note}


def _known_times(lives: Mapping[int, Life]) -> Iterator[float]:
    """Yield the times of all lives that bound an attempt."""
    for life in lives.values():
        for time in (
            *(life.launched, life.process, life.log.dated),
            *(life.last, life.ended, life.written),
        ):
            if time is not None:
                yield time


def _subtract(time: float | None, seconds: float) -> float | None:
    if time is None:
        return None
    return time - seconds


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _planned(plan: Json) -> list[Json]:
    return [rank for rank in mappings_of(plan.get("ranks")) if isinstance(rank.get("rank"), int)]


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _numbers(run_dir: str) -> list[int]:
    """Return the numbers of the attempts that have a directory."""
    matches = map(_ATTEMPT.match, _names(run_dir))
    return [int(match.group(1)) for match in matches if match]


def _descriptor(path: str) -> int | None:
    """Return a descriptor of an open regular file, or None."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return descriptor


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _bytes(path: str) -> bytes | None:
    descriptor = _descriptor(path)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        return handle.read(LIMIT)


def _json(path: str) -> Any:
    try:
        return json.loads((_bytes(path) or b"null").decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
