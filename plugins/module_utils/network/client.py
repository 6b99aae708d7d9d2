# SPDX-License-Identifier: Apache-2.0
"""Network client of one node: it tries its peers' ports, then measures the links.

The peers listen with network_listener.py. Nothing is judged here.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import ipaddress
import json
import os
import socket
import statistics
import subprocess
import threading
import time

from ..agent import network_listener

# Longer than the kernel asks for a neighbour's hardware address (3 s), so that "no route" is not
# taken for a firewall's silence.
CONNECT_SECONDS = 3.5
ANSWER_SECONDS = 3.0
PARALLEL = 64
# Bytes of more than one full packet both ways, also where packets are of 9000 bytes. They are fewer
# than a first flight may hold.
LARGE = 32768
PINGS = 20
# The lengths of packets in practice, of Ethernet, InfiniBand, overlays and tunnels.
SIZES = (
    65520,
    9216,
    9000,
    4092,
    4000,
    2044,
    1500,
    1492,
    1480,
    1476,
    1472,
    1462,
    1450,
    1440,
    1420,
    1400,
    1380,
    1340,
    1280,
    1000,
    576,
)
# Bytes of the headers of IP and UDP.
UDP_HEADERS = 28
# One stream, and those of all rounds of one node together.
STREAM_SECONDS, STREAMS_SECONDS = 1.0, 8.0
# From linux/in.h. Python does not name them.
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.ENETUNREACH: "unroutable",
    errno.EHOSTUNREACH: "unroutable",
    errno.EINVAL: "unroutable",  # a route of type blackhole
    errno.EACCES: "unroutable",  # one of type prohibit
    errno.EPERM: "forbidden",
    errno.EADDRNOTAVAIL: "source",
    errno.ETIMEDOUT: "timeout",
}


# The answer of a node that has tried nothing.
NOTHING = {
    "reached": {},
    "unreached": [],
    "seen_as": {},
    "edges": {},
    "aside": {},
    "through": [],
    "seconds": 0.0,
}


class Call:
    """An open connection to a peer's listener.

    Raises OSError, and ValueError for an answer that is not valid.
    """

    def __init__(self, spec, address, port):
        """Connect to a port of a peer.

        Without a port, connect to the Unix socket at this address.
        """
        family, target = socket.AF_UNIX, address
        if port:
            family, target = socket.AF_INET, (address, port)
        self.socket = socket.socket(family)
        try:
            self.socket.settimeout(CONNECT_SECONDS)
            if port:
                self.socket.bind((spec["address"], 0))
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.connect(target)
            self.stream = network_listener.Incoming(self.socket, ANSWER_SECONDS)
        except OSError:
            self.socket.close()
            raise

    def ask(self, patience=ANSWER_SECONDS, **word):
        """Send one message and return its answer.

        It has to come within `patience` seconds.
        """
        self.stream.allow(patience)
        network_listener.send_line(self.socket, word)
        answer = network_listener.read_line(self.stream)
        if answer is None:
            raise ValueError("it hung up")
        return answer

    def close(self):
        """End the connection."""
        with contextlib.suppress(OSError):
            self.socket.close()


def number(value, most):
    """Return a number from a peer's answer, from 0 to most.

    Raises ValueError for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise ValueError("it says no number")
    return value


def why_not(error):
    """Return the short word for an OSError with which no connection was made."""
    if isinstance(error, socket.timeout):
        return "timeout"
    return WORDS.get(error.errno, "error")


# --- one port


def attempt(spec, peer, port):
    """Try one port of a peer and return (call, row).

    call: the open Call, None where the attempt failed. row: {to, port, why, text, seconds} and
    perhaps you and age. why is '' for success, else a key of reachability.WHY or 'other'.
    """
    started = time.monotonic()
    call, stage = None, "connect"
    row = {"to": peer["node"], "port": port, "why": "", "text": ""}
    try:
        call = Call(spec, peer["address"], port)
        stage = "hello"
        row.update(_greet(call, spec, peer))
        if not row["why"]:
            stage = "large"
            _echo_large_packet(call)
    except ValueError as error:
        row.update(why="stranger", text=str(error))
    except OSError as error:
        row.update(why=stage, text=error.strerror or str(error) or "no answer")
        if stage == "connect":
            row["why"] = why_not(error)
    if row["why"] and call:
        call.close()
        call = None
    row["seconds"] = round(time.monotonic() - started, 3)
    return call, row


def _greet(call, spec, peer):
    """Compare a listener's identity with the expected one.

    Returns what the row has to say of it. `you` is the address that the peer sees. Raises OSError,
    and ValueError for an answer that is not valid.
    """
    answer = call.ask(do="hello", id=spec["id"], **{"from": spec["node"]})
    if not isinstance(answer.get("node"), str) or not isinstance(answer.get("id"), str):
        raise ValueError("it speaks another language")
    if answer["id"] != spec["id"]:
        age = int(number(answer.get("age") or 0, 1e9))
        return {"why": "other", "text": answer["id"][:200], "age": age}
    if answer["node"] != peer["node"]:
        return {"why": "wrong", "text": answer["node"][:200]}
    you = answer.get("you")
    address = spec["address"]
    if isinstance(you, list) and you:
        address = str(you[0])
    return {"you": str(ipaddress.ip_address(address))}


def _echo_large_packet(call):
    """Send more than one full packet and read it again.

    Raises OSError, and ValueError at the end of the stream.
    """
    call.stream.allow(ANSWER_SECONDS)
    request = json.dumps({"do": "echo", "size": LARGE}).encode("ascii")
    call.socket.sendall(request + b"\n" + bytes(LARGE))
    if len(call.stream.read(LARGE)) != LARGE:
        raise ValueError("it hung up")


def reach(spec, peers):
    """Try every port of every peer at once and return (calls, tried).

    calls: {node: the first Call that succeeded}. tried: the rows of all attempts.
    """
    targets = [(peer, port) for peer in peers for port in peer["planned"] + peer["ephemeral"]]
    calls, tried = {}, []
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        for call, row in pool.map(lambda target: attempt(spec, *target), targets):
            tried.append(row)
            if call and row["to"] in calls:
                call.close()
            elif call:
                calls[row["to"]] = call
    return calls, tried


def aside(peer):
    """Return {ping, ssh}: what else answers at a peer of which a port was not reached.

    A value that cannot be asked for is missing (None).
    """
    services = {"ping": None, "ssh": False}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        code = subprocess.run(
            ["ping", "-n", "-c", "1", "-W", "1", peer["address"]], capture_output=True, timeout=3
        ).returncode
        services["ping"] = {0: True, 1: False}.get(code)
    with contextlib.suppress(OSError), socket.create_connection((peer["address"], 22), 1):
        services["ssh"] = True
    return services


# --- latency and path MTU


def timed(call, count=PINGS):
    """Return {rtt, offset} of a link in seconds.

    rtt: the median of the round trips. offset: how far the peer's clock is ahead (Cristian's
    algorithm).
    """
    trips, until = [], time.monotonic() + ANSWER_SECONDS
    for _number in range(count):
        if trips and time.monotonic() > until:
            break
        before, wall = time.monotonic(), time.time()
        peer_time = number(call.ask(do="ping")["time"], 1e11)
        trip = time.monotonic() - before
        trips.append((trip, peer_time - (wall + trip / 2)))
    return {"rtt": statistics.median(trip for trip, _offset in trips), "offset": min(trips)[1]}


def mtu_of(interface):
    """Return an interface's MTU in bytes, None without one."""
    try:
        with open(f"/sys/class/net/{interface}/mtu", encoding="ascii") as handle:
            return int(handle.read())
    except OSError:
        return None


def path_mtu(spec, peer):
    """Return the longest packet in bytes that came through in one piece, or 0.

    The interface's MTU and the usual sizes below it are tried.
    """
    mtu = mtu_of(spec["interface"]) or 1500
    sizes = sorted({size for size in SIZES if size < mtu} | {min(mtu, 65535)})
    mark = spec["id"].encode("ascii") + b" "
    longest = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        probe.bind((spec["address"], 0))
        probe.connect((peer["address"], peer["udp"]))
        for _number in range(3):
            for size in sizes:
                if size > longest:
                    with contextlib.suppress(OSError):
                        probe.send(mark + bytes(size - UDP_HEADERS - len(mark)))
            longest = _read_sizes(probe, sizes, longest)
            if longest == sizes[-1]:
                break
    return longest


def _read_sizes(probe, sizes, longest):
    """Return the longest packet in bytes that the peer confirms.

    It has a quarter of a second. longest: the longest one so far. Waits no longer than for the last
    of the sizes.
    """
    until = time.monotonic() + 0.25
    while longest < sizes[-1] and time.monotonic() < until:
        probe.settimeout(max(0.01, until - time.monotonic()))
        with contextlib.suppress(OSError, ValueError, IndexError):
            size = int(probe.recv(256).split(b" ")[1]) + UDP_HEADERS
            if size in sizes:
                longest = max(longest, size)
    return longest


# --- bandwidth


def stream(spec, peer, port, seconds):
    """Send for so many seconds over up to four connections.

    Returns Gbit/s as the peer received them, None where that failed.
    """
    results = []
    threads = [
        threading.Thread(target=_send_stream, args=(spec, peer, port, seconds, results))
        for _number in range(min(4, len(os.sched_getaffinity(0))))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = max([row["seconds"] for row in results] or [0])
    if spent <= 1e-3:
        return None
    return round(sum(row["bytes"] for row in results) * 8e-9 / spent, 4)


def _send_stream(spec, peer, port, seconds, results):
    """Send over one connection and append {bytes, seconds} to results.

    Nothing is appended where that fails.
    """
    block = bytes(network_listener.BLOCK)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        call, _row = attempt(spec, peer, port)
        if not call:
            return
        # A slow link must not drain for minutes.
        call.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, network_listener.NO_LINGER)
        call.ask(do="take", seconds=seconds)
        until, sent = time.monotonic() + seconds, 0
        call.socket.settimeout(0.2)
        while time.monotonic() < until:
            with contextlib.suppress(socket.timeout):
                sent += call.socket.send(block)
        with contextlib.suppress(OSError):
            call.socket.shutdown(socket.SHUT_WR)
        call.stream.allow(seconds + ANSWER_SECONDS)
        answer = network_listener.read_line(call.stream)
        # A peer that says too much would make the links between others look slow.
        received = min(number(answer["bytes"], 1e18), sent)
        spent = number(answer["seconds"], 1e18)
        if spent:
            spent = max(spent, seconds / 2)
        results.append({"bytes": received, "seconds": spent})
        call.close()


def meet(spec, call, turn, wait):
    """Wait for the other nodes at the first one's listener.

    Returns {came, late} as network_listener.Listener.meet, {} where that listener cannot be asked.
    wait: seconds.
    """
    with contextlib.suppress(OSError, ValueError):
        answer = call.ask(
            patience=wait + ANSWER_SECONDS, do="meet", round=turn, count=spec["count"], wait=wait
        )
        return {
            "came": int(number(answer.get("came"), spec["count"])),
            "late": bool(answer.get("late")),
        }
    return {}


def carried(spec, peers, calls, ports, own):
    """Measure the bandwidth to each round's target in turn, when all nodes are there.

    Returns {node: {gbits, together}}, or {late} where there was no time. own: a call to the
    listener here, if it is the first's.
    """
    book = {peer["node"]: peer for peer in peers}
    meeting, started = own or calls.get(spec["first"]), time.monotonic()
    seconds = max(0.1, min(STREAM_SECONDS, STREAMS_SECONDS / max(1, len(spec["rounds"]))))
    rates = {}
    for turn, name in enumerate(spec["rounds"]):
        gathering = {}
        if meeting:
            gathering = meet(spec, meeting, turn, _meeting_seconds(turn, spec["count"]))
        # The clock decides where no node can be met, or the first node is stuck.
        late = (
            gathering.get("late")
            or time.monotonic() > started + 2 * network_listener.ROUNDS_SECONDS
        )
        if name not in book or name not in calls:
            continue
        if late:
            rates[name] = {"late": True}
            continue
        gbits = stream(spec, book[name], ports[name], seconds)
        rates[name] = {"gbits": gbits, "together": gathering.get("came", 1)}
    return rates


def _meeting_seconds(turn, count):
    """Return how many seconds to wait for `count` nodes.

    It is longer before the first round.
    """
    if turn == 0:
        return 5 + count / 8.0
    return 2 + count / 8.0


# --- the whole check on this node


def proven(spec, book):
    """Return what this node found of the network.

    spec: {id, node, address, interface, targets (names), rounds (names, in turn), first, count,
    depth}. book: {name: its listener's answer}.
    """
    started = time.monotonic()
    peers = [book[name] for name in spec["targets"] if name in book]
    calls, tried = reach(spec, peers)
    edges = _time_links(calls)
    control = None
    if spec["depth"] == "full":
        _measure_path_mtus(spec, peers, edges)
        control = _call_first_listener(spec)
        ports = {row["to"]: row["port"] for row in reversed(tried) if not row["why"]}
        for name, row in carried(spec, peers, calls, ports, control).items():
            edges[name].update(row)
    failed = [row for row in tried if row["why"]]
    services = _ask_blocked_peers(failed, book)
    if control:
        control.close()
    through = _finish_calls(calls)
    return {
        "reached": {
            name: [row["port"] for row in tried if row["to"] == name and not row["why"]]
            for name in spec["targets"]
        },
        "unreached": failed,
        "seen_as": {
            row["to"]: row["you"]
            for row in tried
            if row.get("you") and row["you"] != spec["address"]
        },
        "edges": edges,
        "aside": services,
        "through": through,
        "seconds": round(time.monotonic() - started, 3),
    }


def _time_links(calls):
    """Return {node: {rtt, offset}}.

    A row is empty where they could not be measured.
    """
    edges = {}
    for name, call in calls.items():
        edges[name] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            edges[name].update(timed(call))
    return edges


def _measure_path_mtus(spec, peers, edges):
    """Add path_mtu to the edges of the peers that this node sends to."""
    measured = [
        peer
        for peer in peers
        if peer["node"] in spec["rounds"] and peer["node"] in edges and peer["udp"]
    ]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for peer, size in zip(measured, pool.map(lambda peer: path_mtu(spec, peer), measured)):
            edges[peer["node"]]["path_mtu"] = size


def _call_first_listener(spec):
    """Return a call to the listener of this node if it is the first one, else None."""
    call = None
    if spec["first"] == spec["node"]:
        with contextlib.suppress(OSError, ValueError):
            call = Call(spec, spec["control"], 0)
            call.ask(do="hello", id=spec["id"], **{"from": spec["node"]})
    return call


def _ask_blocked_peers(failed, book):
    """Return {name: what else answers there} of the first peers that were not reached."""
    blocked = sorted({row["to"] for row in failed})[:8]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return dict(zip(blocked, pool.map(lambda name: aside(book[name]), blocked)))


def _finish_calls(calls):
    """End all calls and return the sorted names of the peers that confirm it."""
    through = []
    for name, call in calls.items():
        with contextlib.suppress(OSError, ValueError):
            call.ask(do="done")
            through.append(name)
        call.close()
    return sorted(through)
