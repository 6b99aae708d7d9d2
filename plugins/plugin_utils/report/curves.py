# SPDX-License-Identifier: Apache-2.0
"""A rank's log as curves, in one pass and in bounded memory.

They hold every step line, evaluation and checkpoint with its time.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from ansible_collections.trainyard.cluster.plugins.module_utils.logs.parser import (
    CHUNK,
    LogScan,
    Table,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.rendezvous import (
    PEERS_FOUND,
    PEERS_SOUGHT,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.timestamps import Clock

from .downsample import Means, Thinned
from .json_values import Json
from .phases import LogBeginning, Sign

T = TypeVar("T")

COLUMNS = ("time", "step", "epoch", "loss", "lr", "ips", "batch_cost", "data_cost")
_FIGURES = COLUMNS[3:]
_EXTREMES = (3, 4, 5, 6)
_COUNTS = ("epoch", "step", "steps", "global_step")
_WANTED = frozenset((*_FIGURES, *_COUNTS, "time"))
HEAD = 262144  # bytes of a log in which its start is looked for
SIGNS = 4000  # evaluations, and checkpoints, of one rank that are kept
DIGITS = 15  # of a counted step. No suite prints more.
SPANS = 1000  # spans of time over which the speed's means are taken
_PLACE = frozenset(("line", "epoch", "step", "global_step"))
_NOT_QUALITY = _PLACE | {"samples", "fps"}  # figures of an evaluation that do not rate the model


def counted(record: Mapping[str, Any], first: Mapping[str, Any]) -> Any:
    """Return the number of steps up to a step line, or None if it is unknown.

    They are counted from 1 over the epochs. first: what the suite counts from, `{epoch: 0, step:
    0}`. A resumed PaddleOCR counts its global steps from 0 again while its epochs go on. So where
    the steps of an epoch are known, only the place within it is taken from them (as in
    parser.fraction).
    """
    steps, epoch = record.get("steps"), record.get("epoch")
    by_epoch = bool(steps) and epoch is not None
    number = record.get("global_step")
    if number is not None:
        if not by_epoch or number < 1:
            return number
        return (epoch - first.get("epoch", 1)) * steps + (number - 1) % steps + 1
    number = record.get("step")
    if number is None:
        return None
    number += 1 - first.get("step", 1)
    if by_epoch:
        number += (epoch - first.get("epoch", 1)) * steps
    return number


class Curve(LogScan):
    """Feed a log's bytes, then read the curves.

    They are `rows`, `evaluations`, `saved_at`, `speed`, `signs`, `nan_at`,
    `best`, `begin`, `last`. clock: a timestamps.Clock. points: rows that stay, at most.
    """

    def __init__(
        self, table: Table, logs: Mapping[str, Any] | None, clock: Clock, points: int
    ) -> None:
        super().__init__(table, digest=False)
        logs = logs or {}
        self._first = _whole_numbers((logs.get("step") or {}).get("first"))
        self._main = (logs.get("evaluation") or {}).get("main")
        if not isinstance(self._main, str):
            self._main = None
        self._clock = clock
        self._thinned = Thinned(points, _EXTREMES)
        self._now: float | None = None  # the latest date of the lines that were read
        # seconds of steps that were still to be done after the latest step line, in its epoch
        self._due = 0.0
        # of the latest step line
        self._done: Any = None
        self._epoch: int | None = None
        self._patterns = [p for p in table.fields if not _WANTED.isdisjoint(p.groupindex)]
        self._has_figure = False  # the latest line holds a figure of an evaluation
        self.speed = Means(SPANS)
        self.evaluations: list[Json] = []
        self.saved_at: list[Json] = []
        self._signs: dict[str, list[Sign]] = {"evaluation": [], "checkpoint": []}
        self.begin: float | None = None
        self.last: float | None = None
        self.nan_at: float | None = None
        self.best: Json | None = None

    def _match(self, number: int, text: str) -> bool:
        before, steps, saved = self._now, self.steps, self.saved_count
        evaluation, nan = self.evaluation, self.nan
        when, self._has_figure = self._clock.read(text), False
        if when is not None:
            self._now = when
        if not super()._match(number, text):
            return False
        if self.steps != steps:
            if self.nan is not nan:
                self.nan_at = self._now
        elif self.saved_count != saved:
            self._sign("checkpoint", before)
            self._keep(self.saved_at, dict(self._place(), path=self.saved[-1].get("path")))
        elif self.evaluation is not evaluation:
            self._sign("evaluation", before)
            self._judge()
            self._keep(self.evaluations, dict(self._place(), figures=self.evaluation))
        elif self._has_figure and when is not None:
            self._extend_evaluation(when)
        return True

    def _extend_evaluation(self, when: float) -> None:
        """Move the end of the latest evaluation: one more figure of it was printed."""
        self.evaluations[-1]["time"] = self.last = when
        signs = self._signs["evaluation"]
        signs[-1:] = [sign._replace(end=when) for sign in signs[-1:]]

    def _evaluated(self, number: int, values: Any) -> None:
        super()._evaluated(number, values)
        self._has_figure = True

    def _step(self, number: int, text: str, match: re.Match[str]) -> None:
        super()._step(number, text, match)
        groups = self._read_groups(text, match)
        record = self._read_counts(groups)
        loss, lr, ips, cost, data = (self._figure(name, groups.get(name)) for name in _FIGURES)
        if self._now is None and groups.get("time"):
            self._now = self._clock.read(groups["time"])
        self._epoch, self._done = record.get("epoch"), counted(record, self._first)
        self._thinned.add((self._now, self._done, self._epoch, loss, lr, ips, cost, data))
        self._due = 0.0
        if cost is not None and record.get("steps") and self._done:
            self._due = -self._done % record["steps"] * cost
        if self._now is not None:
            if ips is not None:
                self.speed.add(self._now, ips)
            if self.begin is None:
                self.begin = self._now
            self.last = self._now

    def _read_groups(self, text: str, match: re.Match[str]) -> dict[str, str | None]:
        """Return the named groups of a step line, as text."""
        groups = match.groupdict()
        for pattern in self._patterns:
            field = pattern.search(text)
            if field:
                groups.update(field.groupdict())
        return groups

    def _read_counts(self, groups: Mapping[str, str | None]) -> dict[str, int]:
        """Return the whole numbers of a step line, else the log's totals."""
        record = {
            name: value
            for name, value in self._totals.items()
            if isinstance(value, int) and value < 10**DIGITS
        }
        for name in _COUNTS:
            text = groups.get(name)
            if text and len(text) <= DIGITS:
                record[name] = int(text)
        return record

    def _figure(self, name: str, text: str | None) -> float | None:
        """Return a number of a step line, in the table's scale.

        None stands for what is missing, not a number or not finite.
        """
        try:
            value = float(text or "")
        except ValueError:
            return None
        if not math.isfinite(value):
            return None
        return value * self.table.scale.get(name, 1)

    def _place(self) -> Json:
        return {"time": self._now, "step": self._done, "epoch": self._epoch}

    def _sign(self, phase: str, before: float | None) -> None:
        """Note an evaluation or a checkpoint, which is printed when it is over.

        It began after the latest dated line (`before`) and the epoch's last steps.
        """
        if self._now is None:
            return
        begin = self._now
        if before is not None:
            begin = min(begin, before + self._due)
        self._keep(self._signs[phase], Sign(begin, self._now, phase))
        self.last, self._due = self._now, 0.0

    @property
    def signs(self) -> list[Sign]:
        """The evaluations and the checkpoints."""
        return self._signs["evaluation"] + self._signs["checkpoint"]

    @staticmethod
    def _keep(items: list[T], item: T) -> None:
        """Append an item.

        Of too many items every second is dropped, so that the rest covers the whole time.
        """
        items.append(item)
        if len(items) > SIGNS:
            del items[1:-1:2]

    def _judge(self) -> None:
        """Compare the latest kept evaluation with the best: its figures are complete now."""
        if not self.evaluations:
            return
        latest = self.evaluations[-1]
        name = self._main_figure(latest["figures"])
        value = latest["figures"].get(name)
        if isinstance(value, (int, float)) and (self.best is None or value > self.best["value"]):
            place = {key: latest[key] for key in ("time", "step", "epoch")}
            self.best = dict(place, figure=name, value=value)

    def _main_figure(self, figures: Mapping[str, Any]) -> str | None:
        """Return the name of the figure that evaluations are compared by, or None."""
        if self._main in figures:
            return self._main
        names = (key for key in figures if key not in _NOT_QUALITY and key[:4] != "best")
        return next(names, None)

    def finish(self, ended: tuple[int | None, str | None] | None = None) -> Json:
        """Return the log's findings, and complete the evaluations."""
        findings = super().finish(ended)
        self._judge()
        for entry in self.evaluations:
            entry["figures"] = {
                key: value for key, value in entry["figures"].items() if key not in _PLACE
            }
        return findings

    def rows(self) -> dict[str, list[Any]]:
        """Return {column: [values]} of the step lines that stay."""
        rows = self._thinned.rows()
        return {name: [row[index] for row in rows] for index, name in enumerate(COLUMNS)}


def _whole_numbers(value: object) -> dict[str, int]:
    """Return the whole numbers of a mapping, or {} for another type."""
    if not isinstance(value, dict):
        return {}
    return {key: item for key, item in value.items() if isinstance(item, int)}


def read(descriptor: int, curve: Curve, most: int) -> int:
    """Feed an open log to a Curve, and return the number of bytes left out.

    Only as many bytes are read as it has now, so that a growing log has an end. most: bytes that
    are read. Of a longer log they are its beginning and its end. Raises OSError.
    """
    left, skipped = os.fstat(descriptor).st_size, 0
    if left > most:
        half = most // 2
        for begin in range(0, half, CHUNK):
            curve.feed(os.pread(descriptor, min(CHUNK, half - begin), begin))
        curve.feed(b"\n")  # what was cut within a line is not a line
        skipped, left = left - half * 2, half
        os.lseek(descriptor, -left, os.SEEK_END)
    while left > 0:
        chunk = os.read(descriptor, min(CHUNK, left))
        if not chunk:
            break
        left -= len(chunk)
        curve.feed(chunk)
    return skipped


def beginning(descriptor: int, table: Table, clock: Clock) -> LogBeginning:
    """Return the times of a log's beginning. Raises OSError."""
    times = LogBeginning()
    now: float | None = None
    for line in _read_head(descriptor):
        if any(pattern.search(line) for pattern in table.step):
            break
        when = clock.read(line)
        if when is not None:
            now = when
        if times.dated is None:
            times.dated = when
        has_peers = PEERS_FOUND.search(line)
        if times.seeks_peers is None and (has_peers or PEERS_SOUGHT.search(line)):
            times.seeks_peers = now
        if has_peers:
            times.has_peers = now
    return times


def _read_head(descriptor: int) -> list[str]:
    """Return the lines of a log's first HEAD bytes."""
    data = os.pread(descriptor, HEAD, 0).replace(b"\0", b"").replace(b"\r", b"\n")
    return data.decode("utf-8", "replace").split("\n")
