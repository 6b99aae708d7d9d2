# SPDX-License-Identifier: Apache-2.0
"""The network check of a node, tested on loopback addresses with real listeners and real
connections. Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import network_listener
from ansible_collections.trainyard.cluster.plugins.module_utils.network import client, node_check

ADDRESSES = {"node1": "127.0.0.2", "node2": "127.0.0.3", "node3": "127.0.0.4"}
NAMES = list(ADDRESSES)


def free_port():
    with socket.socket() as made:
        made.bind(("", 0))
        return made.getsockname()[1]


def free(address, port, seconds=10):
    """Return whether a port can be taken soon: on a busy machine the last threads still close
    theirs; TIME_WAIT lasts 60 s.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.socket() as made:
            made.bind((address, port))
            return True
        time.sleep(0.2)
    return False


@pytest.fixture
def site(tmp_path):
    """Start the listeners of three nodes, each as its unit would; gives {name: (listener, thread)},
    book and the start port.
    """
    port, started = free_port(), {}

    def start(name, **changes):
        folder = tmp_path / name
        folder.mkdir()
        expected = [peer for peer in NAMES if name in node_check.peers_of(NAMES, peer)]
        spec = {
            "id": "c1",
            "node": name,
            "address": ADDRESSES[name],
            "ports": [port],
            "expected": expected,
            "directory": str(folder),
        }
        listener = network_listener.Listener(dict(spec, **changes))
        thread = threading.Thread(target=listener.serve, daemon=True)
        thread.start()
        started[name] = (listener, thread)
        return listener

    yield start, started, port
    for listener, _thread in started.values():
        listener.over.set()


def spec_of(name, tmp_path, depth="quick", **changes):
    spec = {
        "id": "c1", "node": name, "address": ADDRESSES[name], "interface": "lo",
        "targets": node_check.peers_of(NAMES, name),
        "rounds": node_check.receivers_of(NAMES, name),
        "first": "node1", "count": 3, "depth": depth,
        "control": str(tmp_path / name / "control"),
    }  # fmt: skip
    return dict(spec, **changes)


def heard(made):
    """Return what comes until the other side ends it, as it may, with a reset."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while True:
            block = made.recv(4096)
            if not block:
                break
            found += block
    return found


def all_at_once(specs, book):
    found = {}
    threads = [
        threading.Thread(
            target=lambda spec=spec: found.update({spec["node"]: client.proven(spec, book)})
        )
        for spec in specs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_reach_all_measure_and_leave_nothing(site, tmp_path, monkeypatch):
    start, started, port = site
    monkeypatch.setattr(client, "STREAM_SECONDS", 0.6)
    book = {name: start(name).book() for name in NAMES}
    found = all_at_once([spec_of(name, tmp_path, "full") for name in NAMES], book)
    for name in NAMES:
        result = found[name]
        assert (
            result["unreached"] == []
            and result["seen_as"] == {}
            and result["through"] == sorted(node_check.peers_of(NAMES, name))
        )
        assert all(len(ports) == 5 and port in ports for ports in result["reached"].values())
        edge = result["edges"][node_check.receivers_of(NAMES, name)[0]]
        assert (
            edge["gbits"] > 0.01
            and edge["together"] == 3
            and edge["path_mtu"] == 65535
            and edge["rtt"] < 1
            and abs(edge["offset"]) < 1
        )
    for name, (_listener, thread) in started.items():
        thread.join(5)
        assert not thread.is_alive()  # all that were expected came
        assert free(
            ADDRESSES[name], port
        )  # no TIME_WAIT, no listener: a rank without SO_REUSEADDR gets its port


def test_the_ends_of_the_ephemeral_range_are_listened_on(site):
    first, last = network_listener.ephemeral_range()
    low, middle, high, _any = site[0]("node1").book()["ephemeral"]
    assert low - first < 32 and last - high < 32 and first < middle < last


def test_a_taken_port_is_data_and_the_others_are_open(site):
    start, _started, port = site
    with socket.socket() as made:
        made.bind((ADDRESSES["node1"], port))
        made.listen()
        book = start("node1").book()
    assert (
        book["failed"] == {str(port): "Address already in use"}
        and book["planned"] == []
        and len(book["ephemeral"]) == 4
    )


@pytest.mark.parametrize("changes, why", [({"node": "node3"}, "wrong"), ({"id": "c2"}, "other")])
def test_who_answers_is_asked(site, tmp_path, changes, why):
    start, _started, port = site
    start("node2", **changes)
    call, made = client.attempt(
        spec_of("node1", tmp_path), {"node": "node2", "address": ADDRESSES["node2"]}, port
    )
    assert call is None and made["why"] == why


def test_how_a_connection_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.3)
    spec, port = spec_of("node1", tmp_path), free_port()

    def why(peer, port, **changes):
        return client.attempt(dict(spec, **changes), {"node": "node2", "address": peer}, port)[1][
            "why"
        ]

    assert why(ADDRESSES["node2"], port) == "refused"
    assert why(ADDRESSES["node2"], port, address="192.0.2.77") == "source"
    with socket.socket() as made:
        made.bind((ADDRESSES["node2"], 0))
        made.listen(0)
        mute = made.getsockname()[1]
        assert why(ADDRESSES["node2"], mute) == "hello"  # the kernel connects, nobody speaks
        threading.Thread(
            target=lambda: made.accept()[0].sendall(b"SSH-2.0-x\n"), daemon=True
        ).start()
        answered = {why(ADDRESSES["node2"], mute) for _number in range(2)}
        assert answered & {"stranger", "timeout", "hello"}


def test_a_silent_peer_of_larger_packets_is_a_black_hole(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.3)
    with socket.socket() as made:
        made.bind((ADDRESSES["node2"], 0))
        made.listen()

        def greet():
            connection, _peer = made.accept()
            connection.recv(4096)
            connection.sendall(b'{"node": "node2", "id": "c1", "you": ["127.0.0.2", 1]}\n')
            time.sleep(1)

        threading.Thread(target=greet, daemon=True).start()
        _call, found = client.attempt(
            spec_of("node1", tmp_path),
            {"node": "node2", "address": ADDRESSES["node2"]},
            made.getsockname()[1],
        )
    assert found["why"] == "large"


def test_a_stranger_gets_nothing_done(site):
    start, started, port = site
    start("node1")
    for text in (
        b'{"do": "close", "id": "c1"}\n',
        b"GET / HTTP/1.0\r\n\r\n",
        b'{"do": "hello", "id": "x", "from": "a"}\n{"do": "close"}\n',
        b"[]\n",
    ):
        with socket.create_connection((ADDRESSES["node1"], port), 2) as made:
            made.sendall(text)
            answer = heard(made)
            assert b'"came"' not in answer and b"c1" not in answer  # nor does it learn the id
    # not even with the right id: closing is for its own node
    with socket.create_connection((ADDRESSES["node1"], port), 2) as made:
        made.sendall(b'{"do": "hello", "id": "c1", "from": "a"}\n{"do": "close"}\n')
        made.shutdown(socket.SHUT_WR)
        assert b'"came"' not in heard(made)
    assert started["node1"][1].is_alive()


def test_only_so_many_are_served_at_once(site, monkeypatch):
    start, _started, port = site
    monkeypatch.setattr(network_listener, "CONNECTIONS", 2)
    start("node1")
    with contextlib.ExitStack() as stack:
        answers = []
        for number in range(3):
            made = stack.enter_context(socket.create_connection((ADDRESSES["node1"], port), 10))
            made.sendall(b'{"do": "hello", "id": "c1", "from": "a%d"}\n' % number)
            with contextlib.suppress(ConnectionResetError):
                answers.append(made.recv(4096))
    assert [answer[:9] for answer in answers if answer] == [b'{"node": '] * 2


def test_a_datagram_of_another_check_is_not_answered_and_an_answer_is_small(site):
    book = site[0]("node1").book()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(10)
        made.connect((book["address"], book["udp"]))
        for data in (b"x" * 1000, b"c2 " + b"x" * 1000, b"c1 " + b"x" * 896):
            made.send(data)
        assert made.recv(4096) == b"c1 899"  # the first answer is the last datagram's


def test_a_listener_says_how_long_it_is_here_and_since_when_nobody_has_spoken(site, tmp_path):
    start, _started, port = site
    listener = start("node2")
    listener.began -= 9
    listener.last -= 9
    state = {"id": "c1", "node": "", "address": ""}

    def asked():
        call = client.Call(state, str(tmp_path / "node2" / "control"), 0)
        call.ask(do="hello", id="c1", **{"from": ""})
        return call.ask(do="state")

    assert [asked()[key] for key in ("age", "came")] == [9, 0] and asked()[
        "idle"
    ] > 8.9  # to ask is not to speak
    other = client.attempt(
        spec_of("node1", tmp_path, id="c2"), {"node": "node2", "address": ADDRESSES["node2"]}, port
    )[1]
    assert (other["why"], other["text"], other["age"]) == ("other", "", 9) and asked()[
        "idle"
    ] > 8.9  # a message of another check does not count
    call, _made = client.attempt(
        spec_of("node1", tmp_path), {"node": "node2", "address": ADDRESSES["node2"]}, port
    )
    assert asked()["came"] == 1 and asked()["idle"] < 5
    call.close()


def test_who_has_not_come_is_waited_for_once_and_rounds_have_an_end(site, monkeypatch):
    listener = site[0]("node1")
    started = time.monotonic()
    assert (
        listener.meet("node1", 0, 2, 0.5) == {"came": 1, "late": False}
        and time.monotonic() - started > 0.4
    )
    assert listener.last > started + 0.4  # waiting for others is no idleness
    started = time.monotonic()
    assert (
        listener.meet("node1", 1, 2, 30) == {"came": 1, "late": False}
        and time.monotonic() - started < 5
    )
    monkeypatch.setattr(network_listener, "ROUNDS_SECONDS", 0)
    assert listener.meet("node1", 2, 64, 30)["late"] and time.monotonic() - started < 5


def test_ways_that_there_is_no_time_for_are_said_to_be_unmeasured(monkeypatch):
    monkeypatch.setattr(client, "stream", lambda *_given: 1.0)
    answers = iter([{"came": 3, "late": False}, {"came": 3, "late": True}])
    monkeypatch.setattr(client, "meet", lambda *_given: next(answers))
    spec = {"rounds": ["b", "c"], "first": "a", "count": 3}
    peers = [{"node": "b"}, {"node": "c"}]
    found = client.carried(spec, peers, {"b": None, "c": None}, {"b": 1, "c": 1}, "own")
    assert found == {"b": {"gbits": 1.0, "together": 3}, "c": {"late": True}}
    monkeypatch.setattr(network_listener, "ROUNDS_SECONDS", -1)  # nor where nobody can be met
    assert client.carried(spec, peers, {"b": None, "c": None}, {"b": 1, "c": 1}, None)["b"] == {
        "late": True
    }


def test_a_sender_that_ends_later_gets_its_answer_all_the_same(site, tmp_path):
    """On a slow network or a busy machine, the last block is sent after the receiver has stopped
    counting.
    """
    _start, _started, port = site
    site[0]("node2")
    call, _made = client.attempt(
        spec_of("node1", tmp_path), {"node": "node2", "address": ADDRESSES["node2"]}, port
    )
    call.ask(do="take", seconds=0.2)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        call.socket.send(bytes(network_listener.BLOCK))
    call.socket.shutdown(socket.SHUT_WR)
    assert network_listener.read_line(call.stream)["bytes"] > 0
    call.close()
