# SPDX-License-Identifier: Apache-2.0
"""A rank's log, read in one pass and in bounded memory.

The result has training steps, evaluations, checkpoints, the first error, size and digest. The form
of a suite's lines is data (`suites/<name>.yml`, section `logs`, in the plan). This file knows no
suite. A table may hold

step            has, line, fields, totals, unit, scale, first, ranks
evaluation      has, lines, main
saved           has, lines

has             literals, one of which stands in every line of interest. Without it every line is
                tried.
line, fields, lines, totals
                regular expressions with named groups. Groups epoch, epochs, step, steps,
                global_step and total_steps become whole numbers, eta becomes seconds, time stays
                text, others become numbers where they can.
totals          lines that give once what step lines then leave out
scale           factors of groups
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import Any

from . import closing_lines
from .error_patterns import CODE, LITERALS, RECORD_BYTES, any_of
from .error_scanner import ErrorScan
from .last_words import End

CHUNK = 1 << 20
# Bytes of one line that are parsed. Digest, size and line count take everything.
MAX_LINE = 8192
KEEP_SAVED = 20
LARGEST = 1e300  # the largest number in an answer of a node; a larger one counts as infinite
TAIL = 65536
CLOSING = 8192  # bytes of a log's end in which its last words are looked for
# Bytes that tail_status reads to find a step line when the last TAIL bytes have none.
TAIL_LIMIT = 1 << 20

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
# Lines of glog, and those of MindSpore's own logger that are not errors.
_GLOG = re.compile(
    r"^(?:[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ |\[(?:DEBUG|INFO|WARNING)\] [A-Z_]+\(\d+[,:])"
)
_ETA = re.compile(r"^(?:(\d+) days?, )?(\d+):(\d\d)(?::(\d\d))?$")


class TableError(ValueError):
    """The `logs` table of a suite cannot be used. The message names the entry."""


def _texts(value):
    """Return a text as a list of one, and any other value as it is."""
    if isinstance(value, str):
        return [value]
    return value


def _patterns(section, key, name):
    """Return the compiled patterns of an entry. name: of its section."""
    texts = _texts(section.get(key) or [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TableError(f"logs.{name}.{key}: not a list of texts")
    try:
        return [re.compile(text) for text in texts]
    except re.error as error:
        raise TableError(f"logs.{name}.{key}: not a regular expression: {error}") from error


class Table:
    """A suite's `logs` section, compiled. An empty table finds errors only."""

    def __init__(self, logs=None):
        step, evaluation, saved = _sections(logs or {})
        self.step = _patterns(step, "line", "step")
        self.fields = _patterns(step, "fields", "step")
        self.totals = _patterns(step, "totals", "step")
        self.evaluation = _patterns(evaluation, "lines", "evaluation")
        self.saved = _patterns(saved, "lines", "saved")
        self.scale = _scale(step)
        used = []
        if self.step or self.totals:
            used.append(step)
        if self.evaluation:
            used.append(evaluation)
        if self.saved:
            used.append(saved)
        self.gate = _gate(used)
        # The same, and the records that show an error before them to be handled.
        self.watch = re.compile(RECORD_BYTES + b"|" + self.gate.pattern.replace(b"(?m)", b""))


def _sections(logs):
    """Return [step, evaluation, saved] of a table. Raises TableError."""
    names = ("step", "evaluation", "saved")
    if not isinstance(logs, dict) or not all(isinstance(logs.get(k) or {}, dict) for k in names):
        raise TableError("logs: not a mapping of step, evaluation and saved")
    return [logs.get(name) or {} for name in names]


def _scale(step):
    """Return {group: factor}. Raises TableError."""
    scale = step.get("scale") or {}
    if isinstance(scale, dict) and all(isinstance(v, (int, float)) for v in scale.values()):
        return scale
    raise TableError("logs.step.scale: not a mapping of groups to numbers")


def _gate(sections):
    """Return the pattern of all bytes at which a line of interest may be found.

    sections: those of the table that have patterns. Raises TableError.
    """
    if not all(section.get("has") for section in sections):
        return re.compile(b"(?m)^")
    literals = []
    for section in sections:
        literals += _texts(section["has"])
    if not all(isinstance(literal, str) for literal in literals):
        raise TableError("logs: a `has` that is not a text or a list of texts")
    return re.compile(f"{any_of([*LITERALS, *literals])}|{CODE}".encode())


def _number(name, text, scale):
    """Return the value of a group: a number where it can be one, else its text.

    None stands for a number without end, and for an eta of unknown form.
    """
    if name in _TEXT:
        return text
    if name == "eta":
        return _seconds(text)
    kind = float
    if name in _WHOLE:
        kind = int
    try:
        value = kind(text)
    except ValueError:
        return text
    if name in scale:
        value = value * scale[name]
    if isinstance(value, float) and not abs(value) <= LARGEST:
        return None  # JSON has no NaN, and `nan` in the result gives the line
    return value


def _seconds(text):
    """Return the seconds of an eta: [days,] hours:minutes:seconds, or minutes:seconds."""
    match = _ETA.match(text)
    if not match:
        return None
    days, *parts = match.groups()
    seconds = 0
    for part in parts:
        if part is not None:
            seconds = seconds * 60 + int(part)
    return int(days or 0) * 86400 + seconds


def _groups(match, scale):
    return {
        name: _number(name, text, scale)
        for name, text in match.groupdict().items()
        if text is not None
    }


def _first_match(patterns, text):
    """Return the match of the first pattern that is found in a text, or None."""
    for pattern in patterns:
        match = pattern.search(text)
        if match:
            return match
    return None


class LogScan:
    """Feed bytes in any pieces with `feed`, get the findings from `finish`."""

    def __init__(self, table: Table, digest: bool = True, line_numbers: bool = True) -> None:
        self.table = table
        self.errors = ErrorScan()
        self.bytes = 0
        self.number = 0
        self.steps = 0
        self.saved_count = 0
        self.first_step = self.evaluation = self.nan = None
        self.saved = []
        self._totals = {}
        self._pattern = None  # index of the table's step pattern that this log has
        # The last step line as (number, text, match). It is read in full only on request.
        self._latest = None
        self._read = None
        self._sha = None
        if digest:
            self._sha = hashlib.sha256()
        self._numbered = line_numbers
        self._rest = b""  # the beginning of the line that the last chunk broke off
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes."""
        if not chunk:
            return
        self.bytes += len(chunk)
        self._tail = (self._tail + chunk[-CLOSING:])[-CLOSING:]
        if self._sha is not None:
            self._sha.update(chunk)
        end = chunk.rfind(b"\n")
        if end < 0:
            self._keep_rest(self._rest + chunk)
            return
        self._lines(self._rest + chunk[: end + 1])
        self._keep_rest(chunk[end + 1 :])

    def _keep_rest(self, rest):
        """Keep as much of a broken line as is needed.

        A progress bar redraws itself after each CR, so only its last drawing counts.
        """
        rest = rest.replace(b"\0", b"")
        cut = rest.rfind(b"\r", 0, len(rest) - 1)
        self._rest = rest[cut + 1 :][:MAX_LINE]

    def _lines(self, block):
        block = block.replace(b"\0", b"")  # holes of a truncated or sparse log
        position, size = 0, len(block)
        while position < size:
            start = position
            if self.errors.idle:
                gate = self.table.gate
                if self.errors.is_pending:
                    gate = self.table.watch
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
        number = self.number
        if not self._numbered:
            number = None
        if not self._match(number, text):
            self.errors.line(self.number, text)

    def _match(self, number: int, text: str) -> bool:
        """Note a line that one of the table's patterns fits and return whether one does."""
        table = self.table
        for index, pattern in enumerate(table.step):
            match = pattern.search(text)
            if match:
                # Patterns are in the order of their worth: an epoch's mean is not a step where the
                # log has steps.
                if self._pattern is None or index <= self._pattern:
                    self._pattern = index
                    self._step(number, text, match)
                return True
        match = _first_match(table.totals, text)
        if match:
            self._totals.update(_groups(match, table.scale))
            return True
        match = _first_match(table.evaluation, text)
        if match:
            self._evaluated(number, _groups(match, {}))
            return True
        match = _first_match(table.saved, text)
        if match:
            self.saved_count += 1
            self.saved.append(dict(self._position(), line=number, **_groups(match, {})))
            del self.saved[:-KEEP_SAVED]
            return True
        return False

    def _step(self, number: int, text: str, match: re.Match[str]) -> None:
        self.steps += 1
        self._latest, self._read = (number, text, match), None
        if self.first_step is None:
            self.first_step = self.last_step
        if self.nan is None and _NOT_FINITE.search(text) and self.last_step.get("loss", 0) is None:
            self.nan = dict(self._position(), line=number, loss=self._loss_text(text))
        self.errors.progress()

    def _loss_text(self, text):
        """Return the loss as a step line has it."""
        for pattern in self.table.step + self.table.fields:
            match = pattern.search(text)
            if match and match.groupdict().get("loss"):
                return match.group("loss")
        return None

    @property
    def last_step(self):
        """The last step line's record, or None."""
        if self._read is None and self._latest is not None:
            number, text, match = self._latest
            self._read = dict(self._totals, line=number, **_groups(match, self.table.scale))
            for pattern in self.table.fields:
                field = pattern.search(text)
                if field:
                    self._read.update(_groups(field, self.table.scale))
        return self._read

    def _position(self):
        """Return the epoch and step of the last step line."""
        record = self.last_step or {}
        return {key: record[key] for key in ("epoch", "step", "global_step") if key in record}

    def _evaluated(self, number: int, values: dict[str, Any]) -> None:
        current = self.evaluation
        # A value again: the next evaluation begins. Suites repeat the best one so far, at the end
        # once more.
        if current is None or any(key in current and not key.startswith("best") for key in values):
            current = self.evaluation = dict(self._position(), line=number)
        current.update(values)

    def finish(self, ended: tuple[int | None, str | None] | None = None) -> dict[str, Any]:
        """Return the findings. The last line need not have an end.

        ended: exit code and signal of the process, None where it may still run.
        """
        count = self.number
        if self._rest:
            self.number += 1
            self._line(self._rest)
        if self.bytes and not self._tail.endswith(b"\n"):
            count += 1
        digest = None
        if self._sha is not None:
            digest = self._sha.hexdigest()
        end = None
        if ended:
            end = End(*ended, lines=count)
        error = self._explain(end)
        if not self._numbered:
            count = None
            if error:
                error["line"] = None
        return {
            "bytes": self.bytes,
            "sha256": digest,
            "lines": count,
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

    def _explain(self, end):
        """Return the error that best explains the end of the process, or None."""
        error = self.errors.finish(end)
        if not end or (error and not (error["handled"] or error["survived"])):
            return error
        step = 0
        if self._latest is not None:
            step = self._latest[0] or 0
        begin = max(self.errors.last_line, step) + 1
        return closing_lines.find(self._last_lines(), end.lines, begin, end) or error

    def _last_lines(self):
        """Return the last whole lines of the log, of a progress bar its last drawing."""
        tail = self._tail.replace(b"\0", b"").decode("utf-8", "replace").split("\n")
        if not tail[-1]:
            tail.pop()
        if self.bytes > len(self._tail):
            tail = tail[1:]
        return [line.rstrip("\r").rpartition("\r")[2] for line in tail]


def scan(descriptor, table, ended=None):
    """Return the findings of an open file, read from the beginning.

    As many bytes are read as the file has at the start, so that a growing log has an end.
    ended: exit code and signal of the process that wrote it, None where it may still run.
    """
    log = LogScan(table)
    remaining = os.fstat(descriptor).st_size
    while remaining > 0:
        chunk = os.read(descriptor, min(CHUNK, remaining))
        if not chunk:
            break
        remaining -= len(chunk)
        log.feed(chunk)
    return log.finish(ended)


def last_line(descriptor):
    """Return the last meaningful line of an open log, at most 400 characters, or None.

    Lines of the runtimes' own loggers are passed by: they come after the training's last line.
    """
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, 4096, max(0, size - 4096)).decode("utf-8", "replace")
    for line in reversed(tail.replace("\r", "\n").split("\n")):
        if line.strip(" \0") and not _GLOG.match(line):
            return line.strip()[:400]
    return None


def tail_status(path, patterns, max_bytes=TAIL):
    """Return the findings of the end of a file, for the live view.

    path: of the file, or an open descriptor. It has no line numbers, digest and line count.
    patterns: a Table or a `logs` mapping. When the last `max_bytes` hold no step line, up to 1 MiB
    is read. Raises OSError where the file is not a regular one.
    """
    table = patterns
    if not isinstance(patterns, Table):
        table = Table(patterns)
    if isinstance(path, int):
        return _tail_status(path, table, max_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    try:
        return _tail_status(descriptor, table, max_bytes)
    finally:
        os.close(descriptor)


def _tail_status(descriptor, table, window):
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        raise OSError("not a regular file")
    while True:
        begin = max(0, info.st_size - window)
        os.lseek(descriptor, begin, os.SEEK_SET)
        data = os.read(descriptor, window)
        if begin > 0:
            # The first line is whole only at the beginning of the file.
            data = data[data.find(b"\n") + 1 :]
        log = LogScan(table, digest=False, line_numbers=False)
        log.feed(data)
        result = log.finish()
        if result["last_step"] or begin == 0 or window >= TAIL_LIMIT or not table.step:
            break
        window = min(window * 4, TAIL_LIMIT)
    result["bytes"], result["mtime"] = info.st_size, info.st_mtime
    result["whole"] = begin == 0
    for name in ("steps", "first_step", "saved_count"):
        result[name] = None
    return result


def fraction(step, logs, epochs=None):
    """Return how much of a training is done, 0 to 1, or None where that is unknown.

    step: a step record. logs: the suite's table (its `step.first` has the numbers of the first
    epoch and step). epochs: of the job, for lines without that number.
    """
    if not step:
        return None
    if step.get("total_steps"):
        return min(1.0, step.get("global_step", step.get("step", 0)) / step["total_steps"])
    epochs, steps = step.get("epochs") or epochs, step.get("steps")
    if not epochs or not steps:
        return None
    done = _steps_done(step, steps, logs)
    if done is None:
        return None
    return max(0.0, min(1.0, done / (epochs * steps)))


def _steps_done(step, steps, logs):
    """Return the steps since the training's beginning, or None. steps: per epoch."""
    if "epoch" not in step:
        return step.get("global_step")
    first = ((logs or {}).get("step") or {}).get("first") or {}
    earlier = (step["epoch"] - first.get("epoch", 1)) * steps
    if "global_step" in step:
        # A resumed PaddleOCR counts its steps from 0 again while its epochs go on, so only the
        # position within the epoch is taken from them.
        return earlier + (step["global_step"] - 1) % steps + 1
    return earlier + step.get("step", 0) - first.get("step", 1) + 1
