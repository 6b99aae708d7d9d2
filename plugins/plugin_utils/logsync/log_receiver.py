# SPDX-License-Identifier: Apache-2.0
"""Receiver of the logs that log_sender.py sends from a node.

Each byte is written once into the attempt's directory on the controller. A new stream goes on after
the bytes that are there already. A file that was truncated or replaced on its node is kept as
<home>.1, .2, ... before the new one begins. The node is not trusted: it can write the logs that
bear its own name and nothing else, and never over bytes that were received.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import stat
import subprocess
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeGuard

from ansible_collections.trainyard.cluster.plugins.module_utils.agent import (
    log_sender,
    priority,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.base.safe_open import open_root
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable

from ..agent import zipapp
from ..config import quota as quotas
from .collector import free_name, make_private
from .rank_index import Json
from .stream_lock import Busy, Lock

__all__ = [
    "Busy",
    "Receiver",
    "StreamError",
    "is_connected",
    "ssh_argv",
    "ssh_command",
    "start_sender",
]

MOST = 1 << 20  # bytes of one frame
BLOCK = 1 << 18  # bytes that are taken from a pipe at once
# Bytes in a row without a new one of a log. A sender's beats alone would take a month for it.
MOST_IDLE = 64 << 20
LINE = 64 << 10  # bytes of a line that are passed on; the file gets all
VERB = "send-logs"  # of agent.pyz
STALL_SECONDS = 30.0  # the sender is never silent for so long
# ssh's own signs in it (%h) are not read.
_CONTROL_PATH = re.compile(r'ControlPath="?([^"%]+)"?\Z')
_RANK = re.compile(r"^rank-(\d{1,9})\.")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class StreamError(Exception):
    """The stream broke off, or sent what it must not send.

    What was received before is right. The message is safe to show.
    """


# Called with the log's name, its rank or None, its node, the time, and whole lines without ends.
OnLines = Callable[[str, int | None, str, Any, list[bytes]], object]


@dataclass
class OpenLog:
    """A log here that is open for writing."""

    descriptor: int
    size: int


class Receiver:
    """Writer of a stream's frames into the files of `directory`.

    directory: the attempt's directory on the controller. It is made with mode 0700 where it is
    missing. None: no file is written, lines are passed on only. on_lines: called as on_lines(home,
    rank or None, node, time, [bytes]) for whole lines without their ends, in the order of each
    file. node: the node whose files these are. With a directory it is needed. quota: the site's
    bounds (quota.Quota). Raises Busy, OSError.
    """

    def __init__(
        self,
        directory: str | None,
        on_lines: OnLines | None = None,
        node: str | None = None,
        quota: quotas.Quota | None = None,
    ) -> None:
        self.directory, self.on_lines, self.node = directory, on_lines, node
        self.bytes = self.frames = 0  # log bytes, unpacked, and frames that came over the wire
        self._news = 0  # log bytes that were not here before
        self.events: list[Json] = []  # the last of {"event", "file", "home", "kept"}
        self.problems: list[str] = []  # problems in the sender's last event
        self._open: dict[str, OpenLog] = {}
        # The beginning of each log's last line. None: passed over up to the first line end.
        self._rest: dict[str, bytes | None] = {}
        self._lock: Lock | None = None
        self._home: re.Pattern[str] = safe_names.at_home(node)
        self._root: int | None = None
        self.quota, self._used, self._count = quota or quotas.Quota(), 0, 0
        if directory is not None and node is not None:
            make_private(directory)
            self._lock = Lock(directory, node)
            self._root = open_root(directory)
            self._used, self._count = quotas.measure_usage(
                os.path.dirname(os.path.abspath(directory)), node
            )

    def close(self) -> None:
        """Close every file and let others in."""
        for log in self._open.values():
            os.close(log.descriptor)
        self._open = {}
        if self._root is not None:
            os.close(self._root)
            self._root = None
        if self._lock is not None:
            self._lock.close()

    def describe_logs(self) -> dict[str, Json]:
        """Return {home: {"bytes", "head", "tail"}} of the node's logs that are here.

        The spec's `have` takes it.
        """
        logs: dict[str, Json] = {}
        if self._root is None:
            return logs
        for name in sorted(os.listdir(self._root)):
            if self._home.fullmatch(name):
                try:
                    log = self._file(name)
                except OSError:
                    continue
                descriptor, size = log.descriptor, log.size
                edge_size = min(size, log_sender.EDGE)
                logs[name] = {
                    "bytes": size,
                    "head": log_sender.edge(descriptor, 0, edge_size),
                    "tail": log_sender.edge(descriptor, size - edge_size, size),
                }
        return logs

    def _file(self, home: str) -> OpenLog:
        """Return a file here, which stays open."""
        if self._root is None:
            raise StreamError(f"{home} has no directory here")
        if home not in self._open:
            fresh = not _exists(self._root, home)
            self.quota.refuse(self._used, self._count + fresh, self._room())
            descriptor = os.open(home, _FLAGS, 0o600, dir_fd=self._root)
            self._count += fresh
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                os.close(descriptor)
                raise OSError(f"{home} is not a regular file here")
            os.fchmod(descriptor, 0o600)
            self._open[home] = OpenLog(descriptor, info.st_size)
        return self._open[home]

    def _room(self) -> int:
        if self._root is None:
            return 0
        return self.quota.room(self._root)

    def check(self, header: Json) -> None:
        """Raise StreamError where a frame's header does not follow the protocol.

        Nor may it name a file that is not this node's.
        """
        home = header.get("home")
        if not isinstance(home, str) or not self._home.fullmatch(home):
            node, name = self.node or "the node", printable(repr(home), limit=200)
            raise StreamError(f"{node} sent a file that is not its own: {name}")
        if "event" in header:
            return
        offset, size = header.get("offset"), header.get("bytes")
        if not _is_count(offset) or not _is_count(size) or size > MOST:
            raise StreamError(
                f"{self.node}: {home}: a frame with offset {str(offset)[:40]} and"
                f" {str(size)[:40]} bytes"
            )

    def apply_frame(self, header: Json, data: bytes = b"") -> None:
        """Apply one frame: a header as the sender writes it, and its bytes."""
        kind = header.get("event")
        if kind in ("beat", "end"):
            return
        self.check(header)
        home = header["home"]
        if kind is not None:
            self._event(kind, header)
            return
        self.frames += 1
        self.bytes += len(data)
        if self.directory is not None:
            data = self._write(home, header["offset"], data)
        self._news += len(data)
        if self.directory is None and home not in self._rest and header["offset"]:
            self._rest[home] = None  # it begins within a line
        self._lines(home, header.get("time"), data)

    def _write(self, home: str, offset: int, data: bytes) -> bytes:
        """Append the new bytes and return them."""
        log = self._file(home)
        if offset > log.size:
            raise StreamError(f"{home}: {log.size} bytes are here, the next begin at {offset}")
        data = data[log.size - offset :]
        self.quota.refuse(self._used, self._count, self._room(), len(data))
        self._used += len(data)
        view = memoryview(data)
        if len(data) > log_sender.EDGE and data.count(0) == len(data):
            # The hole of a log that was truncated while its writer goes on at the old position: the
            # last byte makes it as long, and fills no disk.
            log.size += len(view) - 1
            view = view[-1:]
        while view:
            done = os.pwrite(log.descriptor, view, log.size)
            log.size += done
            view = view[done:]
        return data

    def _event(self, kind: str, header: Json) -> None:
        home, kept = header["home"], None
        if kind in ("truncated", "replaced"):
            line_end = b""
            if self._rest.get(home):
                line_end = b"\n"
            self._lines(home, header.get("time"), line_end)
            self._rest.pop(home, None)
            if self.directory is not None:
                kept = self._keep(home)
        event = {
            "event": str(kind)[:20],
            "file": str(header.get("file"))[:300],
            "home": home,
            "kept": kept,
        }
        self.events = [*self.events[-99:], event]

    def _keep(self, home: str) -> str | None:
        """Give the received part of a file another name, and return the name.

        Then the file can begin again.
        """
        log = self._file(home)
        if not log.size or self._root is None:
            return None
        kept: str = free_name(self._root, home)
        # A link and not a rename: it fails where the name is taken.
        os.link(home, kept, src_dir_fd=self._root, dst_dir_fd=self._root, follow_symlinks=False)
        os.unlink(home, dir_fd=self._root)
        os.close(log.descriptor)
        del self._open[home]
        return kept

    def _lines(self, home: str, when: Any, data: bytes) -> None:
        if self.on_lines is None:
            return
        rest = self._rest.get(home, b"")
        match = self._home.fullmatch(home)
        if match is None:
            return
        if rest is None:
            cut = data.find(b"\n")
            if cut < 0:
                return
            data, rest = data[cut + 1 :], b""
        lines = (rest + data).split(b"\n")
        self._rest[home] = lines.pop()[:LINE]
        if lines:
            rank, number = _RANK.match(home), None
            if rank:
                number = int(rank.group(1))
            self.on_lines(
                home,
                number,
                match.group("node"),
                when,
                [line[:LINE] for line in lines],
            )

    def receive(self, descriptor: int, stall: float = STALL_SECONDS) -> bool:
        """Apply every frame from an open pipe.

        Return True where the sender announced the end. Raises StreamError, OSError.
        """
        reader, news = _Reader(descriptor, stall), self._news
        while True:
            if self._news > news:
                news, reader.taken = self._news, 0
            header = reader.header()
            if header is None:
                return False
            if header.get("event") == "end":
                self.problems = _problem_texts(header.get("problems"))
                return True
            data = b""
            if "event" not in header:
                self.check(header)
                data = reader.exactly(header["bytes"])
            self.apply_frame(header, data)


def _problem_texts(problems: object) -> list[str]:
    """Return a sender's problems as texts that are safe to show, at most 20."""
    if not isinstance(problems, list):
        return []
    return [printable(str(item)) for item in problems[:20]]


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _exists(root: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class _Reader:
    """Reader of lines and blocks from a pipe with a stream of zlib, in bounded memory."""

    def __init__(self, descriptor: int, stall: float) -> None:
        self.descriptor, self.stall, self.buffer = descriptor, stall, bytearray()
        self.stream = zlib.decompressobj()
        self.taken = 0  # bytes of the stream since the caller set it to 0

    def fill(self) -> bool:
        """Read into the buffer and return False at the end of the pipe or of its stream."""
        if self.stream.eof:
            return False
        if self.taken > MOST_IDLE:
            raise StreamError("what came brought nothing new")
        data = self.stream.unconsumed_tail
        if not data:
            if not select.select([self.descriptor], [], [], self.stall)[0]:
                raise StreamError(f"nothing came for {int(self.stall)} s")
            data = os.read(self.descriptor, BLOCK)
        if not data:
            return False
        try:
            # A few bytes can stand for gigabytes.
            text = self.stream.decompress(data, BLOCK)
        except zlib.error:
            shown = printable(repr(data[:80]))
            raise StreamError(f"what came is no frame: {shown}") from None
        self.buffer += text
        self.taken += len(text)
        return True

    def header(self) -> Json | None:
        """Return the next header, or None at the end of the pipe."""
        while True:
            end = self.buffer.find(b"\n")
            if end >= 0 or len(self.buffer) > LINE:
                break
            if not self.fill():
                if self.buffer:
                    raise StreamError("the stream broke off")
                return None
        raw = bytes(self.buffer[: end + 1])
        del self.buffer[: end + 1]
        try:
            header = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            raise StreamError(f"what came is no frame: {printable(repr(raw[:80]))}")
        return header

    def exactly(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        while len(self.buffer) < count:
            if not self.fill():
                raise StreamError("the stream broke off")
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data


def ssh_command(connection: Any, batch: bool = True) -> tuple[list[str], str]:
    """Return (argv, host) of ssh as Ansible's connection plugin starts it.

    The argv has no host. It uses the connection of every task to that node: the site's options,
    keys and jump hosts, over the connection that is open already where there is one. batch: it
    never asks for a password.
    """
    host = connection.get_option("host") or connection._play_context.remote_addr
    executable = connection.get_option("ssh_executable")
    options = []
    if batch:
        options = ["-o", "BatchMode=yes"]
    argv = [_text(word) for word in connection._build_command(executable, "ssh", "-T", *options)]
    if getattr(connection, "sshpass_pipe", None):  # of no use here, and the next task makes its own
        for descriptor in connection.sshpass_pipe:
            os.close(descriptor)
        connection.sshpass_pipe = None
        argv = argv[argv.index(executable) :]
    return argv, host


def is_connected(connection: Any) -> bool:
    """Return whether Ansible holds a connection to the node, over which a program starts at once.

    A new one could take as long as a node that does not answer.
    """
    for word in ssh_command(connection)[0]:
        path = _CONTROL_PATH.match(word)
        if path:
            try:
                return stat.S_ISSOCK(os.stat(path[1]).st_mode)
            except OSError:
                return False
    return False


def _text(word: str | bytes) -> str:
    if isinstance(word, bytes):
        return word.decode("utf-8", "surrogateescape")
    return word


def ssh_argv(connection: Any, interpreter: str = "python3", verb: str = VERB) -> list[str]:
    """Return the argv that starts a program on a node, the sender where nothing else is said.

    connection: Ansible's own connection plugin of type ssh. verb: the program's first argument.
    """
    if getattr(connection, "transport", "") == "local":
        return sender_argv(interpreter, verb)
    argv, host = ssh_command(connection)
    return [*argv, host, " ".join(map(shlex.quote, sender_argv(interpreter, verb)))]


def sender_argv(interpreter: str, verb: str = VERB) -> list[str]:
    """Return the argv of the sender, or of another program, on the machine where it runs.

    A training may go on beside it.
    """
    nice = ["nice", "-n", str(priority.LOWEST)]
    return [*nice, interpreter, "-I", "-c", zipapp.BOOT, verb]


def start_sender(
    argv: Sequence[str], spec: Json, errors: int | IO[bytes] = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a sender, give it its archive and the spec, and return the process.

    It ends when its standard input is closed, as by our end.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
    )
    left = memoryview(b"%s%s\n" % (zipapp.stdin_bytes(), json.dumps(spec).encode("ascii")))
    try:
        while left and process.stdin is not None:
            left = left[process.stdin.write(left) :]
    except OSError:
        pass  # it has ended already, and says why
    return process
