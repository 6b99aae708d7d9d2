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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from ansible_collections.trainyard.cluster.plugins.module_utils.base.safe_open import (
    open_file,
    open_regular,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    MASK,
    Secrets,
    printable,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_ranges
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.timestamps import Clock

from .rank_index import Json

NO_SECRETS = Secrets((), ())
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


@dataclass(eq=False)
class Log:
    """One log on the controller.

    `rank` is its global rank, or None where `name` (launcher, scheduler, stray-...) is all it has.
    """

    home: str  # the file's name
    name: str
    node: str
    path: str
    bytes: int
    rank: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        match = _RANK.match(self.name)
        if match:
            self.rank = int(match.group(1))

    @property
    def rank_or_name(self) -> int | str:
        """Return the global rank, or the name of a log without one."""
        if self.rank is None:
            return self.name
        return self.rank

    @property
    def label(self) -> str:
        """Return the label before the log's lines."""
        return label(self.rank_or_name, self.node)


def label(rank: int | str, node: str) -> str:
    """Return the label before a line: rank (or a log's name) and node."""
    return f"[{rank} {node}]"


def logs_in(attempt_dir: str, nodes: Collection[str]) -> list[Log]:
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


def select_logs(
    logs: Sequence[Log], ranks: Collection[int | str] | None, node: str | None
) -> tuple[list[Log], str | None]:
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


def _unknown_logs(logs: Sequence[Log], ranks: Collection[int | str]) -> str | None:
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


def _is_selected(log: Log, ranks: Collection[int | str]) -> bool:
    return log.rank in ranks or (log.rank is None and log.name in ranks)


def read_tail(path: str, count: int, end: int | None = None) -> tuple[list[bytes], int]:
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


def _unended(path: str, end: int) -> list[bytes]:
    """Return [the bytes after a file's last line end], or [] for none."""
    with open_file(path) as handle:
        handle.seek(end)
        rest = handle.read(LINE).replace(HOLE, b"")
    if rest:
        return [rest]
    return []


def _begin(handle: BinaryIO, size: int, count: int) -> tuple[int, int]:
    """Return (begin of the last `count` whole lines, end of the last of them).

    Line ends are looked for backwards from the end of the file.
    """
    offset = size
    ends: list[int] = []  # offsets after a line end, the last one first
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


def date_lines(lines: Sequence[bytes], clock: Clock, written: float) -> list[tuple[float, bytes]]:
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


def merge_lines(
    logs: Sequence[Log], count: int, zones: Mapping[str, float] | None = None, over: bool = False
) -> tuple[list[tuple[Log, bytes]], dict[str, int]]:
    """Return ([(log, line)], {home: end}) of the last `count` lines of each log.

    The lines are in the order of the times in them. `end` is the offset at which each log ends.
    zones: {node: seconds its zone is east of UTC}. No log of the other nodes says which zone its
    dates mean. over: no process writes any more. Then the bytes after the last line end (of a
    process that was killed, say) count as a line.
    """
    lists: list[list[tuple[float, Log, bytes]]] = []
    ends: dict[str, int] = {}
    for log in logs:
        written = os.stat(log.path).st_mtime
        lines, ends[log.home] = read_tail(log.path, count + BEFORE)
        if over:
            lines += _unended(log.path, ends[log.home])
        lines = Keys().without(lines)
        clock = Clock((zones or {}).get(log.node, 0), written)
        last_lines = date_lines(lines, clock, written)[-count:]
        lists.append([(moment, log, line) for moment, line in last_lines])
    ordered = heapq.merge(*lists, key=lambda item: item[0])
    return [(log, line) for _moment, log, line in ordered], ends


def format_line(line: bytes, secrets: Secrets = NO_SECRETS, width: int = WIDTH) -> str:
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

    def __init__(self) -> None:
        self._inside = False

    def without(self, raws: Sequence[bytes]) -> list[bytes]:
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

    def __init__(
        self,
        logs: Sequence[Log],
        secrets: Secrets,
        paint: Callable[[str, int], str] = lambda words, _number: words,
    ) -> None:
        labels = list(dict.fromkeys(log.label for log in logs))
        width = max(map(len, labels), default=0)
        self._secrets = secrets
        self._keys: dict[str, Keys] = {}
        self._prefixes = {
            label: paint(label.ljust(width), number) for number, label in enumerate(labels)
        }

    def lines(self, label: str, raws: Sequence[bytes]) -> list[str]:
        """Return lines of one log as text.

        Of very many lines at once, only the last ones and the number of the others.
        """
        prefix = self._prefixes[label]
        raws = self._keys.setdefault(label, Keys()).without(raws)
        lines = []
        if len(raws) > MOST:
            hidden = len(raws) - MOST
            lines.append(f"{prefix} ... {hidden} lines are not shown; the file has them")
        lines += [f"{prefix} {format_line(raw, self._secrets)}".rstrip() for raw in raws[-MOST:]]
        return lines


class GrowingLog:
    """One log on the controller that grows.

    `more` returns the whole lines that came since. Of a file that was replaced, the old one's rest
    comes first.
    """

    def __init__(self, path: str, offset: int = 0) -> None:
        self.path, self.offset = path, offset
        self.rest = b""
        self.descriptor: int | None = None

    def read_lines(self) -> list[bytes]:
        """Return the new lines as bytes, [] for none, at most what BLOCK bytes hold."""
        if self.descriptor is None:
            try:
                self.descriptor = open_regular(self.path)
            except OSError:
                return []
        while True:
            data = os.pread(self.descriptor, BLOCK, self.offset)
            if not data:
                return self._switch_file(self.descriptor)
            self.offset += len(data)
            lines = data.replace(HOLE, b"").split(b"\n")
            if len(self.rest) < LINE:
                lines[0] = self.rest + lines[0]
            else:
                lines[0] = self.rest
            self.rest = lines.pop()[:LINE]
            if lines:  # a progress bar can go on for many blocks without a line's end
                return [line[:LINE] for line in lines]

    def _switch_file(self, current: int) -> list[bytes]:
        """Go over to the file that has the path now, if it is another one or was cut."""
        try:
            now = os.stat(self.path, follow_symlinks=False)
            old = os.fstat(current)
            same_file = (now.st_dev, now.st_ino) == (old.st_dev, old.st_ino)
            if same_file and now.st_size >= self.offset:
                return []
            successor = open_regular(self.path)
        except OSError:
            return []
        # What collect brings in one piece replaces what the stream has brought: another file with
        # the same beginning.
        size = min(old.st_size, os.fstat(successor).st_size)
        continues = size >= self.offset and self._has_same_end(current, successor)
        os.close(current)
        self.descriptor = successor
        if continues:
            if os.fstat(successor).st_size > self.offset:
                return self.read_lines()
            return []
        rest, self.rest, self.offset = self.rest, b"", 0
        if rest:
            return [rest]
        return []

    def _has_same_end(self, current: int, successor: int) -> bool:
        """Compare the last bytes that were read with those of another file."""
        count = min(self.offset, _SAME_BYTES)
        start = self.offset - count
        return os.pread(successor, count, start) == os.pread(current, count, start)


def describe_logs(index: Json, logs: Sequence[Log], shown_dir: str) -> list[str]:
    """Return the table of logs as lines: state, length and path of each."""
    rows: list[tuple[str, ...]] = [("rank", "node", "state", "lines", "bytes", "last line", "log")]
    by_rank = {(rank["rank"], rank["node"]): rank for rank in index["ranks"]}
    for log in logs:
        rows.append(_row(log, by_rank.get((log.rank, log.node), {}), shown_dir))
    failed = [
        rank for rank in index["ranks"] if rank["error"] and rank["state"] in ("failed", "killed")
    ]
    return _aligned(rows) + [_error_line(rank, shown_dir) for rank in failed[:20]]


def _row(log: Log, rank: Json, shown_dir: str) -> tuple[str, ...]:
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
        local_time(rank.get("last_time")),
        f"{shown_dir}/{log.home}",
    )


def _state(log: Log, rank: Json) -> str:
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


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
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


def _error_line(rank: Json, shown_dir: str) -> str:
    error = rank["error"]
    place = f"{shown_dir}/{rank['home']}:{error['line']}"
    return printable(
        f"rank {rank['rank']} on {rank['node']}: {error['kind']}: {error['text']} ({place})"
    )


def local_time(seconds: float | None) -> str:
    """Return a unix time in the controller's own zone, or ''."""
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
