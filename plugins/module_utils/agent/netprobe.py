# SPDX-License-Identifier: Apache-2.0
"""The node's side of the network's proof: a listener where the ranks will listen, and what a peer
says to it.

The listener is copied to the node and executed there (library/network_proof.py), so it needs
nothing but Python >= 3.8 and is complete in itself. It serves words of one JSON line each, over TCP
and, for its own node, over a socket in its directory:

    {do: hello, id, from}   -> {node, id, you, age} who answers, and what address it sees; for
    another id, id is '' and it is sent away
    {do: echo, size} bytes  -> the same bytes       whether full packets pass both ways
    {do: ping}              -> {time}               latency and clock
    {do: take, seconds} -> {}, bytes -> {bytes, seconds}   bandwidth, as the receiver sees it
    {do: meet, round, count, wait} -> {came, late}  wait for the others, so that all send at
    once; late: there is no time for this round
    {do: done}              -> {}                   this peer is through; after all that are
    expected the listener ends by itself
    {do: ports}, {do: state}, {do: close}           its own node only
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import sys
import threading
import time

# With nothing to wait for, a closed connection leaves no TIME_WAIT that would keep a rank from its
# port.
NO_LINGER = struct.pack("ii", 1, 0)
LINE, CONNECTIONS, SILENCE = 4096, 1024, 60
BLOCK = 1 << 20
# All rounds together, from the first meeting on: -e matrix=true on 64 nodes has 63.
ROUNDS_SECONDS = 30
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def ephemeral_range(path=RANGE):
    """Return (first, last) of the ports that the kernel gives to who asks for none; gloo and NCCL
    take theirs there (docs/facts.md, 5).
    """
    with open(path, encoding="ascii") as handle:
        first, last = handle.read().split()
    return int(first), int(last)


def bound(kind, address, port):
    """Return a socket that is bound to the address; raises OSError."""
    made = socket.socket(socket.AF_INET, kind)
    try:
        # As the ranks do it: a port with old connections in TIME_WAIT is free, one with a listener
        # is not.
        made.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1 if kind == socket.SOCK_STREAM else 0
        )
        made.bind((address, port))
        if kind == socket.SOCK_STREAM:
            made.listen(256)
    except OSError:
        made.close()
        raise
    return made


# So many ports of the ephemeral range a listener has.
SPREAD = 4


def spread(address, limits):
    """Return listening sockets at the low end, in the middle and at the high end of the ephemeral
    range, and one that the kernel chooses.
    """
    first, last = limits
    found = []
    for start, step in ((first, 1), ((first + last) // 2, 1), (last, -1), (0, 0)):
        for attempt in range(32):
            try:
                found.append(bound(socket.SOCK_STREAM, address, start + step * attempt))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    break
    return found


class Incoming:
    """What a peer sends, read until a deadline for the whole of it: a byte now and then gains no
    time.
    """

    def __init__(self, connection, seconds):
        self.connection, self.rest = connection, b""
        self.allow(seconds)

    def allow(self, seconds):
        """Give the peer so many seconds from now for what it sends next, and each answer to it as
        many.
        """
        self.seconds, self.until = seconds, time.monotonic() + seconds
        self.connection.settimeout(seconds)

    def receive(self, most):
        """Return what comes before the deadline, b'' at the end; raise socket.timeout."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        self.connection.settimeout(left)
        try:
            return self.connection.recv(most)
        finally:
            self.connection.settimeout(self.seconds)

    def readline(self, most):
        """Return one line, without its end where it is longer than most or the peer has ended."""
        while b"\n" not in self.rest and len(self.rest) < most:
            block = self.receive(most - len(self.rest))
            if not block:
                break
            self.rest += block
        end = self.rest.find(b"\n", 0, most) + 1 or most
        line, self.rest = self.rest[:end], self.rest[end:]
        return line

    def read(self, size):
        """Return so many bytes, fewer where the peer has ended."""
        while len(self.rest) < size:
            block = self.receive(size - len(self.rest))
            if not block:
                break
            self.rest += block
        found, self.rest = self.rest[:size], self.rest[size:]
        return found


def read_line(stream):
    """Return the next word as a dict, None at the end; raises ValueError for anything else."""
    line = stream.readline(LINE)
    if not line:
        return None
    try:
        word = json.loads(line.decode("utf-8"))
    except RecursionError as error:  # a few thousand brackets
        raise ValueError("nested too deeply") from error
    if not isinstance(word, dict):
        raise ValueError("no mapping")
    return word


def send_line(connection, word):
    """Send one word."""
    connection.sendall(json.dumps(word).encode("ascii") + b"\n")


class Listener:
    """spec: {id, node, address, ports, expected (names of the peers that will come), directory}."""

    def __init__(self, spec):
        self.spec, self.failed, self.sockets = spec, {}, []
        self.over, self.changed = threading.Event(), threading.Condition()
        self.came, self.done, self.rounds, self.open = {}, {}, {}, 0
        self.began = self.last = time.monotonic()
        self.limits = ephemeral_range()
        for port in spec["ports"]:
            try:
                self.sockets.append(bound(socket.SOCK_STREAM, spec["address"], port))
            except OSError as error:
                self.failed[str(port)] = error.strerror
        self.planned = [made.getsockname()[1] for made in self.sockets]
        self.sockets += spread(spec["address"], self.limits)
        try:
            self.udp = bound(socket.SOCK_DGRAM, spec["address"], 0)
        except OSError as error:
            self.udp, self.failed["udp"] = None, error.strerror
        self.control = socket.socket(socket.AF_UNIX)
        self.control.bind(os.path.join(spec["directory"], "control"))
        self.control.listen(16)

    def book(self):
        """Return what the peers must know."""
        return {
            "node": self.spec["node"],
            "address": self.spec["address"],
            "planned": self.planned,
            "ephemeral": [made.getsockname()[1] for made in self.sockets[len(self.planned) :]],
            "udp": self.udp.getsockname()[1] if self.udp else None,
            "range": list(self.limits),
            "failed": self.failed,
        }

    def serve(self):
        """Answer until all expected peers are through or somebody closes; systemd's RuntimeMaxSec
        is the last word.
        """
        for made in self.sockets + [self.control]:
            threading.Thread(target=self.accept, args=(made,), daemon=True).start()
        if self.udp:
            threading.Thread(target=self.acknowledge, daemon=True).start()
        self.over.wait()
        for made in self.sockets + [self.control]:
            with contextlib.suppress(OSError):
                made.shutdown(
                    socket.SHUT_RDWR
                )  # wakes the thread that waits in accept(), and keeps the port till then
            made.close()
        with self.changed:  # the last answers are on their way
            self.changed.wait_for(lambda: not self.open, 1)

    def accept(self, made):
        while not self.over.is_set():
            try:
                connection, peer = made.accept()
            except OSError:
                return
            with self.changed:
                if self.open >= CONNECTIONS:
                    connection.close()
                    continue
                self.open += 1
            threading.Thread(target=self.attend, args=(connection, peer), daemon=True).start()

    def attend(self, connection, peer):
        try:
            if peer:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                self.converse(connection, Incoming(connection, SILENCE), peer)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # somebody who speaks otherwise is of no concern here
        finally:
            with self.changed:
                self.open -= 1
                self.changed.notify_all()

    def converse(self, connection, stream, peer):
        word, who = read_line(stream), None
        while word is not None:
            do = word["do"]
            if peer and who is not None:
                self.spoken()
            if do == "hello":
                own = (
                    self.spec["id"] if word["id"] == self.spec["id"] else ""
                )  # who does not know it must not learn it
                send_line(
                    connection,
                    {
                        "node": self.spec["node"],
                        "id": own,
                        "you": list(peer) if peer else None,
                        "age": self.age(),
                    },
                )
                if not own:
                    return
                who = str(word["from"])
                if peer and who in self.spec["expected"]:
                    self.came.setdefault(who, peer[0])
            elif who is None:
                return
            elif do == "echo":
                connection.sendall(stream.read(min(int(word["size"]), BLOCK)))
            elif do == "ping":
                send_line(connection, {"time": time.time()})
            elif do == "take":
                send_line(
                    connection, {}
                )  # nothing of what comes now may end in the stream's buffer
                send_line(
                    connection, taken(connection, min(ROUNDS_SECONDS, float(word["seconds"])))
                )
                self.spoken()
                drained(connection)
                return
            elif do == "meet":
                send_line(
                    connection,
                    self.meet(
                        who,
                        int(word["round"]),
                        int(word["count"]),
                        min(ROUNDS_SECONDS, float(word["wait"])),
                    ),
                )
            elif do == "done":
                # One name for one address: no peer can say it for the others, who would come to
                # closed ports.
                if self.done.setdefault(peer[0] if peer else "", who) != who:
                    return
                send_line(connection, {})
                if set(self.done.values()) >= set(self.spec["expected"]):
                    self.over.set()
            elif do == "ports" and not peer:
                send_line(connection, self.book())
            elif do == "state" and not peer:
                idle = max(0.0, time.monotonic() - self.last)
                send_line(connection, {"age": self.age(), "idle": idle, "came": len(self.came)})
            elif do == "close" and not peer:
                send_line(
                    connection,
                    {
                        "came": self.came,
                        "missed": sorted(set(self.spec["expected"]) - set(self.done.values())),
                    },
                )
                self.over.set()
            stream.allow(SILENCE)
            word = read_line(stream)

    def age(self):
        """Return for how many whole seconds this listener has been here."""
        return int(time.monotonic() - self.began)

    def spoken(self, until=0.0):
        """Note that a peer of this check is at work, till a moment that is known."""
        self.last = max(self.last, until, time.monotonic())

    def meet(self, who, number, count, wait):
        """Return {came, late}: how many have come to this round when it begins, all or those of the
        first's waiting time (seconds).

        Who has not come to one round is not waited for in the next; late is the same for all of a
        round.
        """
        with self.changed:
            now = time.monotonic()
            if number not in self.rounds:
                before = self.rounds.get(number - 1)
                late = (
                    now
                    > min([row["until"] - row["wait"] for row in self.rounds.values()] or [now])
                    + ROUNDS_SECONDS
                )
                wanted = min(count, len(before["names"])) if before else count
                self.rounds[number] = {
                    "names": set(),
                    "until": now + wait,
                    "wait": wait,
                    "wanted": wanted,
                    "late": late,
                }
            row = self.rounds[number]
            row["names"].add(who)
            self.spoken(row["until"])
            self.changed.notify_all()
            if not row["late"]:
                self.changed.wait_for(
                    lambda: len(row["names"]) >= row["wanted"],
                    max(0.0, row["until"] - time.monotonic()),
                )
            return {"came": len(row["names"]), "late": row["late"]}

    def acknowledge(self):
        """Answer datagrams of this check with their length: small, so that nobody can use it to
        make much of little.
        """
        mark = self.spec["id"].encode("ascii") + b" "
        while True:
            data, peer = self.udp.recvfrom(1 << 16)
            if data.startswith(mark):
                with contextlib.suppress(OSError):
                    self.udp.sendto(mark + b"%d" % len(data), peer)


def taken(connection, seconds):
    """Read and drop what comes, until its end or for so many seconds after the first byte; return
    {bytes, seconds}.
    """
    total, started, now, place = 0, None, time.monotonic(), memoryview(bytearray(BLOCK))
    while started is None or now < started + seconds:
        count = connection.recv_into(place)
        now = time.monotonic()
        if not count:
            break
        if started is None:
            started = now  # the first block is not counted: it tells when the sending began
            continue
        total += count
    return {"bytes": total, "seconds": now - started if started else 0.0}


def drained(connection, seconds=2.0):
    """Drop what still comes, until its end: closing before that resets the connection, and the peer
    may not get its answer.
    """
    place, until = memoryview(bytearray(BLOCK)), time.monotonic() + seconds
    connection.settimeout(seconds)
    while time.monotonic() < until and connection.recv_into(place):
        pass


def notify(text):
    """Tell systemd; without it, nobody."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
            made.connect("\0" + place[1:] if place.startswith("@") else place)
            made.send(text)


def main(directory):
    """Listen as directory/spec.json says."""
    with open(os.path.join(directory, "spec.json"), encoding="utf-8") as handle:
        spec = json.load(handle)
    listener = Listener(dict(spec, directory=directory))
    notify(b"READY=1")
    listener.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
