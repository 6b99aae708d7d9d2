# SPDX-License-Identifier: Apache-2.0
"""Connections between the supervisors of a run: one held SSH connection for each pair of nodes.

A pair needs none where neither of its nodes has a vote. The later node of a pair in rank order
calls the earlier one. sshd there starts the gate, which leads to the supervisor's socket
(agent/relay.py). A message is one line of JSON. What cannot be sent is lost, which the protocol
expects.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import typing

from ..agent import relay
from ..base import sanitize

LONGEST = 4 << 20  # bytes of one message: 64 entries with the files of a checkpoint each
MOST_WAITING = 2 * LONGEST  # bytes that wait for one peer
PIECE = 1 << 16
# Seconds between two calls of a peer that does not answer, at the least and at the most.
AGAIN, RARELY = 1.0, 5.0
WAITING_SECONDS = 0.2  # between two tries to send what waits for a peer


class _Link:
    """One connection. peer: None until the caller has said who it is."""

    def __init__(self, reading, writing, peer, process=None):
        self.reading, self.writing, self.process = reading, writing, process
        self.peer, self.rest, self.waiting = peer, b"", b""
        self.is_closed = False
        for end in {reading, writing}:
            os.set_blocking(end.fileno(), False)

    def lines(self):
        """Return the new lines, None at the end of the connection."""
        try:
            data = os.read(self.reading.fileno(), PIECE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if not data or len(self.rest) > LONGEST:
            return None
        return lines

    def flush(self):
        """Write what waits, and return False where the connection has ended or is stuck."""
        try:
            while self.waiting:
                self.waiting = self.waiting[os.write(self.writing.fileno(), self.waiting) :]
        except BlockingIOError:
            return len(self.waiting) <= MOST_WAITING
        except OSError:
            return False
        return True

    def close(self):
        """End the connection."""
        self.is_closed = True
        for end in {self.reading, self.writing}:
            with contextlib.suppress(OSError):
                end.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def last_words(self):
        """Return what the ended ssh has said, safe to show. Its peer may have written it."""
        if self.process is None:
            return ""
        with self.process.stderr as said:
            return sanitize.printable((said.read(PIECE) or b"").decode("utf-8", "replace").strip())


class Channel:
    """All connections of one supervisor."""

    def __init__(self, path, calls, log):
        """Listen at a socket.

        calls: {peer: the command that reaches its gate} of the peers that this node calls. log: the
        open file for what ssh has said, which may be a peer's text.
        """
        self.calls, self.log, self.links = calls, log, {}
        self._due = {peer: (0.0, AGAIN) for peer in calls}  # {peer: (next call, wait after it)}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(path)
        self.server.listen(64)
        self.server.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.server, selectors.EVENT_READ)
        self._watched, self._pidfd = None, None  # a process's pid, and its descriptor

    def receive(self, seconds: float, now: float) -> list:
        """Wait for messages, at most so many seconds, and return [(peer, message)].

        It returns earlier where the process of `watch` ends.
        """
        self._call_peers(now)
        if any(link.waiting for link in self.links.values()):
            seconds = min(seconds, WAITING_SECONDS)
        messages = []
        for key, _events in self.selector.select(seconds):
            if key.fileobj is self.server:
                self._accept()
            elif key.fileobj == self._pidfd:
                self._forget_process()
            else:
                messages += self._read(key.data, now)
        return messages

    def send(self, peer: str, message: typing.Any) -> None:
        """Send a message, or lose it."""
        link = self.links.get(peer)
        if link is None:
            return
        link.waiting += json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
        if not link.flush():
            self._drop(link)

    def watch(self, pid: int | None) -> bool:
        """Let `receive` return as soon as a process ends.

        Return whether the kernel will tell it.
        """
        if pid == self._watched:
            return self._pidfd is not None
        self._forget_process()
        self._watched = pid
        if pid is None:
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except (AttributeError, OSError):  # before Python 3.9 or Linux 5.3, or it has gone
            return False
        try:
            self.selector.register(descriptor, selectors.EVENT_READ)
        except OSError:
            os.close(descriptor)
            return False
        self._pidfd = descriptor
        return True

    def _forget_process(self):
        """Watch no process. An ended one would be readable for ever."""
        if self._pidfd is not None:
            self.selector.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def close(self):
        """End all connections."""
        self._forget_process()
        for key in list(self.selector.get_map().values()):
            if key.fileobj is not self.server:
                self._drop(key.data)
        self.selector.close()
        self.server.close()

    def _call_peers(self, now):
        for peer, argv in self.calls.items():
            due, wait = self._due[peer]
            if peer in self.links or now < due:
                continue
            self._due[peer] = (now + wait, min(RARELY, 2 * wait))
            with contextlib.suppress(OSError):
                pipe = subprocess.PIPE
                call = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
                os.set_blocking(call.stderr.fileno(), False)
                self._add(_Link(call.stdout, call.stdin, peer, call))
        for link in list(self.links.values()):
            if link.waiting and not link.flush():
                self._drop(link)

    def _accept(self):
        try:
            connection, _address = self.server.accept()
        except OSError:
            return
        self._add(_Link(connection, connection, None))

    def _add(self, link):
        self.selector.register(link.reading, selectors.EVENT_READ, link)
        self._name(link)

    def _name(self, link):
        """Make a connection that of its peer. An older one ends."""
        if link.peer is None:
            return
        before = self.links.get(link.peer)
        self.links[link.peer] = link
        if before is not None and before is not link:
            self._drop(before)

    def _read(self, link, now):
        if link.is_closed:
            return []  # a newer one has taken its place in the same look
        lines = link.lines()
        if lines is None:
            self._drop(link)
            return []
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue  # a login may print something of its own
            if link.peer is None:
                link.peer = str(message.get("peer")) if isinstance(message, dict) else ""
                self._name(link)
                continue
            if link.peer in self._due:
                self._due[link.peer] = (now, AGAIN)
            messages.append((link.peer, message))
        return messages

    def _drop(self, link):
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(link.reading)
        if self.links.get(link.peer) is link:
            del self.links[link.peer]
        link.close()
        words = link.last_words()
        if words:
            with contextlib.suppress(OSError):  # a full disk: the run is kept all the same
                print(words, file=self.log, flush=True)


def peers_called(me: str, nodes: typing.Sequence[str], voters: typing.Collection[str]) -> list[str]:
    """Return the peers that a node calls: those before it in rank order, where one of both votes.

    voters: the first ones of the nodes.
    """
    earlier = nodes[: list(nodes).index(me)]
    return [peer for peer in earlier if peer in voters]


def calls_of(peers: typing.Iterable[str], config: str, number: int) -> dict:
    """Return {peer: command} of the peers that a node calls.

    config: the ssh configuration of the run's credential. number: the attempt that it was made for.
    """
    return {peer: ["ssh", "-F", config, peer, f"talk {number:d}"] for peer in peers}


def path_of(run: str, node: str) -> str:
    """Return the path of a supervisor's socket."""
    return relay.socket_path(run, node)
