# SPDX-License-Identifier: Apache-2.0
"""The gate of a run whose nodes begin its attempts: who may talk, and of which attempts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import peer_gate, relay
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import mesh_gate
from core_support import RUN, attempt_files, open_gate, put

REFUSED = mesh_gate.REFUSED


class Gate:
    """The gate of attempt 1 on node2, called as sshd does for a peer, and what it led to."""

    def __init__(self, folder, monkeypatch):
        self.credential = os.path.dirname(open_gate(folder, "node2", ["node1", "node2"]))
        self.machine = Path(self.credential, "machine.json")
        self.base = json.loads(self.machine.read_text())["base"]
        self.monkeypatch, self.led = monkeypatch, []
        monkeypatch.setattr(relay, "relay", lambda *way: self.led.append(("relay", *way)) or 0)
        monkeypatch.setattr(
            peer_gate.heartbeat, "main", lambda *way: self.led.append(("beat", *way)) or 0
        )
        monkeypatch.setattr(peer_gate, "serve", lambda *way: self.led.append(("pull", *way)) or 0)
        monkeypatch.setattr(peer_gate.os, "nice", lambda _step: 0)
        monkeypatch.setattr(
            peer_gate.peers, "stop_for_peer", lambda *way: self.led.append(("stop", *way)) or 0
        )

    def note(self, **changes):
        """Change what the start noted for this machine."""
        self.machine.write_text(json.dumps({**json.loads(self.machine.read_text()), **changes}))

    def call(self, words, peer="node1", number="1"):
        """Return (exit code, what was reached) of a call."""
        self.led.clear()
        self.monkeypatch.setenv("SSH_ORIGINAL_COMMAND", words)
        code = peer_gate.main([RUN, number, peer], self.credential)
        return code, list(self.led)


@pytest.fixture
def gate(tmp_path, monkeypatch):
    return Gate(tmp_path, monkeypatch)


def test_a_peer_is_led_to_the_supervisor_of_this_node(gate):
    gate.note(supervised=True)
    way = ("relay", relay.socket_path(RUN, "node2"), "node1")
    assert gate.call("talk 1") == (0, [way])


@pytest.mark.parametrize("note", [{}, {"supervised": False}, {"supervised": None}])
def test_nobody_talks_where_a_controller_begins_the_attempts(gate, note):
    gate.note(**note)
    for words in ("talk 1", "talk 0", "talk 2"):
        assert gate.call(words) == (REFUSED, []), words


@pytest.mark.parametrize(
    "words",
    ["talk", "talk ", "talk x", "talk -1", "talk 1 2", "talk 1 node3", "talk 1 /run/user/0/x"]
    + ["Talk 1", "talk\t1", "talk 1;id", "talk ../1", "talk 01", "talks 1", "talk 1 --path=/x"],
)
def test_other_words_lead_nowhere(gate, words):
    gate.note(supervised=True)
    assert gate.call(words) == (REFUSED, [])


@pytest.mark.parametrize("peer", ["node2", "node9"])
def test_only_a_peer_of_the_run_talks(gate, peer):
    gate.note(supervised=True)
    assert gate.call("talk 1", peer=peer) == (REFUSED, [])
    assert gate.call("talk 1", number="2") == (REFUSED, []), "a line of another attempt"


VERBS = {"stop": "stop {} lost", "beat": "beat {}", "pull": "pull {} output --server --daemon ."}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("supervised", [True, False])
def test_other_attempts_are_reached_where_the_nodes_begin_them(gate, verb, supervised):
    gate.note(supervised=supervised)
    plan = {"suite": {"checkpoints": {"folders": ["output"]}}}
    place = attempt_files(gate.base, plan, "node2", 7)
    put(place, {"output/4.pdparams": "x"})
    code, led = gate.call(VERBS[verb].format(7))
    if supervised:
        assert code == 0 and [way[0] for way in led] == [verb]
        assert str(led[0][1]).startswith(place)
        if verb != "pull":
            assert f"trainyard-{RUN}-7.service" in led[0]
    else:
        assert (code, led) == (REFUSED, [])


def test_its_own_attempt_needs_no_supervisor(gate):
    assert [gate.call(f"beat {number}")[0] for number in (0, 1, 2)] == [0, 0, REFUSED]
