# SPDX-License-Identifier: Apache-2.0
"""A peer that lies in the network's proof: what an honest node answers then passes the gate, and
nobody else is blamed for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import (
    network_listener,
    peer_monitor,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.network import client, node_check
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.network import reachability
from core_support import ROOT

NODE, LIAR, HERE = "node1", "node2", "127.0.0.1"


@contextlib.contextmanager
def lying(words):
    """Serve words of a lying listener: {what is asked: answer}; gives the book that tells of it."""
    with socket.socket() as made:
        made.bind((HERE, 0))
        made.listen(64)

        def attend(connection):
            with connection, contextlib.suppress(OSError, ValueError), connection.makefile(
                "rb"
            ) as stream:
                for word in iter(lambda: network_listener.read_line(stream), None):
                    if word["do"] == "echo":
                        data = stream.read(word["size"])
                        words["echo"](connection) if "echo" in words else connection.sendall(data)
                    elif callable(words.get(word["do"])):
                        words[word["do"]](connection)
                    else:
                        answer = dict(
                            {"hello": {"node": LIAR, "id": "c1", "you": [HERE, 1], "age": 1}},
                            **words,
                        ).get(word["do"], {})
                        connection.sendall(json.dumps(answer).encode() + b"\n")
                    if word["do"] == "take":
                        network_listener.drained(connection, 1.5)
                        said = words.get("taken", {})
                        (
                            said(connection)
                            if callable(said)
                            else connection.sendall(json.dumps(said).encode() + b"\n")
                        )

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=attend, args=(made.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        port = made.getsockname()[1]
        yield {
            "node": LIAR,
            "address": HERE,
            "planned": [port],
            "ephemeral": [],
            "udp": None,
            "range": [1, 2],
            "failed": {},
        }
        made.shutdown(socket.SHUT_RDWR)


def answer(tmp_path, book, depth="quick", first=NODE):
    """Return what the honest node answers, as the gate has it; first: whose listener the nodes meet
    at.
    """
    own = {
        "listening": dict(book, node=NODE),
        "hcas": [],
        "interface": {"name": "lo", "mtu": 65536},
    }
    given = {
        "id": "c1", "node": NODE, "nodes": sorted([NODE, LIAR], key=first.__ne__), "address": HERE,
        "interface": "lo", "matrix": False, "depth": depth,
        "book": {NODE: own, LIAR: {"listening": book}}, "ports": book.get("planned", [])[:1],
    }  # fmt: skip
    found = node_check.try_links(None, str(tmp_path), given)
    sent = json.loads(json.dumps(dict(found, changed=False)))
    return answer_gate.validate("network_check", sent, {"state": "connected", "node": NODE})


def trickle(connection):
    """Send a byte now and then, for longer than any test waits; it comes to no end of a line."""
    for _number in range(200):
        connection.sendall(b" ")
        time.sleep(0.1)


def nest(connection):
    connection.sendall(b"[" * 4000 + b"\n")


@pytest.mark.parametrize("how", [trickle, nest])
@pytest.mark.parametrize("word", ["hello", "echo", "ping", "take", "taken", "done", "meet"])
def test_a_peer_that_trickles_or_nests_holds_no_honest_node_up(tmp_path, monkeypatch, word, how):
    """Its own ports are as good as unreached; the honest node answers soon, and none of its threads
    stays behind.
    """
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(client, "STREAM_SECONDS", 0.1)
    monkeypatch.setattr(network_listener, "ROUNDS_SECONDS", 1)
    before = set(threading.enumerate())
    with lying({word: how}) as book:
        began = time.monotonic()
        found = answer(tmp_path, book, "full", first=LIAR if word == "meet" else NODE)
        assert time.monotonic() - began < 12
        left = {
            thread.name
            for thread in set(threading.enumerate()) - before
            if "attend" not in thread.name and "serve" not in thread.name
        }
        assert not left
    said = {
        "hello": {trickle: "hello", nest: "stranger"}[how],
        "echo": {trickle: "large", nest: "large"}[how],
    }
    assert [row["why"] for row in found["unreached"]] == ([said[word]] if word in said else [])
    assert found["complete"] is False or word not in ("hello", "echo", "done")


def test_no_more_of_a_peers_ports_are_tried_than_the_plan_and_a_listener_have(tmp_path):
    with lying({}) as book:
        told = dict(book, planned=[*book["planned"], 1, 2, 3], ephemeral=list(range(1, 60)))
        found = answer(tmp_path, told)
    assert found["reached"] == {LIAR: book["planned"]} and [
        row["port"] for row in found["unreached"]
    ] == [1, 2, 3, 4]


def test_a_peer_that_claims_to_have_taken_more_than_was_sent_makes_no_way_look_fast(
    tmp_path, monkeypatch
):
    """Half of all ways decide which ones are slow, so a rate without bounds would accuse two
    others.
    """
    monkeypatch.setattr(client, "STREAM_SECONDS", 0.2)
    rates = []
    for claimed in ({"bytes": 10**17, "seconds": 0.2}, {"bytes": 10**17, "seconds": 0.0011}):
        with lying({"taken": claimed}) as book:
            rates.append(answer(tmp_path, book, "full")["edges"][LIAR]["gbits"])
    assert 0 < rates[0] < 5000 and rates[1] < 20 * rates[0]


def test_a_peer_that_answers_slowly_is_not_asked_for_the_time_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.5)

    def late(connection):
        time.sleep(0.3)
        connection.sendall(b'{"time": 1.0}\n')

    with lying({"ping": late}) as book:
        began = time.monotonic()
        assert answer(tmp_path, book)["edges"][LIAR]["rtt"] > 0.2 and time.monotonic() - began < 4


def test_a_peer_that_is_through_for_all_others_ends_no_listener(tmp_path):
    spec = {
        "id": "c1",
        "node": NODE,
        "address": HERE,
        "ports": [0],
        "expected": [LIAR, "node3"],
        "directory": str(tmp_path),
    }
    listener = network_listener.Listener(spec)
    threading.Thread(target=listener.serve, daemon=True).start()
    peer = {"node": NODE, "address": HERE}

    def through(name, address):
        call, _made = client.attempt(
            {"id": "c1", "node": name, "address": address}, peer, listener.planned[0]
        )
        with contextlib.closing(call):
            return call.ask(do="done")

    assert through(LIAR, "127.0.0.2") == {}
    with pytest.raises((ValueError, OSError)):
        through("node3", "127.0.0.2")
    assert not listener.over.wait(0.3)
    assert through("node3", "127.0.0.3") == {} and listener.over.wait(5)


HELLO = {"node": LIAR, "id": "c1", "you": [HERE, 1], "age": 1}
HOSTILE = [{"a": {"b": {"c": 1}}}, float("nan"), 1e308, 10**300, "x" * 3000, -5, [], None, True]


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
@pytest.mark.parametrize("field", ["you", "age", "id", "node"])
def test_no_greeting_of_a_peer_makes_an_honest_node_unbelievable(tmp_path, field, value):
    hello = dict(HELLO, **{field: [value, 1] if field == "you" else value})
    hello = dict(hello, id="c2") if field == "age" else hello
    with lying({"hello": hello}) as book:
        assert set(answer(tmp_path, book)["reached"]) == {LIAR}


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_no_clock_of_a_peer_makes_an_honest_node_unbelievable(tmp_path, value):
    with lying({"ping": {"time": value}}) as book:
        assert answer(tmp_path, book)["reached"] == {LIAR: book["planned"]}


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
@pytest.mark.parametrize("field", ["bytes", "seconds"])
def test_no_count_of_a_peer_makes_an_honest_node_unbelievable(tmp_path, monkeypatch, field, value):
    monkeypatch.setattr(client, "STREAM_SECONDS", 0.1)
    with lying({"taken": dict({"bytes": 1, "seconds": 1.0}, **{field: value})}) as book:
        assert answer(tmp_path, book, "full")["reached"] == {LIAR: book["planned"]}


def test_a_listener_that_names_another_node_costs_the_others_nothing(tmp_path):
    with lying({}) as book:
        pass
    assert answer(tmp_path, dict(book, node="nobody"))["reached"] == {LIAR: []}


@pytest.mark.parametrize("part", ["address", "planned", "ephemeral", "udp"])
def test_a_listener_that_tells_a_part_costs_the_others_nothing(tmp_path, part):
    with lying({}) as book:
        pass
    assert answer(tmp_path, {key: value for key, value in book.items() if key != part}, "full")[
        "reached"
    ] == {LIAR: []}


@pytest.mark.parametrize(
    "field, value",
    [("node", "node1"), ("address", "127.0.0.9"), ("ephemeral", None), ("range", None)],
)
def test_a_listener_tells_of_its_own_node_alone(field, value):
    with lying({}) as book:
        pass
    given, said = (
        {"state": "listening", "node": LIAR, "address": HERE},
        {"rival": None, "hcas": [], "interface": {"name": "lo", "mtu": 1}},
    )
    assert (
        answer_gate.validate("network_check", dict(said, listening=book), given)["listening"]
        == book
    )
    with pytest.raises(answer_gate.InvalidAnswer, match=field):
        answer_gate.validate(
            "network_check", dict(said, listening=dict(book, **{field: value})), given
        )


def recorded():
    """Return (plan, results) of a real proof in which two nodes do not reach each other."""
    return (lambda data: (data["plan"], data["results"]))(
        json.loads((ROOT / "tests/fixtures/network/cut_off.json").read_text())
    )


ODD = (None, True, -1, 2**62, 1e300, "", "x", "node1", [], [None], {}, {"a": {"b": None}})


def changes(value, path=()):
    """Yield (path, other value) of every field of an answer; DROP takes a field away."""
    for key, item in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from (((*path, key), odd) for odd in (*ODD, "DROP"))
        yield from changes(item, (*path, key))


def set_at(value, path, odd):
    """Return a copy of plain data in which one place has another value, or is gone."""
    made = place = json.loads(json.dumps(value))
    for word in path[:-1]:
        place = place[word]
    if odd == "DROP":
        del place[path[-1]]
    else:
        place[path[-1]] = odd
    return made


def test_whatever_the_gate_lets_through_is_judged():
    plan, results = recorded()
    for edge in (edge for result in results.values() for edge in result["edges"].values()):
        edge.pop("mss", None)  # an earlier version measured it
    judged, liar = 0, list(results)[-1]
    for path, odd in changes(results[liar]):
        try:
            lied = answer_gate.validate(
                "network_check", set_at(results[liar], path, odd), {"node": liar}
            )
        except answer_gate.InvalidAnswer:
            continue
        found = reachability.judge(
            plan, {**results, liar: lied}, {"bandwidth": 1, "clock_seconds": {"stop": 60}}
        )
        judged += len(findings.lines(found)) > 0
    assert judged > 50


def test_a_neighbour_that_sends_without_end_takes_neither_memory_nor_time():
    watch = peer_monitor.Neighbour(
        {"nodes": [{"name": NODE}, {"name": LIAR, "address": HERE}]}, NODE, {"attempt": 1}, 0
    )
    watch.call = subprocess.Popen(
        ["/bin/sh", "-c", "exec yes | tr -d '\\n'"], stdout=subprocess.PIPE
    )
    os.set_blocking(watch.call.stdout.fileno(), False)
    until, most = time.monotonic() + 3, 0
    try:
        while watch.call is not None and time.monotonic() < until:
            watch.listen(1.0)
            most = max(most, len(watch.rest))
        assert watch.call is None and most < 1 << 18
    finally:
        watch.hang_up() if watch.call else None
