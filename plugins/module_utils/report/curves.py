# SPDX-License-Identifier: Apache-2.0
"""A rank's log as curves: every step line, evaluation and checkpoint with its time, in one pass and
in bounded memory.
"""

from __future__ import annotations

import math
import os

from ..logs.parser import CHUNK, LogScan
from .downsample import Means, Thinned
from .phases import FOUND, SEEKS

COLUMNS = ("time", "step", "epoch", "loss", "lr", "ips", "batch_cost")
_FIGURES = COLUMNS[3:]
_EXTREMES = (3, 4, 5, 6)
_COUNTS = ("epoch", "step", "steps", "global_step")
_WANTED = frozenset((*_FIGURES, *_COUNTS, "time"))
HEAD = 262144  # bytes of a log in which its start is looked for
SIGNS = 4000  # evaluations, and checkpoints, of one rank that are kept
DIGITS = 15  # of a counted step; a line with more is no suite's
SPANS = 1000  # spans of time over which the speed's means are taken
_PLACE = frozenset(("line", "epoch", "step", "global_step"))
_BESIDE = _PLACE | {"samples", "fps"}  # figures of an evaluation that no model is better by


def counted(record, first):
    """How many steps of the whole training a step line stands for, counted from 1 over the epochs;
    None where the line does not say.

    first: what the suite counts from, `{epoch: 0, step: 0}`. A resumed PaddleOCR counts its global
    steps from 0 again while its epochs go on, so where the steps of an epoch are known only the
    place within it is taken from them (as in logs.fraction).
    """
    steps, epoch = record.get("steps"), record.get("epoch")
    number = record.get("global_step")
    if number is not None:
        if not steps or epoch is None or number < 1:
            return number
        return (epoch - first.get("epoch", 1)) * steps + (number - 1) % steps + 1
    number = record.get("step")
    if number is None:
        return None
    number += 1 - first.get("step", 1)
    return (
        (epoch - first.get("epoch", 1)) * steps + number if steps and epoch is not None else number
    )


class Curve(LogScan):
    """Feed a log's bytes; then `rows`, `evaluations`, `saved_at`, `speed`, `signs` (begin, end,
    phase), `nan_at`, `best`, `begin`, `last`.
    """

    def __init__(self, table, logs, clock, points):
        super().__init__(table, digest=False)
        first = ((logs or {}).get("step") or {}).get("first")
        main = ((logs or {}).get("evaluation") or {}).get("main")
        self._first = (
            {key: value for key, value in first.items() if isinstance(value, int)}
            if isinstance(first, dict)
            else {}
        )
        self._main = main if isinstance(main, str) else None
        self._clock = clock
        self._thinned = Thinned(points, _EXTREMES)
        self._now = None  # the latest date of the lines that were read
        # seconds of steps that were still to be done after the latest step line, in its epoch
        self._due = 0.0
        self._done = self._epoch = None  # of the latest step line
        self._patterns = [p for p in table.fields if not _WANTED.isdisjoint(p.groupindex)]
        self._judged = False  # whether the latest line holds a figure of an evaluation
        self.speed = Means(SPANS)
        self.evaluations, self.saved_at = [], []
        self._signs = {"evaluation": [], "checkpoint": []}
        self.begin = self.last = self.nan_at = self.best = None

    def _found(self, number, text):
        before, steps, saved, evaluation, nan = (
            self._now,
            self.steps,
            self.saved_count,
            self.evaluation,
            self.nan,
        )
        when, self._judged = self._clock.read(text), False
        if when is not None:
            self._now = when
        if not super()._found(number, text):
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
        elif self._judged and when is not None:  # one more figure of the same evaluation
            self.evaluations[-1]["time"] = self.last = when
            latest = self._signs["evaluation"]
            latest[-1:] = [(begin, when, phase) for begin, _end, phase in latest[-1:]]
        return True

    def _evaluated(self, number, found):
        super()._evaluated(number, found)
        self._judged = True

    def _step(self, number, text, match):
        super()._step(number, text, match)
        found = match.groupdict()
        for pattern in self._patterns:
            field = pattern.search(text)
            if field:
                found.update(field.groupdict())
        record = {
            name: value
            for name, value in self._totals.items()
            if isinstance(value, int) and value < 10**DIGITS
        }
        for name in _COUNTS:
            if found.get(name) and len(found[name]) <= DIGITS:
                record[name] = int(found[name])
        loss, lr, ips, cost = (self._figure(name, found.get(name)) for name in _FIGURES)
        if self._now is None and found.get("time"):
            self._now = self._clock.read(found["time"])
        when, self._epoch, self._done = self._now, record.get("epoch"), counted(record, self._first)
        self._thinned.add((when, self._done, self._epoch, loss, lr, ips, cost))
        self._due = (
            -self._done % record["steps"] * cost
            if cost is not None and record.get("steps") and self._done
            else 0.0
        )
        if when is not None:
            if ips is not None:
                self.speed.add(when, ips)
            self.begin = when if self.begin is None else self.begin
            self.last = when

    def _figure(self, name, text):
        """A number of a step line, in the table's scale; None for what is missing, no number or not
        finite.
        """
        try:
            value = float(text)
        except (TypeError, ValueError):
            return None
        return value * self.table.scale.get(name, 1) if math.isfinite(value) else None

    def _place(self):
        return {"time": self._now, "step": self._done, "epoch": self._epoch}

    def _sign(self, phase, before):
        """Note an evaluation or a checkpoint that is said when it is over: it began after the
        latest dated line, and the epoch's last steps.
        """
        if self._now is not None:
            begin = self._now if before is None else min(self._now, before + self._due)
            self._keep(self._signs[phase], (begin, self._now, phase))
            self.last, self._due = self._now, 0.0

    @property
    def signs(self):
        return self._signs["evaluation"] + self._signs["checkpoint"]

    @staticmethod
    def _keep(items, item):
        """Append; of too many every second goes, so that those that stay cover the whole time."""
        items.append(item)
        if len(items) > SIGNS:
            del items[1:-1:2]

    def _judge(self):
        """Compare the evaluation before the present one with the best: its figures are complete
        now.
        """
        previous = self.evaluations[-1] if self.evaluations else None
        figures = previous["figures"] if previous else {}
        name = (
            self._main
            if self._main in figures
            else next((key for key in figures if key not in _BESIDE and key[:4] != "best"), None)
        )
        value = figures.get(name)
        if isinstance(value, (int, float)) and (self.best is None or value > self.best["value"]):
            self.best = dict(
                {key: previous[key] for key in ("time", "step", "epoch")}, figure=name, value=value
            )

    def finish(self):
        found = super().finish()
        self._judge()
        for entry in self.evaluations:
            entry["figures"] = {
                key: value for key, value in entry["figures"].items() if key not in _PLACE
            }
        return found

    def rows(self):
        """{column: [values]} of the step lines that stay."""
        rows = self._thinned.rows()
        return {name: [row[index] for row in rows] for index, name in enumerate(COLUMNS)}


def read(descriptor, curve, most):
    """Feed an open log to a Curve, as many bytes as it has now, so that a growing log has an end;
    return how many bytes were left out.

    most: bytes that are read; of a longer log its beginning and its end.
    """
    left, out = os.fstat(descriptor).st_size, 0
    if left > most:
        for begin in range(0, most // 2, CHUNK):
            curve.feed(os.pread(descriptor, min(CHUNK, most // 2 - begin), begin))
        curve.feed(b"\n")  # what was cut within a line is none
        out, left = left - most // 2 * 2, most // 2
        os.lseek(descriptor, -left, os.SEEK_END)
    while left > 0:
        chunk = os.read(descriptor, min(CHUNK, left))
        if not chunk:
            break
        left -= len(chunk)
        curve.feed(chunk)
    return out


def beginning(descriptor, table, clock):
    """{dated, seeks, found}: the times of a log's first dated line and of its first and last word
    about peers before the first step.
    """
    times = dict.fromkeys(("dated", "seeks", "found"))
    now = None
    data = os.pread(descriptor, HEAD, 0).replace(b"\0", b"").replace(b"\r", b"\n")
    for line in data.decode("utf-8", "replace").split("\n"):
        if any(pattern.search(line) for pattern in table.step):
            break
        when = clock.read(line)
        now = when if when is not None else now
        if times["dated"] is None:
            times["dated"] = when
        found = FOUND.search(line)
        if times["seeks"] is None and (found or SEEKS.search(line)):
            times["seeks"] = now
        if found:
            times["found"] = now
    return times
