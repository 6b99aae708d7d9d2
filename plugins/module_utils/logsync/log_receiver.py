# SPDX-License-Identifier: Apache-2.0
"""Take in what shipping.py sends from a node: each byte once, into the attempt's directory at home,
resumed by what is there already.

A file that was truncated or replaced on its node is kept as <home>.1, .2, ... before the new one
begins. The node is not trusted: it can write the logs that bear its own name and nothing else, and
never over bytes that were brought.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import stat
import subprocess

from ..agent import shipping
from ..base import safe_names
from ..base.safe_open import open_root
from ..base.sanitize import printable
from ..config import quota as quotas
from .collector import free_name, make_private
from .stream_lock import Busy, Lock

__all__ = ["Busy", "Receiver", "StreamError", "open_stream", "ssh_argv", "ssh_words", "start"]

MOST = 1 << 20  # bytes of one frame
LINE = 64 << 10  # bytes of a line that are handed on; the file gets all
STALL_SECONDS = 30.0  # the sender is never silent for so long
_RANK = re.compile(r"^rank-(\d{1,9})\.")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class StreamError(Exception):
    """The stream broke off or said what it must not say; what was brought before is right. The
    message is safe to show.
    """


class Receiver:
    """Apply frames to the files of `directory`; None: no file is written, lines are handed on only.

    directory: the attempt's directory on the controller; made with mode 0700 where it is missing.
    on_lines: called as on_lines(home, rank or None, node, time, [bytes]) for whole lines without
    their ends, in the order of each file. node: the node whose files these are; with a directory it
    is needed. quota: the site's bounds (quota.Quota). Raises Busy, OSError.
    """

    def __init__(self, directory, on_lines=None, node=None, quota=None):
        self.directory, self.on_lines, self.node = directory, on_lines, node
        self.bytes = self.frames = 0  # log bytes and frames that came over the wire
        self.events = []  # the last of {"event", "file", "home", "kept"}
        self.problems = []  # what the sender said at its end
        self._open, self._rest, self._lock = {}, {}, None
        self._home, self._root = safe_names.at_home(node), None
        self.quota, self._used, self._count = quota or quotas.Quota(), 0, 0
        if directory is not None:
            make_private(directory)
            self._lock = Lock(directory, node)
            self._root = open_root(directory)
            self._used, self._count = quotas.used(os.path.dirname(os.path.abspath(directory)), node)

    def close(self):
        """Close every file and let others in."""
        for descriptor, _size in self._open.values():
            os.close(descriptor)
        self._open = {}
        if self._root is not None:
            os.close(self._root)
            self._root = None
        if self._lock is not None:
            self._lock.close()

    def have(self):
        """Return what the spec's `have` is to say: {home: {"bytes", "head", "tail"}} of the node's
        logs that are here.
        """
        found = {}
        for name in sorted(os.listdir(self._root)) if self._root is not None else ():
            if self._home.fullmatch(name):
                try:
                    descriptor, size = self._file(name)
                except OSError:
                    continue
                near = min(size, shipping.EDGE)
                found[name] = {
                    "bytes": size,
                    "head": shipping.edge(descriptor, 0, near),
                    "tail": shipping.edge(descriptor, size - near, size),
                }
        return found

    def _file(self, home):
        """Return (descriptor, size) of a file here; it stays open."""
        if home not in self._open:
            fresh = not _there(self._root, home)
            self.quota.refuse(self._used, self._count + fresh, self._room())
            descriptor = os.open(home, _FLAGS, 0o600, dir_fd=self._root)
            self._count += fresh
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                os.close(descriptor)
                raise OSError(f"{home} is not a regular file here")
            os.fchmod(descriptor, 0o600)
            self._open[home] = [descriptor, info.st_size]
        return self._open[home]

    def _room(self):
        return self.quota.room(self._root)

    def check(self, header):
        """Raise StreamError where a frame's header is not what the protocol has, or names a file
        that is not this node's.
        """
        home = header.get("home")
        if not isinstance(home, str) or not self._home.fullmatch(home):
            raise StreamError(
                "{} sent a file that is not its own: {}".format(
                    self.node or "the node", printable(repr(home), limit=200)
                )
            )
        numbers = (
            [header.get(key) for key in ("offset", "bytes")] if "event" not in header else [0, 0]
        )
        if (
            any(
                isinstance(value, bool) or not isinstance(value, int) or value < 0
                for value in numbers
            )
            or numbers[1] > MOST
        ):
            raise StreamError(
                "{}: {}: a frame with offset {} and {} bytes".format(
                    self.node, home, *(str(value)[:40] for value in numbers)
                )
            )

    def apply(self, header, data=b""):
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
        elif home not in self._rest and header["offset"]:
            self._rest[home] = None  # it begins within a line
        self._lines(home, header.get("time"), data)

    def _write(self, home, offset, data):
        """Append what is new; return it."""
        entry = self._file(home)
        if offset > entry[1]:
            raise StreamError(
                "%s: %d bytes are here, the next begin at %d" % (home, entry[1], offset)
            )
        data = data[entry[1] - offset :]
        self.quota.refuse(self._used, self._count, self._room(), len(data))
        self._used += len(data)
        view = memoryview(data)
        if len(data) > shipping.EDGE and data.count(0) == len(data):
            # The hole of a log that was truncated under a writer who goes on at his old place: the
            # last byte makes it as long, and fills no disk.
            entry[1] += len(view) - 1
            view = view[-1:]
        while view:
            done = os.pwrite(entry[0], view, entry[1])
            entry[1] += done
            view = view[done:]
        return data

    def _event(self, kind, header):
        home, kept = header["home"], None
        if kind in ("truncated", "replaced"):
            self._lines(home, header.get("time"), b"\n" if self._rest.get(home) else b"")
            self._rest.pop(home, None)
            kept = self._keep(home) if self.directory is not None else None
        self.events = self.events[-99:] + [
            {
                "event": str(kind)[:20],
                "file": str(header.get("file"))[:300],
                "home": home,
                "kept": kept,
            }
        ]

    def _keep(self, home):
        """Give what was brought of a file another name, so that the file can begin again; return
        the name.
        """
        descriptor, size = self._file(home)
        if not size:
            return None
        kept = free_name(self._root, home)
        # A link and not a rename: it fails where the name is taken.
        os.link(home, kept, src_dir_fd=self._root, dst_dir_fd=self._root, follow_symlinks=False)
        os.unlink(home, dir_fd=self._root)
        os.close(descriptor)
        del self._open[home]
        return kept

    def _lines(self, home, when, data):
        if self.on_lines is None:
            return
        rest = self._rest.get(home, b"")
        if rest is None:
            cut = data.find(b"\n")
            if cut < 0:
                return
            data, rest = data[cut + 1 :], b""
        lines = (rest + data).split(b"\n")
        self._rest[home] = lines.pop()[:LINE]
        if lines:
            rank = _RANK.match(home)
            self.on_lines(
                home,
                rank and int(rank.group(1)),
                self._home.fullmatch(home).group("node"),
                when,
                [line[:LINE] for line in lines],
            )

    def consume(self, descriptor, stall=STALL_SECONDS):
        """Apply every frame from an open pipe. Returns True where the sender said that this was the
        end; raises StreamError, OSError.
        """
        reader = _Reader(descriptor, stall)
        while True:
            header = reader.header()
            if header is None:
                return False
            if header.get("event") == "end":
                said = header.get("problems")
                self.problems = (
                    [printable(str(item)) for item in said[:20]] if isinstance(said, list) else []
                )
                return True
            if "event" not in header:
                self.check(header)
            self.apply(header, b"" if "event" in header else reader.exactly(header["bytes"]))


def _there(root, name):
    try:
        os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class _Reader:
    """Lines and blocks from a pipe, in bounded memory."""

    def __init__(self, descriptor, stall):
        self.descriptor, self.stall, self.held = descriptor, stall, bytearray()

    def more(self):
        if not select.select([self.descriptor], [], [], self.stall)[0]:
            raise StreamError("nothing came for %d s" % self.stall)
        data = os.read(self.descriptor, 1 << 18)
        self.held += data
        return bool(data)

    def header(self):
        """Return the next header, or None at the end of the pipe."""
        while True:
            end = self.held.find(b"\n")
            if end >= 0 or len(self.held) > LINE:
                break
            if not self.more():
                if self.held:
                    raise StreamError("the stream broke off")
                return None
        raw = bytes(self.held[: end + 1])
        del self.held[: end + 1]
        try:
            found = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise StreamError(f"what came is no frame: {printable(repr(raw[:80]))}")
        return found

    def exactly(self, count):
        while len(self.held) < count:
            if not self.more():
                raise StreamError("the stream broke off")
        data = bytes(self.held[:count])
        del self.held[:count]
        return data


def ssh_words(connection, batch=True):
    """Return (words, host): ssh as Ansible's own connection plugin starts it, without the host, and
    the host.

    It goes the way of every task to that node: the site's options, keys and jump hosts, over the
    connection that is open already where there is one. batch: it never asks for a password.
    """
    host = connection.get_option("host") or connection._play_context.remote_addr
    executable = connection.get_option("ssh_executable")
    words = connection._build_command(
        executable, "ssh", "-T", *(("-o", "BatchMode=yes") if batch else ())
    )
    words = [
        word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else word
        for word in words
    ]
    if getattr(connection, "sshpass_pipe", None):  # of no use here, and the next task makes its own
        for descriptor in connection.sshpass_pipe:
            os.close(descriptor)
        connection.sshpass_pipe = None
        words = words[words.index(executable) :]
    return words, host


def ssh_argv(connection, interpreter="python3"):
    """Return the argv that starts the sender on a node, from Ansible's own connection plugin of
    type ssh.
    """
    if getattr(connection, "transport", "") == "local":
        return [interpreter, "-I", "-c", shipping.BOOT]
    words, host = ssh_words(connection)
    return [*words, host, f"{shlex.quote(interpreter)} -I -c {shlex.quote(shipping.BOOT)}"]


def start(argv, spec, errors=subprocess.DEVNULL):
    """Start a sender and give it its source and the spec; return the process. It ends when its
    standard input is closed, as by our end.
    """
    with open(shipping.__file__, "rb") as handle:
        source = handle.read()
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
    )
    left = memoryview(b"%d\n%s%s\n" % (len(source), source, json.dumps(spec).encode("ascii")))
    try:
        while left:
            left = left[process.stdin.write(left) :]
    except OSError:
        pass  # it has ended already, and says why
    return process


def open_stream(connection, interpreter, spec):
    """Start the sender on the node behind an Ansible connection of type ssh; return the process,
    whose stdout Receiver.consume reads.
    """
    return start(ssh_argv(connection, interpreter), spec)
