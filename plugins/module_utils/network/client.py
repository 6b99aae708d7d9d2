# SPDX-License-Identifier: Apache-2.0
"""What one node tries of the network: every port that its peers listen on (netprobe.py), then what
each way can carry. Nothing is judged here.
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

from ..agent import netprobe

# Longer than the kernel asks for a neighbour's hardware address (3 s), so that "no route" is not
# taken for a firewall's silence.
CONNECT_SECONDS = 3.5
ANSWER_SECONDS = 3.0
PARALLEL = 64
# More than one full packet both ways, also where packets are of 9000 bytes; below what a first
# flight may hold.
LARGE = 32768
PINGS = 20
# What packets are long in practice, of Ethernet, InfiniBand, overlays and tunnels.
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
# One stream, and those of all rounds of one node together.
STREAM_SECONDS, STREAMS_SECONDS = 1.0, 8.0
# linux/in.h; Python does not name them.
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.ENETUNREACH: "unroutable",
    errno.EHOSTUNREACH: "unroutable",
    errno.EINVAL: "unroutable",  # a route of type blackhole
    errno.EACCES: "unroutable",  # one of type prohibit
    errno.EPERM: "forbidden",
    errno.EADDRNOTAVAIL: "source",
}


# What a node says that has tried nothing.
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
    """An open connection to a peer's listener that has said who it is. Raises OSError, and
    ValueError for an answer that is none.
    """

    def __init__(self, spec, address, port):
        self.socket = socket.socket(socket.AF_INET if port else socket.AF_UNIX)
        try:
            self.socket.settimeout(CONNECT_SECONDS)
            if port:
                self.socket.bind((spec["address"], 0))
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.connect((address, port) if port else address)
            self.stream = netprobe.Incoming(self.socket, ANSWER_SECONDS)
        except OSError:
            self.socket.close()
            raise

    def ask(self, patience=ANSWER_SECONDS, **word):
        """Say one word and return its answer, which has to be there in so many seconds."""
        self.stream.allow(patience)
        netprobe.send_line(self.socket, word)
        answer = netprobe.read_line(self.stream)
        if answer is None:
            raise ValueError("it hung up")
        return answer

    def close(self):
        """End the connection."""
        with contextlib.suppress(OSError):
            self.socket.close()


def number(value, most):
    """Return a number that a peer said, from 0 to most; raise ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise ValueError("it says no number")
    return value


def why_not(error):
    """Return the short word for a connection that was not made."""
    if isinstance(error, socket.timeout):
        return "timeout"
    return WORDS.get(error.errno, "timeout" if error.errno == errno.ETIMEDOUT else "error")


def attempt(spec, peer, port):
    """Try one port of a peer; return (call or None, {why, text, you, seconds}); why is '' where all
    is well.
    """
    started, call = time.monotonic(), None
    made = {"to": peer["node"], "port": port, "why": "", "text": ""}
    stage = "connect"
    try:
        call = Call(spec, peer["address"], port)
        stage = "hello"
        said = call.ask(do="hello", id=spec["id"], **{"from": spec["node"]})
        if not isinstance(said.get("node"), str) or not isinstance(said.get("id"), str):
            raise ValueError("it speaks another language")
        if said["id"] != spec["id"]:
            made.update(
                why="other", text=said["id"][:200], age=int(number(said.get("age") or 0, 1e9))
            )
        elif said["node"] != peer["node"]:
            made.update(why="wrong", text=said["node"][:200])
        else:
            you = said.get("you")
            made["you"] = str(
                ipaddress.ip_address(
                    str(you[0]) if isinstance(you, list) and you else spec["address"]
                )
            )
            stage = "large"
            call.stream.allow(ANSWER_SECONDS)
            call.socket.sendall(
                json.dumps({"do": "echo", "size": LARGE}).encode("ascii") + b"\n" + bytes(LARGE)
            )
            if len(call.stream.read(LARGE)) != LARGE:
                raise ValueError("it hung up")
    except ValueError as error:
        made.update(why="stranger", text=str(error))
    except OSError as error:
        made.update(
            why=why_not(error) if stage == "connect" else stage,
            text=error.strerror or str(error) or "no answer",
        )
    if made["why"] and call:
        call.close()
        call = None
    made["seconds"] = round(time.monotonic() - started, 3)
    return call, made


def timed(call, count=PINGS):
    """Return {rtt, offset}: the median of the ways there and back, and how far the peer's clock is
    ahead, both in seconds (Cristian's way).
    """
    trips, until = [], time.monotonic() + ANSWER_SECONDS
    for _number in range(count):
        if trips and time.monotonic() > until:
            break
        before, wall = time.monotonic(), time.time()
        there = number(call.ask(do="ping")["time"], 1e11)
        trip = time.monotonic() - before
        trips.append((trip, there - (wall + trip / 2)))
    return {"rtt": statistics.median(trip for trip, _offset in trips), "offset": min(trips)[1]}


def mtu_of(interface):
    """Return an interface's MTU in bytes, None where there is none."""
    try:
        with open(f"/sys/class/net/{interface}/mtu", encoding="ascii") as handle:
            return int(handle.read())
    except OSError:
        return None


def path_mtu(spec, peer):
    """Return the longest packet in bytes that came through in one piece, of the interface's MTU and
    the usual ones below; 0 where none did.
    """
    mtu, best = mtu_of(spec["interface"]) or 1500, 0
    sizes = sorted({size for size in SIZES if size < mtu} | {min(mtu, 65535)})
    mark = spec["id"].encode("ascii") + b" "
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        probe.bind((spec["address"], 0))
        probe.connect((peer["address"], peer["udp"]))
        for _number in range(3):
            for size in sizes:
                if size > best:
                    with contextlib.suppress(OSError):
                        probe.send(
                            mark + bytes(size - 28 - len(mark))
                        )  # 28: the heads of IP and UDP
            until = time.monotonic() + 0.25
            while best < sizes[-1] and time.monotonic() < until:
                probe.settimeout(max(0.01, until - time.monotonic()))
                with contextlib.suppress(OSError, ValueError, IndexError):
                    came = int(probe.recv(256).split(b" ")[1]) + 28
                    best = max(best, came) if came in sizes else best
            if best == sizes[-1]:
                break
    return best


def stream(spec, peer, port, seconds):
    """Send for so many seconds, over up to four connections; return Gbit/s as the peer received
    them, None where that failed.
    """
    block, results = bytes(netprobe.BLOCK), []

    def one():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            call, _made = attempt(spec, peer, port)
            if call:
                call.socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, netprobe.NO_LINGER
                )  # a slow way must not drain for minutes
                call.ask(do="take", seconds=seconds)
                until, sent = time.monotonic() + seconds, 0
                call.socket.settimeout(0.2)
                while time.monotonic() < until:
                    with contextlib.suppress(socket.timeout):
                        sent += call.socket.send(block)
                with contextlib.suppress(OSError):
                    call.socket.shutdown(socket.SHUT_WR)
                call.stream.allow(seconds + ANSWER_SECONDS)
                row = netprobe.read_line(call.stream)
                row = {key: number(row[key], 1e18) for key in ("bytes", "seconds")}
                # A peer that says too much would make the ways between others look slow.
                results.append(
                    {
                        "bytes": min(row["bytes"], sent),
                        "seconds": max(row["seconds"], seconds / 2) if row["seconds"] else 0,
                    }
                )
                call.close()

    threads = [
        threading.Thread(target=one) for _number in range(min(4, len(os.sched_getaffinity(0))))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = max([row["seconds"] for row in results] or [0])
    return round(sum(row["bytes"] for row in results) * 8e-9 / spent, 4) if spent > 1e-3 else None


def aside(peer):
    """Return {ping, ssh}: what else answers at a peer that a port of was not reached; None where
    that cannot be asked.
    """
    found = {"ping": None, "ssh": False}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        code = subprocess.run(
            ["ping", "-n", "-c", "1", "-W", "1", peer["address"]], capture_output=True, timeout=3
        ).returncode
        found["ping"] = {0: True, 1: False}.get(code)
    with contextlib.suppress(OSError), socket.create_connection((peer["address"], 22), 1):
        found["ssh"] = True
    return found


def reach(spec, peers):
    """Try every port of every peer at once; return ({node: (call, made) that went well first}, [all
    that was tried]).
    """
    wanted = [(peer, port) for peer in peers for port in peer["planned"] + peer["ephemeral"]]
    calls, tried = {}, []
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        for call, made in pool.map(lambda pair: attempt(spec, *pair), wanted):
            tried.append(made)
            if call and made["to"] in calls:
                call.close()
            elif call:
                calls[made["to"]] = call
    return calls, tried


def meet(spec, call, turn, wait):
    """Wait for the other nodes at the first one's listener; return {came, late} as
    netprobe.Listener.meet, alone where that one cannot be asked.
    """
    with contextlib.suppress(OSError, ValueError):
        said = call.ask(
            patience=wait + ANSWER_SECONDS, do="meet", round=turn, count=spec["count"], wait=wait
        )
        return {
            "came": int(number(said.get("came"), spec["count"])),
            "late": bool(said.get("late")),
        }
    return {}


def carried(spec, peers, calls, ports, own):
    """Return {node: {gbits, together}}, or {late} where there was no time, for each round's target
    in turn, when all nodes are there.

    own: a call to the listener here, if it is the first's.
    """
    found, book = {}, {peer["node"]: peer for peer in peers}
    meeting, started = own or calls.get(spec["first"]), time.monotonic()
    seconds = max(0.1, min(STREAM_SECONDS, STREAMS_SECONDS / max(1, len(spec["rounds"]))))
    for number, name in enumerate(spec["rounds"]):
        said = (
            meet(spec, meeting, number, (5 if number == 0 else 2) + spec["count"] / 8.0)
            if meeting
            else {}
        )
        # The last word where nobody can be met, or the first node is stuck.
        late = said.get("late") or time.monotonic() > started + 2 * netprobe.ROUNDS_SECONDS
        if name in book and name in calls:
            row = (
                {
                    "gbits": stream(spec, book[name], ports[name], seconds),
                    "together": said.get("came", 1),
                }
                if not late
                else {"late": True}
            )
            found[name] = row
    return found


def proven(spec, book):
    """Return what this node found.

    spec: {id, node, address, interface, targets (names), rounds (names, in turn), first, count,
    depth}; book: {name: what its listener said}.
    """
    started = time.monotonic()
    peers = [book[name] for name in spec["targets"] if name in book]
    calls, tried = reach(spec, peers)
    ports = {made["to"]: made["port"] for made in reversed(tried) if not made["why"]}
    edges, own = {name: {} for name in calls}, None
    for name, call in calls.items():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            edges[name].update(timed(call))
    if spec["depth"] == "full":
        measured = [
            peer
            for peer in peers
            if peer["node"] in spec["rounds"] and peer["node"] in calls and peer["udp"]
        ]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for peer, size in zip(measured, pool.map(lambda peer: path_mtu(spec, peer), measured)):
                edges[peer["node"]]["path_mtu"] = size
        if spec["first"] == spec["node"]:
            with contextlib.suppress(OSError, ValueError):
                own = Call(spec, spec["control"], 0)
                own.ask(do="hello", id=spec["id"], **{"from": spec["node"]})
        for name, row in carried(spec, peers, calls, ports, own).items():
            edges[name].update(row)
    failed = [made for made in tried if made["why"]]
    blocked = sorted({made["to"] for made in failed})[:8]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        besides = dict(zip(blocked, pool.map(lambda name: aside(book[name]), blocked)))
    for call in [own] if own else []:
        call.close()
    through = []
    for name, call in calls.items():
        with contextlib.suppress(OSError, ValueError):
            call.ask(do="done")
            through.append(name)
        call.close()
    return {
        "reached": {
            name: [made["port"] for made in tried if made["to"] == name and not made["why"]]
            for name in spec["targets"]
        },
        "unreached": failed,
        "seen_as": {
            made["to"]: made["you"]
            for made in tried
            if made.get("you") and made["you"] != spec["address"]
        },
        "edges": edges,
        "aside": besides,
        "through": sorted(through),
        "seconds": round(time.monotonic() - started, 3),
    }
