# SPDX-License-Identifier: Apache-2.0
"""Supervisors that talk over real sockets and relays: what arrives, what is lost, who calls."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import socket
import subprocess
import sys
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import relay
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import channel
from core_support import RUN
from detached_support import call_of, wait_for


class Pair:
    """The channels of node1 and of node2, which calls it, and what has come to each."""

    def __init__(self, folder):
        self.paths = {name: str(folder / name) for name in ("node1", "node2")}
        self.calls = {"node1": {}, "node2": {"node1": call_of(self.paths["node1"], "node2")}}
        self.log = open(folder / "ssh.log", "w", encoding="utf-8")
        self.channels = {
            name: channel.Channel(path, self.calls[name], self.log)
            for name, path in self.paths.items()
        }
        self.come = {"node1": [], "node2": []}

    def step(self):
        """Let both take what has come."""
        for name, made in self.channels.items():
            self.come[name] += made.receive(0.01, time.monotonic())

    def exchange(self, sender, receiver, message):
        """Send a message until it has come."""

        def step():
            self.channels[sender].send(receiver, message)
            self.step()

        wait_for(lambda: (sender, message) in self.come[receiver], step)

    def connect(self, caller="node2", after=b""):
        """Connect with node1 as a relay does, and return the socket."""
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(10)
        link.connect(self.paths["node1"])
        if caller:
            link.sendall(json.dumps({"peer": caller}).encode() + b"\n" + after)
        return link

    def take(self, seconds=0.1):
        """Return what comes to node1 in a while."""
        self.come["node1"], until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            self.come["node1"] += self.channels["node1"].receive(0.02, 0.0)
        return self.come["node1"]


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path)
    yield made
    for each in made.channels.values():
        each.close()
    made.log.close()


def ended(link):
    """Return whether the other side has ended a connection, after what it had sent."""
    try:
        while link.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except socket.timeout:
        return False
    return True


def test_messages_arrive_both_ways_and_in_order(pair):
    pair.exchange("node2", "node1", {"n": 0})
    pair.exchange("node1", "node2", {"text": "é\n"})
    pair.come["node1"].clear()
    for number in range(1, 200):
        pair.channels["node2"].send("node1", {"n": number, "more": "x" * 1000})
    wait_for(lambda: len(pair.come["node1"]) >= 199, pair.step)
    assert [message["n"] for _peer, message in pair.come["node1"]] == list(range(1, 200))


def test_what_is_sent_to_a_peer_without_a_connection_is_lost(pair):
    pair.channels["node1"].send("node2", {"n": 1})
    pair.channels["node1"].send("node9", {"n": 1})
    pair.exchange("node2", "node1", {"n": 2})
    assert pair.come["node2"] == []


@pytest.mark.parametrize("line", [b"", b"{", b"Last login: today", b"\xff\xfe", b"[" * 10000])
def test_a_broken_line_is_passed_over(pair, line):
    pair.connect(after=line + b'\n{"n": 1}\n')
    assert pair.take() == [("node2", {"n": 1})]


def test_a_message_comes_in_pieces(pair):
    link = pair.connect(after=b'{"n"')
    assert pair.take() == []
    link.sendall(b": 1}\n")
    assert pair.take() == [("node2", {"n": 1})]


@pytest.mark.parametrize("first", [b"", b"Welcome\n", b"\n"])
def test_nothing_is_taken_of_a_caller_that_does_not_say_its_name(pair, first):
    pair.connect(caller="", after=b"")
    link = pair.connect(caller="")
    link.sendall(first + b'{"kind": "stop"}\n{"kind": "stop"}\n[]\n')
    assert [peer for peer, _message in pair.take() if peer in ("node1", "node2")] == []


def test_a_line_that_is_too_long_ends_the_connection(pair, monkeypatch):
    monkeypatch.setattr(channel, "LONGEST", 1 << 18)
    link = pair.connect()
    wait_for(lambda: "node2" in pair.channels["node1"].links, pair.take)
    text = b'{"x": "%s"}\n' % (b"y" * (1 << 17))
    link.sendall(text[:-1] + b"\n")
    assert [len(message["x"]) for _peer, message in pair.take()] == [1 << 17]
    link.setblocking(False)
    sent, chunk = 0, b"z" * (1 << 16)
    while "node2" in pair.channels["node1"].links and sent < 1 << 21:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sent += link.send(chunk)
        assert pair.channels["node1"].receive(0.01, 0.0) == []
    assert sent < 1 << 20 and "node2" not in pair.channels["node1"].links


def test_a_peer_that_stops_reading_loses_its_connection_and_delays_no_other(pair):
    deaf, other = pair.connect("node2"), pair.connect("node3")
    wait_for(lambda: len(pair.channels["node1"].links) == 2, pair.take)
    started, piece = time.monotonic(), {"x": "y" * (1 << 16)}
    sent = 0
    while "node2" in pair.channels["node1"].links and sent < 2 * channel.MOST_WAITING:
        pair.channels["node1"].send("node2", piece)
        sent += 1 << 16
    assert channel.MOST_WAITING <= sent <= channel.MOST_WAITING + (1 << 20)
    pair.channels["node1"].send("node3", {"n": 1})
    assert json.loads(other.recv(100)) == {"n": 1} and time.monotonic() - started < 5
    assert ended(deaf)


def test_what_waits_is_sent_once_the_peer_reads_again(pair):
    link = pair.connect()
    wait_for(lambda: "node2" in pair.channels["node1"].links, pair.take)
    for number in range(20):
        pair.channels["node1"].send("node2", {"n": number, "x": "y" * (1 << 16)})
    assert pair.channels["node1"].links["node2"].waiting
    link.setblocking(False)
    data = bytearray()

    def read():
        pair.channels["node1"].receive(0.0, 0.0)
        with contextlib.suppress(BlockingIOError):
            data.extend(link.recv(1 << 20))

    wait_for(lambda: data.count(b"\n") == 20, read)
    assert [json.loads(line)["n"] for line in data.splitlines()] == list(range(20))


def test_a_newer_connection_takes_the_place_of_an_older_one(pair):
    older, stranger = pair.connect("node2"), pair.connect("node3")
    wait_for(lambda: len(pair.channels["node1"].links) == 2, pair.take)
    newer = pair.connect("node2", after=b'{"n": 2}\n')
    assert pair.take() == [("node2", {"n": 2})]
    assert ended(older)
    pair.channels["node1"].send("node2", {"n": 3})
    pair.channels["node1"].send("node3", {"n": 4})
    assert json.loads(newer.recv(100)) == {"n": 3} and json.loads(stranger.recv(100)) == {"n": 4}


def test_the_end_of_an_older_connection_leaves_the_newer_one(pair):
    older = pair.connect("node2")
    wait_for(lambda: "node2" in pair.channels["node1"].links, pair.take)
    newer = pair.connect("node2")
    older.close()
    pair.take()
    pair.channels["node1"].send("node2", {"n": 3})
    assert json.loads(newer.recv(100)) == {"n": 3}


def test_a_call_that_ended_is_made_again(pair):
    pair.exchange("node2", "node1", {"n": 1})
    process = pair.channels["node2"].links["node1"].process
    process.kill()
    pair.exchange("node2", "node1", {"n": 2})
    assert process.returncode is not None  # no zombie is left
    assert pair.channels["node2"].links["node1"].process is not process


def test_calls_of_a_peer_that_does_not_answer_become_rare(tmp_path, monkeypatch):
    made, calls = channel.Channel(str(tmp_path / "s"), {"node1": ["ssh"]}, None), []

    def refuse(_argv, **_more):
        calls.append(now)
        raise OSError

    monkeypatch.setattr(channel.subprocess, "Popen", refuse)
    for now in range(100, 125):
        made.receive(0.0, float(now))
    made.close()
    assert [later - call for call, later in zip(calls, calls[1:])] == [1, 2, 4, 5, 5, 5]


def test_a_peer_that_has_answered_is_called_at_once_after_a_loss(pair):
    pair.exchange("node1", "node2", {"n": 1})
    made, now = pair.channels["node2"], time.monotonic()
    assert made._due["node1"][1] == channel.AGAIN
    made._drop(made.links["node1"])
    made.receive(0.0, now)
    assert "node1" in made.links


def test_a_command_that_cannot_be_started_is_no_error(tmp_path):
    made = channel.Channel(str(tmp_path / "s"), {"node1": ["/nowhere/ssh"]}, None)
    assert made.receive(0.0, 0.0) == [] and made.links == {}
    made.close()


def test_what_a_called_peer_says_beside_the_messages_is_logged_and_commands_no_terminal(tmp_path):
    log = io.StringIO()
    calls = {"node1": ["sh", "-c", "printf '\\033[2J refused\\n' >&2; exec cat"]}
    made = channel.Channel(str(tmp_path / "s"), calls, log)
    made.receive(0.1, 1.0)
    assert select.select([made.links["node1"].process.stderr], [], [], 10)[0]
    made.close()
    assert log.getvalue() == "\\x1b[2J refused\n"


def test_a_full_disk_ends_no_channel(tmp_path):
    calls = {"node1": ["sh", "-c", "echo refused >&2; exec cat"]}
    with open("/dev/full", "w", encoding="utf-8") as log:
        made = channel.Channel(str(tmp_path / "s"), calls, log)
        made.receive(0.1, 1.0)
        assert select.select([made.links["node1"].process.stderr], [], [], 10)[0]
        made.close()
        with contextlib.suppress(OSError):
            log.close()


def test_who_calls_whom():
    nodes = ["c", "a", "b"]
    peers = {node: channel.peers_called(node, nodes, nodes) for node in nodes}
    calls = {node: channel.calls_of(peers[node], "/k/config", 4) for node in "abc"}
    assert calls == {
        "c": {},
        "a": {"c": ["ssh", "-F", "/k/config", "c", "talk 4"]},
        "b": {peer: ["ssh", "-F", "/k/config", peer, "talk 4"] for peer in ("c", "a")},
    }


def test_a_socket_has_a_path_that_the_kernel_takes():
    long = relay.socket_path("20261120-103501-" + "x" * 64 + "-1f2e", "n" * 253)
    paths = {relay.socket_path(run, node) for run in (RUN, "r") for node in ("node1", "node2")}
    assert len(long) < 108 and len(paths) == 4


def test_a_relay_without_a_supervisor_says_so(tmp_path):
    done = subprocess.run(
        call_of(tmp_path / "s", "node2"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("trainyard: no supervisor of this run is here: ")


@pytest.mark.parametrize("side", ["caller", "supervisor"])
def test_a_relay_ends_with_either_side(pair, side):
    argv = call_of(pair.paths["node1"], "node2")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait_for(lambda: "node2" in pair.channels["node1"].links, pair.take)
        if side == "caller":
            process.stdin.close()
        else:
            pair.channels["node1"]._drop(pair.channels["node1"].links["node2"])
        assert process.wait(timeout=10) == 0
        wait_for(lambda: "node2" not in pair.channels["node1"].links, pair.take)


def test_a_socket_that_was_left_is_replaced_and_a_name_is_its_own(tmp_path):
    (tmp_path / "s").write_text("left")
    made = channel.Channel(str(tmp_path / "s"), {}, sys.stderr)
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(tmp_path / "s"))
    made.receive(0.1, 0.0)
    made.close()
    assert ended(link)


def test_a_caller_that_takes_the_name_of_a_called_peer_raises_nothing(pair):
    """Its first line and a message on the older connection come in one look."""
    made = pair.channels["node2"]
    pair.exchange("node1", "node2", {"n": 1})
    older = made.links["node1"]
    link = socket.socket(socket.AF_UNIX)
    link.connect(pair.paths["node2"])
    link.sendall(b'{"peer": "node1"}\n')
    made.receive(0.2, 0.0)
    (newer,) = [
        key.data
        for key in made.selector.get_map().values()
        if key.data is not None and key.data is not older
    ]
    assert made._read(newer, 0.0) == [] and made.links["node1"] is newer
    assert made._read(older, 0.0) == []


def test_nodes_without_a_vote_do_not_call_each_other():
    calls = [channel.peers_called(node, ["a", "b", "c", "d"], ["a", "b"]) for node in "abcd"]
    assert calls == [[], ["a"], ["a", "b"], ["a", "b"]]


def waits(made, seconds):
    """Return whether a channel waits so long for messages."""
    began = time.monotonic()
    made.receive(seconds, began)
    return time.monotonic() - began > 0.9 * seconds


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Python before 3.9")
def test_the_end_of_a_watched_process_is_known_at_once_and_once(pair):
    made, process = pair.channels["node1"], subprocess.Popen(["sleep", "60"])
    assert made.watch(process.pid) and made.watch(process.pid)
    assert waits(made, 0.2)
    process.kill()
    assert not waits(made, 20)
    assert not made.watch(process.pid)
    assert waits(made, 0.2)
    process.wait()


def test_what_ended_before_it_was_watched_keeps_nobody_awake(pair):
    process = subprocess.Popen(["true"])
    process.wait()
    made = pair.channels["node1"]
    for pid in (process.pid, None, process.pid):
        assert not made.watch(pid)
        assert waits(made, 0.2)


def test_a_kernel_that_cannot_wait_for_a_process_costs_nothing_but_time(pair, monkeypatch):
    made, process = pair.channels["node1"], subprocess.Popen(["sleep", "60"])
    with monkeypatch.context() as patch:

        def register(*_which):
            raise OSError("no space for another watch")

        patch.setattr(made.selector, "register", register)
        assert not made.watch(process.pid)
    made.watch(None)
    process.kill()
    process.wait()


def test_what_waits_for_a_peer_is_sent_soon(pair):
    pair.exchange("node1", "node2", {"kind": "first"})
    made = pair.channels["node1"]
    link = made.links["node2"]
    link.waiting, link.flush = b"{}", lambda: True  # the peer is slow
    assert not waits(made, 20)


def test_only_the_last_watched_process_counts(pair):
    made, processes = pair.channels["node1"], [subprocess.Popen(["sleep", "60"]) for _ in "12"]
    for process in processes:
        made.watch(process.pid)
    processes[0].kill()
    assert waits(made, 0.2)
    made.watch(None)
    processes[1].kill()
    assert waits(made, 0.2)
    for process in processes:
        process.wait()
