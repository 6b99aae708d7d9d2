# SPDX-License-Identifier: Apache-2.0
"""Logs at home as lines to show: which there are, their ends in bounded memory, merged by the times
in them, safe for a terminal. Controller only.
"""

from __future__ import annotations

import heapq
import os
import re
import time

from ..base.safe_open import open_file, open_regular
from ..base.sanitize import MASK, printable
from ..logs.timestamps import Clock

WIDTH = 500  # characters of a line that are shown; the file has all of them
LINE = 64 << 10  # bytes of a line that are looked at
BACK = 64 << 20  # bytes at a log's end in which its last lines are looked for
BLOCK = 1 << 20
BEFORE = 200  # lines before those that are shown, in which the first one's date is looked for
MOST = 1000  # lines of one log that are shown at a time
HOLE = b"\0"  # what stands where a log was truncated while its writer went on at his old place
_RANK = re.compile(r"^rank-(\d{1,9})$")
_KEY_BEGINS = re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_KEY_ENDS = re.compile(rb"-----END [A-Z ]{0,40}PRIVATE KEY-----")


class Log:
    """One log at home: `rank` is its global rank, or None where `name` (launcher, scheduler,
    stray-...) is all it has.
    """

    def __init__(self, home, name, node, path, size):
        rank = _RANK.match(name)
        self.home, self.name, self.node, self.path, self.bytes = home, name, node, path, size
        self.rank = int(rank.group(1)) if rank else None

    @property
    def label(self):
        """What stands before its lines."""
        return label(self.name if self.rank is None else self.rank, self.node)


def label(rank, node):
    """Return the words before a line: rank (or a log's name) and node."""
    return f"[{rank} {node}]"


def logs_in(attempt_dir, nodes):
    """Return the Logs of these nodes in an attempt's directory, ranks first. What is no regular
    file, or nobody's, is passed over.
    """
    found = []
    for entry in os.scandir(attempt_dir) if os.path.isdir(attempt_dir) else ():
        # Names of nodes may hold dots, and one may end as another.
        node = max(
            (node for node in nodes if entry.name.endswith(f".{node}.log")), key=len, default=None
        )
        if node and entry.is_file(follow_symlinks=False):
            name = entry.name[: -len(node) - 5]
            found.append(
                Log(entry.name, name, node, entry.path, entry.stat(follow_symlinks=False).st_size)
            )
    return sorted(found, key=lambda log: (log.rank is None, log.rank or 0, log.name, log.node))


def chosen(logs, ranks, node):
    """Return (those of the logs that are asked for, problem). `ranks`: as log_questions.question
    has them.
    """
    here = [log for log in logs if node is None or log.node == node]
    known = sorted({log.rank for log in logs if log.rank is not None})
    names = sorted({log.name for log in logs if log.rank is None})
    if ranks is None:
        return [log for log in here if log.rank is not None], None
    missing = [rank for rank in ranks if rank not in known and rank not in names]
    if missing:
        text = "rank %s: there is no such log; ranks: %s%s"
        return [], text % (
            ", ".join(map(str, missing)),
            spans(known) or "none",
            "; others: " + ", ".join(names) if names else "",
        )
    wanted = [log for log in here if log.rank in ranks or (log.rank is None and log.name in ranks)]
    lies = ", ".join(
        sorted(
            {
                f"{log.rank if log.rank is not None else log.name} on {log.node}"
                for log in logs
                if log.rank in ranks
            }
        )
    )
    return wanted, (
        None
        if wanted
        else "rank {} has no log on {}; there is {}".format(
            ", ".join(map(str, ranks)),
            node,
            lies or "none",
        )
    )


def spans(numbers):
    """Return whole numbers in words: 0-3, 6."""
    parts = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join("%d-%d" % (a, b) if a != b else str(a) for a, b in parts)


def tail(path, count, end=None):
    """Return (lines, end): the last `count` lines of a file's first `end` bytes (all that is there)
    as bytes without their ends.

    `end` is where the last whole line ends: what follows it is not written to its end yet. Of a
    line at most LINE bytes are returned, and lines are looked for in the last BACK bytes, so that
    memory is bounded whatever the file holds.
    """
    with open_file(path) as handle:
        size = handle.seek(0, os.SEEK_END) if end is None else end
        begin, whole = _begin(handle, size, count)
        lines = []
        handle.seek(begin)
        while handle.tell() < whole:
            line = handle.readline(LINE)
            lines.append(line.replace(HOLE, b"").rstrip(b"\n"))
            while not line.endswith(b"\n") and handle.tell() < whole:
                line = handle.readline(BLOCK)
                lines[-1] = (lines[-1] + line.replace(HOLE, b"").rstrip(b"\n"))[:LINE]
    return lines[-count:], whole


def _unended(path, end):
    """[what a file has after its last line end], [] for nothing."""
    with open_file(path) as handle:
        handle.seek(end)
        rest = handle.read(LINE).replace(HOLE, b"")
    return [rest] if rest else []


def _begin(handle, size, count):
    """(where the last `count` whole lines begin, where the last of them ends), by line ends from
    the back.
    """
    place, ends, whole = size, [], None
    while place > max(0, size - BACK) and len(ends) <= count:
        step = min(BLOCK, place)
        place -= step
        handle.seek(place)
        block = handle.read(step)
        at = len(block)
        while len(ends) <= count and (at := block.rfind(b"\n", 0, at)) >= 0:
            whole = whole if whole is not None else place + at + 1
            ends.append(place + at + 1)
    if whole is None:
        return size, size if place else 0  # one line, and no end of it in reach
    return ends[count] if len(ends) > count else place, whole


def timed(lines, clock, written):
    """Return [(time, line)]: a line without a date has that of the one before it, and those before
    the first date have the first one's.

    written: when the log was last written to; that goes for a log without dates.
    """
    times = [clock.read(line[:200].decode("utf-8", "replace")) for line in lines]
    last = next((when for when in times if when is not None), written)
    result = []
    for when, line in zip(times, lines):
        last = max(last, when) if when is not None else last  # a log's own order stays
        result.append((last, line))
    return result


def merged(logs, count, zones=None, over=False):
    """Return ([(log, line)], {home: end}): the last `count` lines of each log, in the order of the
    times in them, and where each of them ends.

    zones: {node: seconds its zone is east of UTC}; of the others no log says which zone its dates
    mean. over: nobody writes any more, so that what stands after the last line end (of a process
    that was killed, say) is a line, too.
    """
    lists, ends = [], {}
    for log in logs:
        written = os.stat(log.path).st_mtime
        lines, ends[log.home] = tail(log.path, count + BEFORE)
        lines += _unended(log.path, ends[log.home]) if over else []
        lines = Keys().without(lines)
        clock = Clock((zones or {}).get(log.node, 0), written)
        lists.append([(when, log, line) for when, line in timed(lines, clock, written)[-count:]])
    return [(log, line) for _when, log, line in heapq.merge(*lists, key=lambda item: item[0])], ends


def text(line, secrets=((), ()), width=WIDTH):
    """Return a line as text that a terminal can show: secrets masked, control bytes and what is not
    UTF-8 escaped, cut with a mark.

    secrets: names and values, as display.secrets_of has them. Of a progress bar, which returns to
    the line's begin again and again, what would stand there at the end is shown.
    """
    line = line.rstrip(b"\r")
    begin = line.rfind(b"\r") + 1
    shown = printable(line[begin:].decode("utf-8", "backslashreplace"), *secrets, limit=LINE * 4)
    more = len(shown) - width
    shown = shown if more <= 0 else "%s... [+%d characters]" % (shown[:width], more)
    return "..." + shown if begin else shown


class Keys:
    """Leaves the lines of a private key out of one log's lines; what is masked a line at a time
    would show all but the first.
    """

    def __init__(self):
        self._inside = False

    def without(self, raws):
        """Return the lines with MASK for each that belongs to a key."""
        shown = []
        for raw in raws:
            begins = _KEY_BEGINS.search(raw)
            inside = self._inside or bool(begins)
            self._inside = inside and not _KEY_ENDS.search(raw, begins.end() if begins else 0)
            shown.append(MASK.encode() if inside else raw)
        return shown


class View:
    """Lines of several logs as they stand on the terminal: each with rank and node before it, of
    one width.

    logs: those that may come. secrets: as `text` has them. paint: called with (words, number of the
    log); it may colour them.
    """

    def __init__(self, logs, secrets, paint=lambda words, _number: words):
        labels = list(dict.fromkeys(log.label for log in logs))
        width = max(map(len, labels), default=0)
        self._secrets, self._keys = secrets, {}
        self._before = {
            label: paint(label.ljust(width), number) for number, label in enumerate(labels)
        }

    def lines(self, label, raws):
        """Return lines of one log; of very many at once the last, and how many were left out."""
        before, raws = self._before[label], self._keys.setdefault(label, Keys()).without(raws)
        left = (
            ["%s ... %d lines are not shown; the file has them" % (before, len(raws) - MOST)]
            if len(raws) > MOST
            else []
        )
        return left + [(f"{before} {text(raw, self._secrets)}").rstrip() for raw in raws[-MOST:]]


class Growing:
    """One log at home that grows: `more` returns the whole lines that came since; of a file that
    was replaced, the old one's rest comes first.
    """

    def __init__(self, path, offset=0):
        self.path, self.offset, self.rest, self.descriptor = path, offset, b"", None

    def more(self):
        """Return [line as bytes], at most what BLOCK bytes hold; an empty list where there is
        nothing new.
        """
        if self.descriptor is None:
            try:
                self.descriptor = open_regular(self.path)
            except OSError:
                return []
        while True:
            data = os.pread(self.descriptor, BLOCK, self.offset)
            if not data:
                return self._next()
            self.offset += len(data)
            lines = data.replace(HOLE, b"").split(b"\n")
            lines[0] = self.rest + lines[0] if len(self.rest) < LINE else self.rest
            self.rest = lines.pop()[:LINE]
            if lines:  # a progress bar can go on for many blocks without a line's end
                return [line[:LINE] for line in lines]

    def _next(self):
        """Go over to the file that has this name now, where it is another one or was cut."""
        try:
            now, mine = os.stat(self.path, follow_symlinks=False), os.fstat(self.descriptor)
            if (now.st_dev, now.st_ino) == (
                mine.st_dev,
                mine.st_ino,
            ) and now.st_size >= self.offset:
                return []
            other = open_regular(self.path)
        except OSError:
            return []
        near, size = min(self.offset, 4096), min(mine.st_size, os.fstat(other).st_size)
        place = self.offset - near
        # What collect brings in one piece is put in the place of what the stream has brought:
        # another file with the same beginning.
        same = size >= self.offset and os.pread(other, near, place) == os.pread(
            self.descriptor, near, place
        )
        os.close(self.descriptor)
        self.descriptor = other
        if same:
            return self.more() if os.fstat(other).st_size > self.offset else []
        rest, self.rest, self.offset = self.rest, b"", 0
        return [rest] if rest else []


def table(index, logs, shown_dir):
    """Return the lines that say how every rank is, how long its log is, and where it lies."""
    rows = [("rank", "node", "state", "lines", "bytes", "last line", "log")]
    by_rank = {(rank["rank"], rank["node"]): rank for rank in index["ranks"]}
    for log in logs:
        rank = by_rank.get((log.rank, log.node), {})
        end = rank.get("signal") or (
            "exit code %d" % rank["exit_code"] if rank.get("exit_code") else ""
        )
        state = (
            "{} ({})".format(rank.get("state"), end)
            if end
            else rank.get("state") or ("" if log.rank is None else "unknown")
        )
        lines = rank.get("lines") if rank.get("bytes") == log.bytes else None
        rows.append(
            (log.name if log.rank is None else str(log.rank), log.node, state, "" if lines is None else str(lines), str(log.bytes),
             when(rank.get("last_time")), f"{shown_dir}/{log.home}")
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    form = "%%-%ds  %%-%ds  %%-%ds  %%%ds  %%%ds  %%-%ds  %%s" % tuple(widths)
    lines = [printable(form % row).rstrip() for row in rows]
    failed = [
        rank for rank in index["ranks"] if rank["error"] and rank["state"] in ("failed", "killed")
    ]
    for rank in failed[:20]:
        error, place = rank["error"], "{}/{}".format(shown_dir, rank["home"])
        lines.append(
            printable(
                "rank {} on {}: {}: {} ({}:{})".format(
                    rank["rank"], rank["node"], error["kind"], error["text"], place, error["line"]
                )
            )
        )
    return lines


def when(seconds):
    """Return a unix time in the controller's own zone, or ''."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
