# SPDX-License-Identifier: Apache-2.0
"""Node's side of the network check: a listener on the ranks' address and ports.

It serves words of one JSON line each, over TCP and, for its own node, over a socket in its
directory:

    {do: hello, id, from}   -> {node, id, you, age}   this listener, and the address that it sees;
                            for another id, id is '' and the caller is sent away
    {do: echo, size} bytes  -> the same bytes         whether full packets pass both ways
    {do: ping}              -> {time}                 latency and clock
    {do: take, seconds}     -> {}, bytes -> {bytes, seconds}
                            bandwidth, as the receiver sees it
    {do: meet, round, count, wait}  -> {came, late}   wait for the others, so that all send at
                            once; late: there is no time for this round
    {do: done}              -> {}                     this peer has finished; after all expected
                            peers have, the listener ends automatically
    {do: ports}, {do: state}, {do: close}             its own node only
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import threading
import time

from . import systemd

# With nothing to wait for, a closed connection leaves no TIME_WAIT that would keep a rank from its
# port.
NO_LINGER = struct.pack("ii", 1, 0)
LINE, CONNECTIONS, SILENCE = 4096, 1024, 60
BLOCK = 1 << 20
# All rounds together, from the first meeting on: -e matrix=true on 64 nodes has 63.
ROUNDS_SECONDS = 30
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def ephemeral_range(path=RANGE):
    """Return (first, last) of the ports that the kernel gives to sockets without one.

    gloo and NCCL take their ports from there (docs/facts.md, 5).
    """
    with open(path, encoding="ascii") as handle:
        first, last = handle.read().split()
    return int(first), int(last)


def bind_socket(kind, address, port):
    """Return a socket that is bound to the address, and raise OSError otherwise."""
    server = socket.socket(socket.AF_INET, kind)
    try:
        if kind == socket.SOCK_STREAM:
            # As the ranks do it: a port with old connections in TIME_WAIT is free, one with a
            # listener is not.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        if kind == socket.SOCK_STREAM:
            server.listen(256)
    except OSError:
        server.close()
        raise
    return server


# Number of ports of the ephemeral range that a listener has.
SPREAD = 4


def spread(address, limits):
    """Return listening sockets that are spread over the ephemeral range.

    They are at its low end, in its middle and at its high end. The kernel chooses one more.
    """
    first, last = limits
    servers = []
    for start, step in ((first, 1), ((first + last) // 2, 1), (last, -1), (0, 0)):
        for attempt in range(32):
            try:
                servers.append(bind_socket(socket.SOCK_STREAM, address, start + step * attempt))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    break
    return servers


class Incoming:
    """Data of a peer, with a deadline for the whole of it.

    A peer that sends a byte now and then gains no time by that.
    """

    def __init__(self, connection, seconds):
        self.connection, self.rest = connection, b""
        self.allow(seconds)

    def allow(self, seconds):
        """Give the peer so many seconds from now for its next data.

        Each answer to it has as many.
        """
        self.seconds, self.deadline = seconds, time.monotonic() + seconds
        self.connection.settimeout(seconds)

    def receive(self, limit):
        """Return the next data, b'' at the end, or raise socket.timeout at the deadline."""
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise socket.timeout("timed out")
        self.connection.settimeout(remaining)
        try:
            return self.connection.recv(limit)
        finally:
            self.connection.settimeout(self.seconds)

    def readline(self, limit):
        """Return one line.

        It has no line end where it is longer than the limit or the peer has ended.
        """
        while b"\n" not in self.rest and len(self.rest) < limit:
            block = self.receive(limit - len(self.rest))
            if not block:
                break
            self.rest += block
        end = self.rest.find(b"\n", 0, limit) + 1 or limit
        line, self.rest = self.rest[:end], self.rest[end:]
        return line

    def read(self, size):
        """Return so many bytes, fewer where the peer has ended."""
        while len(self.rest) < size:
            block = self.receive(size - len(self.rest))
            if not block:
                break
            self.rest += block
        data, self.rest = self.rest[:size], self.rest[size:]
        return data


def read_line(stream):
    """Return the next word as a dict, None at the end.

    Raises ValueError for anything else.
    """
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
    """Sockets of one network check on this node, and the peers that have come.

    spec: {id, node, address, ports, expected (names of the peers that will come), directory}.
    """

    def __init__(self, spec):
        self.spec, self.failed, self.sockets = spec, {}, []
        self.over, self.changed = threading.Event(), threading.Condition()
        # {name: address} of the peers that have come, {address: name} of those that have finished.
        self.arrived, self.finished = {}, {}
        self.rounds, self.connections = {}, 0
        self.began = self.last = time.monotonic()
        self.limits = ephemeral_range()
        for port in spec["ports"]:
            try:
                self.sockets.append(bind_socket(socket.SOCK_STREAM, spec["address"], port))
            except OSError as error:
                self.failed[str(port)] = error.strerror
        self.planned = [server.getsockname()[1] for server in self.sockets]
        self.sockets += spread(spec["address"], self.limits)
        try:
            self.udp = bind_socket(socket.SOCK_DGRAM, spec["address"], 0)
        except OSError as error:
            self.udp, self.failed["udp"] = None, error.strerror
        self.control = socket.socket(socket.AF_UNIX)
        self.control.bind(os.path.join(spec["directory"], "control"))
        self.control.listen(16)

    def book(self):
        """Return the ports and addresses that the peers must know."""
        extra_sockets = self.sockets[len(self.planned) :]
        description = {
            "node": self.spec["node"],
            "address": self.spec["address"],
            "planned": self.planned,
            "ephemeral": [server.getsockname()[1] for server in extra_sockets],
            "udp": None,
            "range": list(self.limits),
            "failed": self.failed,
        }
        if self.udp:
            description["udp"] = self.udp.getsockname()[1]
        return description

    def serve(self):
        """Answer until all expected peers have finished or the node closes the listener.

        systemd's RuntimeMaxSec ends it in any case.
        """
        for server in self.sockets + [self.control]:
            threading.Thread(target=self.accept, args=(server,), daemon=True).start()
        if self.udp:
            threading.Thread(target=self.acknowledge, daemon=True).start()
        self.over.wait()
        for server in self.sockets + [self.control]:
            with contextlib.suppress(OSError):
                # It wakes the thread that waits in accept(), and keeps the port till then.
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        with self.changed:  # the last answers are on their way
            self.changed.wait_for(lambda: not self.connections, 1)

    def accept(self, server):
        """Start a thread for each connection to one of the sockets."""
        while not self.over.is_set():
            try:
                connection, peer = server.accept()
            except OSError:
                return
            with self.changed:
                if self.connections >= CONNECTIONS:
                    connection.close()
                    continue
                self.connections += 1
            threading.Thread(target=self.attend, args=(connection, peer), daemon=True).start()

    def attend(self, connection, peer):
        """Serve one connection to its end.

        peer: its address, empty for this node itself.
        """
        try:
            if peer:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                Conversation(self, connection, peer).hold()
        except (OSError, ValueError, KeyError, TypeError):
            pass  # a caller that does not speak this protocol does not matter here
        finally:
            with self.changed:
                self.connections -= 1
                self.changed.notify_all()

    def age(self):
        """Return the age of this listener in whole seconds."""
        return int(time.monotonic() - self.began)

    def note_activity(self, until=0.0):
        """Note that a peer of this check is at work, now or until a known moment."""
        self.last = max(self.last, until, time.monotonic())

    def missing(self):
        """Return the names of the expected peers that have not finished, sorted."""
        return sorted(set(self.spec["expected"]) - set(self.finished.values()))

    def meet(self, name, number, count, wait):
        """Wait for the other peers of a round and return {came, late}.

        came: the number of peers at its beginning. It begins when all have come, or after the
        first peer's waiting time (seconds). The next round does not wait for a peer that was
        missing. late is the same for all of a round.
        """
        with self.changed:
            if number not in self.rounds:
                self.rounds[number] = self.new_round(number, count, wait)
            row = self.rounds[number]
            row["names"].add(name)
            self.note_activity(row["until"])
            self.changed.notify_all()
            if not row["late"]:
                self.changed.wait_for(
                    lambda: len(row["names"]) >= row["wanted"],
                    max(0.0, row["until"] - time.monotonic()),
                )
            return {"came": len(row["names"]), "late": row["late"]}

    def new_round(self, number, count, wait):
        """Return the entry of a round that begins with its first peer."""
        now = time.monotonic()
        first_begun = min([row["until"] - row["wait"] for row in self.rounds.values()] or [now])
        wanted = count
        if number - 1 in self.rounds:
            wanted = min(count, len(self.rounds[number - 1]["names"]))
        return {
            "names": set(),
            "until": now + wait,
            "wait": wait,
            "wanted": wanted,
            "late": now > first_begun + ROUNDS_SECONDS,
        }

    def acknowledge(self):
        """Answer datagrams of this check with their length.

        The answer is small, so that the listener cannot be used to make a lot of traffic.
        """
        mark = self.spec["id"].encode("ascii") + b" "
        while True:
            data, peer = self.udp.recvfrom(1 << 16)
            if data.startswith(mark):
                with contextlib.suppress(OSError):
                    self.udp.sendto(mark + b"%d" % len(data), peer)


class Conversation:
    """One connection of a peer, or of this node itself, with the listener.

    Each handler answers one word and returns whether the conversation goes on.
    """

    def __init__(self, listener, connection, peer):
        """Prepare the conversation.

        peer: the peer's address, empty for this node itself.
        """
        self.listener, self.connection, self.peer = listener, connection, peer
        self.stream = Incoming(connection, SILENCE)
        self.name = None  # given with hello, before any other word
        self.handlers = {
            "hello": self.greet,
            "echo": self.echo,
            "ping": self.tell_time,
            "take": self.measure_bandwidth,
            "meet": self.meet,
            "done": self.finish,
        }
        if not peer:
            self.handlers.update(
                ports=self.describe_ports, state=self.describe_state, close=self.close_listener
            )

    def hold(self):
        """Answer words until the caller ends, or has to be sent away."""
        word = read_line(self.stream)
        while word is not None:
            if not self.answer(word):
                return
            self.stream.allow(SILENCE)
            word = read_line(self.stream)

    def answer(self, word):
        """Answer one word and return whether the conversation goes on."""
        verb = word["do"]
        if self.peer and self.name is not None:
            self.listener.note_activity()
        if self.name is None and verb != "hello":
            return False
        if not isinstance(verb, str) or verb not in self.handlers:
            return True
        return self.handlers[verb](word)

    def send(self, word):
        """Send one word and go on."""
        send_line(self.connection, word)
        return True

    def greet(self, word):
        """Learn the caller's name, and send it away where it belongs to another check."""
        spec = self.listener.spec
        same_check = word["id"] == spec["id"]
        greeting = {"node": spec["node"], "id": "", "you": None, "age": self.listener.age()}
        if same_check:  # a caller that does not know the id must not learn it
            greeting["id"] = spec["id"]
        if self.peer:
            greeting["you"] = list(self.peer)
        self.send(greeting)
        if not same_check:
            return False
        self.name = str(word["from"])
        if self.peer and self.name in spec["expected"]:
            self.listener.arrived.setdefault(self.name, self.peer[0])
        return True

    def echo(self, word):
        """Send the same bytes back."""
        self.connection.sendall(self.stream.read(min(int(word["size"]), BLOCK)))
        return True

    def tell_time(self, _word):
        """Send this node's time."""
        return self.send({"time": time.time()})

    def measure_bandwidth(self, word):
        """Send the amount of data that comes within a time, and end the conversation."""
        self.send({})  # nothing of what comes now may end in the stream's buffer
        seconds = min(ROUNDS_SECONDS, float(word["seconds"]))
        self.send(count_incoming(self.connection, seconds))
        self.listener.note_activity()
        drained(self.connection)
        return False

    def meet(self, word):
        """Let the caller wait for the other peers of a round."""
        wait = min(ROUNDS_SECONDS, float(word["wait"]))
        return self.send(
            self.listener.meet(self.name, int(word["round"]), int(word["count"]), wait)
        )

    def finish(self, _word):
        """Note that the caller has finished, and end the listener after the last one."""
        address = ""
        if self.peer:
            address = self.peer[0]
        # One name for one address: no peer can say it for the others, which would come to closed
        # ports.
        if self.listener.finished.setdefault(address, self.name) != self.name:
            return False
        self.send({})
        if not self.listener.missing():
            self.listener.over.set()
        return True

    def describe_ports(self, _word):
        """Send the ports and addresses that the peers must know."""
        return self.send(self.listener.book())

    def describe_state(self, _word):
        """Send the listener's age, its idle time (seconds) and the number of peers."""
        idle = max(0.0, time.monotonic() - self.listener.last)
        return self.send(
            {"age": self.listener.age(), "idle": idle, "came": len(self.listener.arrived)}
        )

    def close_listener(self, _word):
        """Send the peers that came and those that did not finish, and end the listener."""
        self.send({"came": self.listener.arrived, "missed": self.listener.missing()})
        self.listener.over.set()
        return True


def count_incoming(connection, seconds):
    """Read and drop data for so many seconds after the first byte, or until its end.

    Return {bytes, seconds}. The first block is not counted: it marks the beginning of the sending.
    """
    total, started = 0, None
    now, buffer = time.monotonic(), memoryview(bytearray(BLOCK))
    while started is None or now < started + seconds:
        count = connection.recv_into(buffer)
        now = time.monotonic()
        if not count:
            break
        if started is None:
            started = now
            continue
        total += count
    if started is None:
        return {"bytes": total, "seconds": 0.0}
    return {"bytes": total, "seconds": now - started}


def drained(connection, seconds=2.0):
    """Drop the rest of the data, until its end.

    Closing before that resets the connection, and the peer may not get its answer.
    """
    buffer, deadline = memoryview(bytearray(BLOCK)), time.monotonic() + seconds
    connection.settimeout(seconds)
    while time.monotonic() < deadline and connection.recv_into(buffer):
        pass


def main(directory):
    """Listen as directory/spec.json says."""
    with open(os.path.join(directory, "spec.json"), encoding="utf-8") as handle:
        spec = json.load(handle)
    listener = Listener(dict(spec, directory=directory))
    systemd.notify(b"READY=1")
    listener.serve()
    return 0
