# SPDX-License-Identifier: Apache-2.0
"""Lines of the logs on the controller, ready for a terminal.

The module lists the logs, reads their last lines in bounded memory, merges them by the times in
them, and makes them safe to show.
"""

from __future__ import annotations

import heapq
import os
import re
import time

from ansible_collections.trainyard.cluster.plugins.module_utils.base.safe_open import (
    open_file,
    open_regular,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import MASK, printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_ranges
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.timestamps import Clock

WIDTH = 500  # characters of a line that are shown; the file has all of them
LINE = 64 << 10  # bytes of a line that are looked at
BACK = 64 << 20  # bytes at a log's end in which its last lines are looked for
BLOCK = 1 << 20
BEFORE = 200  # lines before those that are shown, in which the first one's date is looked for
MOST = 1000  # lines of one log that are shown at a time
HOLE = b"\0"  # fills a truncated log up to the old position at which its writer goes on
_SAME_BYTES = 4096  # bytes that a new file must share with the old one to count as its successor
_RANK = re.compile(r"^rank-(\d{1,9})$")
_KEY_BEGINS = re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_KEY_ENDS = re.compile(rb"-----END [A-Z ]{0,40}PRIVATE KEY-----")


class Log:
    """One log on the controller.

    `rank` is its global rank, or None where `name` (launcher, scheduler, stray-...) is all it has.
    """

    def __init__(self, home, name, node, path, size):
        self.home, self.name, self.node = home, name, node
        self.path, self.bytes = path, size
        self.rank = None
        match = _RANK.match(name)
        if match:
            self.rank = int(match.group(1))

    @property
    def rank_or_name(self):
        """Return the global rank, or the name of a log without one."""
        if self.rank is None:
            return self.name
        return self.rank

    @property
    def label(self):
        """Return the label before the log's lines."""
        return label(self.rank_or_name, self.node)


def label(rank, node):
    """Return the label before a line: rank (or a log's name) and node."""
    return f"[{rank} {node}]"


def logs_in(attempt_dir, nodes):
    """Return the Logs of these nodes in an attempt's directory, ranks first.

    A file that is not regular is passed over. So is a file that belongs to none of the nodes.
    """
    if not os.path.isdir(attempt_dir):
        return []
    logs = []
    for entry in os.scandir(attempt_dir):
        # Names of nodes may hold dots, and one may end as another.
        owners = (node for node in nodes if entry.name.endswith(f".{node}.log"))
        node = max(owners, key=len, default=None)
        if node and entry.is_file(follow_symlinks=False):
            name = entry.name[: -len(node) - 5]
            size = entry.stat(follow_symlinks=False).st_size
            logs.append(Log(entry.name, name, node, entry.path, size))
    return sorted(logs, key=lambda log: (log.rank is None, log.rank or 0, log.name, log.node))


def chosen(logs, ranks, node):
    """Return (logs that the question selects, problem).

    ranks: as logs_options.parse_options returns them. node: None for every node.
    """
    logs_on_node = [log for log in logs if node is None or log.node == node]
    if ranks is None:
        return [log for log in logs_on_node if log.rank is not None], None
    unknown = _unknown_logs(logs, ranks)
    if unknown:
        return [], unknown
    selected = [log for log in logs_on_node if _is_selected(log, ranks)]
    if selected:
        return selected, None
    places = ", ".join(sorted({f"{log.rank} on {log.node}" for log in logs if log.rank in ranks}))
    names = ", ".join(map(str, ranks))
    return [], f"rank {names} has no log on {node}; there is {places or 'none'}"


def _unknown_logs(logs, ranks):
    """Return the problem with ranks (or names) that no log has, or None."""
    known = sorted({log.rank for log in logs if log.rank is not None})
    names = sorted({log.name for log in logs if log.rank is None})
    missing = [rank for rank in ranks if rank not in known and rank not in names]
    if not missing:
        return None
    others = ""
    if names:
        others = "; others: " + ", ".join(names)
    missing_names = ", ".join(map(str, missing))
    ranges = format_ranges(known, ", ") or "none"
    return f"rank {missing_names}: there is no such log; ranks: {ranges}{others}"


def _is_selected(log, ranks):
    return log.rank in ranks or (log.rank is None and log.name in ranks)


def tail(path, count, end=None):
    """Return (lines, end): the last `count` lines of a file, and their end.

    The lines are bytes without their ends. Only the first `end` bytes of the file are read (None:
    all of them). The returned end is that of the last whole line: what follows it is not complete
    yet. At most LINE bytes of a line are returned. Lines are looked for in the last BACK bytes, so
    that memory is bounded whatever the file holds.
    """
    with open_file(path) as handle:
        size = end
        if size is None:
            size = handle.seek(0, os.SEEK_END)
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
    """Return [the bytes after a file's last line end], or [] for none."""
    with open_file(path) as handle:
        handle.seek(end)
        rest = handle.read(LINE).replace(HOLE, b"")
    return [rest] if rest else []


def _begin(handle, size, count):
    """Return (begin of the last `count` whole lines, end of the last of them).

    Line ends are looked for backwards from the end of the file.
    """
    offset, ends = size, []  # ends: offsets after a line end, the last one first
    while offset > max(0, size - BACK) and len(ends) <= count:
        step = min(BLOCK, offset)
        offset -= step
        handle.seek(offset)
        block = handle.read(step)
        position = block.rfind(b"\n")
        while position >= 0 and len(ends) <= count:
            ends.append(offset + position + 1)
            position = block.rfind(b"\n", 0, position)
    if not ends:
        # One line, and no end of it within reach.
        if offset:
            return size, size
        return size, 0
    if len(ends) > count:
        return ends[count], ends[0]
    return offset, ends[0]


def timed(lines, clock, written):
    """Return [(time, line)].

    A line without a date has that of the line before it. Lines before the first date have that
    date. written: unix time of the last write to the log, which goes for a log without dates.
    """
    times = [clock.read(line[:200].decode("utf-8", "replace")) for line in lines]
    last = next((moment for moment in times if moment is not None), written)
    pairs = []
    for moment, line in zip(times, lines):
        if moment is not None:
            last = max(last, moment)  # a log's own order stays
        pairs.append((last, line))
    return pairs


def merged(logs, count, zones=None, over=False):
    """Return ([(log, line)], {home: end}) of the last `count` lines of each log.

    The lines are in the order of the times in them. `end` is the offset at which each log ends.
    zones: {node: seconds its zone is east of UTC}. No log of the other nodes says which zone its
    dates mean. over: no process writes any more. Then the bytes after the last line end (of a
    process that was killed, say) count as a line.
    """
    lists, ends = [], {}
    for log in logs:
        written = os.stat(log.path).st_mtime
        lines, ends[log.home] = tail(log.path, count + BEFORE)
        if over:
            lines += _unended(log.path, ends[log.home])
        lines = Keys().without(lines)
        clock = Clock((zones or {}).get(log.node, 0), written)
        last_lines = timed(lines, clock, written)[-count:]
        lists.append([(moment, log, line) for moment, line in last_lines])
    ordered = heapq.merge(*lists, key=lambda item: item[0])
    return [(log, line) for _moment, log, line in ordered], ends


def text(line, secrets=((), ()), width=WIDTH):
    """Return a line as text that a terminal can show.

    Secrets are masked. Control bytes and bytes that are not UTF-8 are escaped. A long line is cut
    with a mark. secrets: names and values, as sanitize.secrets_of returns them. A progress bar
    returns to the begin of its line again and again: only its last state is shown.
    """
    line = line.rstrip(b"\r")
    begin = line.rfind(b"\r") + 1
    shown = printable(line[begin:].decode("utf-8", "backslashreplace"), *secrets, limit=LINE * 4)
    excess = len(shown) - width
    if excess > 0:
        shown = f"{shown[:width]}... [+{excess} characters]"
    if begin:
        return "..." + shown
    return shown


class Keys:
    """Filter that leaves the lines of a private key out of one log's lines.

    Masking line by line would show all but the first line of a key.
    """

    def __init__(self):
        self._inside = False

    def without(self, raws):
        """Return the lines with MASK for each that belongs to a key."""
        shown = []
        for raw in raws:
            begins = _KEY_BEGINS.search(raw)
            inside = self._inside or bool(begins)
            key_start = 0
            if begins:
                key_start = begins.end()
            self._inside = inside and not _KEY_ENDS.search(raw, key_start)
            if inside:
                shown.append(MASK.encode())
            else:
                shown.append(raw)
        return shown


class View:
    """Lines of several logs as the terminal shows them.

    Rank and node stand before each line, in one width. logs: those that may come. secrets: as
    `text` takes them. paint: called with (words, number of the log). It may colour them.
    """

    def __init__(self, logs, secrets, paint=lambda words, _number: words):
        labels = list(dict.fromkeys(log.label for log in logs))
        width = max(map(len, labels), default=0)
        self._secrets, self._keys = secrets, {}
        self._prefixes = {
            label: paint(label.ljust(width), number) for number, label in enumerate(labels)
        }

    def lines(self, label, raws):
        """Return lines of one log as text.

        Of very many lines at once, only the last ones and the number of the others.
        """
        prefix = self._prefixes[label]
        raws = self._keys.setdefault(label, Keys()).without(raws)
        lines = []
        if len(raws) > MOST:
            hidden = len(raws) - MOST
            lines.append(f"{prefix} ... {hidden} lines are not shown; the file has them")
        lines += [f"{prefix} {text(raw, self._secrets)}".rstrip() for raw in raws[-MOST:]]
        return lines


class Growing:
    """One log on the controller that grows.

    `more` returns the whole lines that came since. Of a file that was replaced, the old one's rest
    comes first.
    """

    def __init__(self, path, offset=0):
        self.path, self.offset = path, offset
        self.rest, self.descriptor = b"", None

    def more(self):
        """Return the new lines as bytes, [] for none, at most what BLOCK bytes hold."""
        if self.descriptor is None:
            try:
                self.descriptor = open_regular(self.path)
            except OSError:
                return []
        while True:
            data = os.pread(self.descriptor, BLOCK, self.offset)
            if not data:
                return self._switch_file()
            self.offset += len(data)
            lines = data.replace(HOLE, b"").split(b"\n")
            if len(self.rest) < LINE:
                lines[0] = self.rest + lines[0]
            else:
                lines[0] = self.rest
            self.rest = lines.pop()[:LINE]
            if lines:  # a progress bar can go on for many blocks without a line's end
                return [line[:LINE] for line in lines]

    def _switch_file(self):
        """Go over to the file that has the path now, if it is another one or was cut."""
        try:
            now = os.stat(self.path, follow_symlinks=False)
            old = os.fstat(self.descriptor)
            same_file = (now.st_dev, now.st_ino) == (old.st_dev, old.st_ino)
            if same_file and now.st_size >= self.offset:
                return []
            successor = open_regular(self.path)
        except OSError:
            return []
        # What collect brings in one piece replaces what the stream has brought: another file with
        # the same beginning.
        continues = self._continues(successor, min(old.st_size, os.fstat(successor).st_size))
        os.close(self.descriptor)
        self.descriptor = successor
        if continues:
            if os.fstat(successor).st_size > self.offset:
                return self.more()
            return []
        rest, self.rest, self.offset = self.rest, b"", 0
        return [rest] if rest else []

    def _continues(self, successor, size):
        """Compare the last bytes that were read with those of another file."""
        count = min(self.offset, _SAME_BYTES)
        start = self.offset - count
        return size >= self.offset and (
            os.pread(successor, count, start) == os.pread(self.descriptor, count, start)
        )


def table(index, logs, shown_dir):
    """Return the table of logs as lines: state, length and path of each."""
    rows = [("rank", "node", "state", "lines", "bytes", "last line", "log")]
    by_rank = {(rank["rank"], rank["node"]): rank for rank in index["ranks"]}
    for log in logs:
        rows.append(_row(log, by_rank.get((log.rank, log.node), {}), shown_dir))
    failed = [
        rank for rank in index["ranks"] if rank["error"] and rank["state"] in ("failed", "killed")
    ]
    return _aligned(rows) + [_error_line(rank, shown_dir) for rank in failed[:20]]


def _row(log, rank, shown_dir):
    """Return one log's cells.

    rank: its entry of the index, {} for none.
    """
    lines = ""
    if rank.get("bytes") == log.bytes and rank.get("lines") is not None:
        lines = str(rank["lines"])
    return (
        str(log.rank_or_name),
        log.node,
        _state(log, rank),
        lines,
        str(log.bytes),
        when(rank.get("last_time")),
        f"{shown_dir}/{log.home}",
    )


def _state(log, rank):
    """Return a rank's state with its signal or exit code.

    '' for a log that has no rank.
    """
    end = rank.get("signal")
    if not end and rank.get("exit_code"):
        end = f"exit code {int(rank['exit_code'])}"
    if end:
        return f"{rank.get('state')} ({end})"
    if rank.get("state") or log.rank is None:
        return rank.get("state") or ""
    return "unknown"


def _aligned(rows):
    """Return rows as lines.

    Numbers (lines, bytes) are aligned at the right.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        for column in (3, 4):
            cells[column] = row[column].rjust(widths[column])
        lines.append(printable("  ".join([*cells, row[6]])).rstrip())
    return lines


def _error_line(rank, shown_dir):
    error = rank["error"]
    place = f"{shown_dir}/{rank['home']}:{error['line']}"
    return printable(
        f"rank {rank['rank']} on {rank['node']}: {error['kind']}: {error['text']} ({place})"
    )


def when(seconds):
    """Return a unix time in the controller's own zone, or ''."""
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
