# SPDX-License-Identifier: Apache-2.0
"""Read a rank's log: training steps, evaluations, checkpoints, the first error, size and digest, in
one pass and in bounded memory.

What a suite's lines look like is data (`suites/<name>.yml`, section `logs`, in the plan); this file
knows no suite. A table may hold

step:       has, line, fields, totals, unit, scale, first, ranks     evaluation: has, lines, main
saved: has, lines

`has`: literals, one of which stands in every line of interest (left out: every line is tried);
`line`, `fields`, `lines`, `totals`: regular expressions with named groups. Groups epoch, epochs,
step, steps, global_step and total_steps become whole numbers, eta becomes seconds, time stays text,
others become numbers where they can. `totals` are lines that say once what step lines then leave
out; `scale` multiplies a group.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat

from .error_patterns import LITERALS, any_of
from .error_scanner import ErrorScan

CHUNK = 1 << 20
# bytes of one line that are parsed; the digest, the size and the line count take everything
MAX_LINE = 8192
KEEP_SAVED = 20
LARGEST = 1e300  # the largest number in an answer of a node; a larger one counts as infinite
TAIL = 65536
TAIL_LIMIT = (
    1 << 20
)  # how far tail_status looks back for a step line when the last TAIL bytes have none

_WHOLE = frozenset(
    (
        "epoch",
        "epochs",
        "step",
        "steps",
        "global_step",
        "total_steps",
        "samples",
        "memory_mb",
        "best_epoch",
    )
)
_TEXT = frozenset(("time", "path"))
_NOT_FINITE = re.compile(r"nan|inf|NaN|Inf")  # PaddleOCR pads: nanxxx, infxxx
# glog's lines, and those of MindSpore's own logger that are no errors.
_GLOG = re.compile(
    r"^(?:[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ |\[(?:DEBUG|INFO|WARNING)\] [A-Z_]+\(\d+[,:])"
)
_ETA = re.compile(r"^(?:(\d+) days?, )?(\d+):(\d\d)(?::(\d\d))?$")


class TableError(ValueError):
    """The `logs` table of a suite cannot be used; the message names the entry."""


def _patterns(section, key, where):
    value = section.get(key) or []
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise TableError(f"logs.{where}.{key}: not a list of texts")
    try:
        return [re.compile(v) for v in value]
    except re.error as error:
        raise TableError(f"logs.{where}.{key}: not a regular expression: {error}") from error


class Table:
    """A suite's `logs` section, compiled. An empty table finds errors only."""

    def __init__(self, logs=None):
        logs = logs or {}
        if not isinstance(logs, dict) or not all(
            isinstance(logs.get(k) or {}, dict) for k in ("step", "evaluation", "saved")
        ):
            raise TableError("logs: not a mapping of step, evaluation and saved")
        step, evaluation, saved = (logs.get(k) or {} for k in ("step", "evaluation", "saved"))
        self.step = _patterns(step, "line", "step")
        self.fields = _patterns(step, "fields", "step")
        self.totals = _patterns(step, "totals", "step")
        self.evaluation = _patterns(evaluation, "lines", "evaluation")
        self.saved = _patterns(saved, "lines", "saved")
        self.scale = step.get("scale") or {}
        if not isinstance(self.scale, dict) or not all(
            isinstance(value, (int, float)) for value in self.scale.values()
        ):
            raise TableError("logs.step.scale: not a mapping of groups to numbers")
        used = [
            section
            for section, patterns in (
                (step, self.step + self.totals),
                (evaluation, self.evaluation),
                (saved, self.saved),
            )
            if patterns
        ]
        if all(section.get("has") for section in used):
            words = [
                word
                for section in used
                for word in (
                    [section["has"]] if isinstance(section["has"], str) else section["has"]
                )
            ]
            if not all(isinstance(word, str) for word in words):
                raise TableError("logs: a `has` that is not a text or a list of texts")
            self.gate = re.compile(any_of([*LITERALS, *words]).encode())
        else:
            self.gate = re.compile(b"(?m)^")


def _number(name, text, scale):
    if name in _TEXT:
        return text
    if name == "eta":
        match = _ETA.match(text)
        if not match:
            return None
        days, first, second, third = (int(g) if g else 0 for g in match.groups())
        return days * 86400 + (
            first * 3600 + second * 60 + third if match.group(4) else first * 60 + second
        )
    try:
        value = int(text) if name in _WHOLE else float(text)
    except ValueError:
        return text
    value = value * scale[name] if name in scale else value
    if isinstance(value, float) and not abs(value) <= LARGEST:
        return None  # JSON has no NaN; `nan` in the result says where
    return value


def _groups(match, scale):
    return {
        name: _number(name, text, scale)
        for name, text in match.groupdict().items()
        if text is not None
    }


class LogScan:
    """Feed bytes in any pieces with `feed`, get the findings from `finish`."""

    def __init__(self, table, digest=True, line_numbers=True):
        self.table = table
        self.errors = ErrorScan()
        self.bytes = 0
        self.number = 0
        self.steps = 0
        self.saved_count = 0
        self.first_step = self.evaluation = self.nan = None
        self.saved = []
        self._totals = {}
        self._pattern = None  # which of the table's step patterns this log has
        # the last step line as (number, text, match), read in full only when somebody asks
        self._latest = None
        self._read = None
        self._sha = hashlib.sha256() if digest else None
        self._numbered = line_numbers
        self._rest = b""  # the beginning of the line that the last chunk broke off
        self._last = b""

    def feed(self, chunk):
        if not chunk:
            return
        self.bytes += len(chunk)
        self._last = chunk[-1:]
        if self._sha is not None:
            self._sha.update(chunk)
        end = chunk.rfind(b"\n")
        if end < 0:
            self._hold(self._rest + chunk)
            return
        self._lines(self._rest + chunk[: end + 1])
        self._hold(chunk[end + 1 :])

    def _hold(self, rest):
        """Keep what a broken line needs and no more: a progress bar redraws itself after each CR,
        so only its last drawing counts.
        """
        rest = rest.replace(b"\0", b"")
        cut = rest.rfind(b"\r", 0, len(rest) - 1)
        self._rest = rest[cut + 1 :][:MAX_LINE]

    def _lines(self, block):
        block = block.replace(b"\0", b"")  # holes of a truncated or sparse log
        gate, position, size = self.table.gate, 0, len(block)
        while position < size:
            start = position
            if self.errors.idle:
                match = gate.search(block, position)
                if match is None:
                    self.number += block.count(b"\n", position)
                    return
                start = block.rfind(b"\n", position, match.start()) + 1 or position
                self.number += block.count(b"\n", position, start)
            end = block.index(b"\n", start)
            self.number += 1
            self._line(block[start:end])
            position = end + 1

    def _line(self, raw):
        raw = raw.rstrip(b"\r")
        raw = raw[raw.rfind(b"\r") + 1 :][:MAX_LINE]
        text = raw.decode("utf-8", "replace")
        number = self.number if self._numbered else None
        if not self._found(number, text):
            self.errors.line(self.number, text)

    def _found(self, number, text):
        table = self.table
        for index, pattern in enumerate(table.step):
            match = pattern.search(text)
            if match:
                # Patterns are in the order of their worth: an epoch's mean is no step where the log
                # has steps.
                if self._pattern is None or index <= self._pattern:
                    self._pattern = index
                    self._step(number, text, match)
                return True
        for pattern in table.totals:
            match = pattern.search(text)
            if match:
                self._totals.update(_groups(match, table.scale))
                return True
        for pattern in table.evaluation:
            match = pattern.search(text)
            if match:
                self._evaluated(number, _groups(match, {}))
                return True
        for pattern in table.saved:
            match = pattern.search(text)
            if match:
                self.saved_count += 1
                self.saved.append(dict(self._at(), line=number, **_groups(match, {})))
                del self.saved[:-KEEP_SAVED]
                return True
        return False

    def _step(self, number, text, match):
        self.steps += 1
        self._latest, self._read = (number, text, match), None
        if self.first_step is None:
            self.first_step = self.last_step
        if self.nan is None and _NOT_FINITE.search(text) and self.last_step.get("loss", 0) is None:
            shown = next(
                f.group("loss")
                for f in (p.search(text) for p in self.table.step + self.table.fields)
                if f and f.groupdict().get("loss")
            )
            self.nan = dict(self._at(), line=number, loss=shown)
        self.errors.progress()

    @property
    def last_step(self):
        if self._read is None and self._latest is not None:
            number, text, match = self._latest
            self._read = dict(self._totals, line=number, **_groups(match, self.table.scale))
            for pattern in self.table.fields:
                field = pattern.search(text)
                if field:
                    self._read.update(_groups(field, self.table.scale))
        return self._read

    def _at(self):
        record = self.last_step or {}
        return {key: record[key] for key in ("epoch", "step", "global_step") if key in record}

    def _evaluated(self, number, found):
        current = self.evaluation
        # A value again: the next evaluation begins. Suites repeat the best one so far, at the end
        # once more.
        if current is None or any(key in current and not key.startswith("best") for key in found):
            current = self.evaluation = dict(self._at(), line=number)
        current.update(found)

    def finish(self):
        whole_lines = self.number
        if self._rest:
            self.number += 1
            self._line(self._rest)
        unended = self.bytes and self._last != b"\n"
        error = self.errors.finish()
        if error and not self._numbered:
            error["line"] = None
        return {
            "bytes": self.bytes,
            "sha256": self._sha.hexdigest() if self._sha is not None else None,
            "lines": whole_lines + (1 if unended else 0) if self._numbered else None,
            "steps": self.steps,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "evaluation": self.evaluation,
            "nan": self.nan,
            "saved": self.saved,
            "saved_count": self.saved_count,
            "first_error": error,
            "errors": self.errors.count,
            "containers": self.errors.containers,
        }


def scan(descriptor, table):
    """Scan an open file from its beginning, as many bytes as it has now, so that a growing log has
    an end.
    """
    found = LogScan(table)
    left = os.fstat(descriptor).st_size
    while left > 0:
        chunk = os.read(descriptor, min(CHUNK, left))
        if not chunk:
            break
        left -= len(chunk)
        found.feed(chunk)
    return found.finish()


def last_line(descriptor):
    """The last line of an open log that says something, at most 400 characters, or None. The
    runtimes' own lines come after what counts.
    """
    size = os.fstat(descriptor).st_size
    tail = (
        os.pread(descriptor, 4096, max(0, size - 4096))
        .decode("utf-8", "replace")
        .replace("\r", "\n")
        .split("\n")
    )
    return next(
        (
            line.strip()[:400]
            for line in reversed(tail)
            if line.strip(" \0") and not _GLOG.match(line)
        ),
        None,
    )


def tail_status(path, patterns, max_bytes=TAIL):
    """The live view: the findings of the end of a file (a path or an open descriptor).

    Line numbers, digest and line count are not known (None). `patterns` is a Table or a `logs`
    mapping. When the last `max_bytes` hold no step line, it looks back up to 1 MiB.
    """
    table = patterns if isinstance(patterns, Table) else Table(patterns)
    descriptor = (
        path
        if isinstance(path, int)
        else os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    )
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError("not a regular file")
        window = max_bytes
        while True:
            begin = max(0, info.st_size - window)
            os.lseek(descriptor, begin, os.SEEK_SET)
            data = os.read(descriptor, window)
            found = LogScan(table, digest=False, line_numbers=False)
            # The first line is whole only at the beginning of the file.
            found.feed(data if begin == 0 else data[data.find(b"\n") + 1 :])
            result = found.finish()
            if result["last_step"] or begin == 0 or window >= TAIL_LIMIT or not table.step:
                break
            window = min(window * 4, TAIL_LIMIT)
    finally:
        if descriptor is not path:
            os.close(descriptor)
    result.update(
        bytes=info.st_size,
        mtime=info.st_mtime,
        steps=None,
        first_step=None,
        saved_count=None,
        whole=begin == 0,
    )
    return result


def fraction(step, logs, epochs=None):
    """How much of a training is done, 0 to 1, or None where the lines and `epochs` (from the job)
    do not say.

    `step` is a step record, `logs` the suite's table (its `step.first` says what it counts from).
    """
    if not step:
        return None
    if step.get("total_steps"):
        return min(1.0, step.get("global_step", step.get("step", 0)) / step["total_steps"])
    first = ((logs or {}).get("step") or {}).get("first") or {}
    epochs, steps = step.get("epochs") or epochs, step.get("steps")
    if not epochs or not steps or "epoch" not in step and "global_step" not in step:
        return None
    if "global_step" in step and "epoch" in step:
        # A resumed PaddleOCR counts its steps from 0 again while its epochs go on, so only the
        # place within the epoch is taken from them.
        within = (step["global_step"] - 1) % steps + 1
        return min(
            1.0, ((step["epoch"] - first.get("epoch", 1)) * steps + within) / (epochs * steps)
        )
    if "global_step" in step:
        return min(1.0, step["global_step"] / (epochs * steps))
    done = (
        (step["epoch"] - first.get("epoch", 1)) * steps
        + step.get("step", 0)
        - first.get("step", 1)
        + 1
    )
    return max(0.0, min(1.0, done / (epochs * steps)))
