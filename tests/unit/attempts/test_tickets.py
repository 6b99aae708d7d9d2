# SPDX-License-Identifier: Apache-2.0
"""Tickets of waiting starts: order, expiry, validation, and no two that block each other."""

from __future__ import annotations

import json
import os
import random

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    tickets,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import turn
from hypothesis import given, settings
from hypothesis import strategies as st

RUN = "20261120-103501-ppyoloe-1f2e"


def ticket(token, since=100.0, turn=False, run=RUN):
    return {"id": f"{run}-{token:016x}", "by": "alice@desk", "since": since, "turn": turn}


def ids(folder, now, **more):
    return [int(item["id"][-16:], 16) for item in tickets.list_living(folder, lambda: now, **more)]


def test_the_older_comes_first_and_a_turn_comes_before_all(tmp_path):
    folder = str(tmp_path / "tickets")
    assert ids(folder, 10) == []
    for item in (ticket(2, 200.0), ticket(1, 100.0), ticket(3, 200.0), ticket(9, 900.0, True)):
        tickets.renew(folder, item, 10.0)
    assert ids(folder, 11) == [9, 1, 2, 3]
    tickets.remove(folder, ticket(1)["id"], 11.0)
    tickets.remove(folder, ticket(1)["id"], 11.0)
    assert ids(folder, 11) == [9, 2, 3]


def test_a_ticket_ends_with_its_controller_and_whoever_looks_removes_it(tmp_path):
    folder = str(tmp_path)
    tickets.renew(folder, ticket(1), 10.0)
    tickets.renew(folder, ticket(2, turn=True), 10.0)
    end = 10.0 + tickets.LEASE_SECONDS
    assert ids(folder, end - 1) == [2, 1]
    assert ids(folder, end, change=False) == [2] and len(os.listdir(folder)) == 2
    assert ids(folder, end) == [2] and len(os.listdir(folder)) == 1
    assert ids(folder, 10.0 + tickets.TURN_SECONDS) == []


def test_a_renewal_that_was_on_its_way_brings_no_removed_ticket_back(tmp_path):
    folder = str(tmp_path / "tickets")
    tickets.renew(folder, ticket(1), 10.0)
    tickets.remove(folder, ticket(1)["id"], 11.0)
    tickets.renew(folder, ticket(1), 11.5)
    tickets.renew(folder, ticket(2), 11.5)
    assert ids(folder, 12.0) == [2] and len(os.listdir(folder)) == 2  # one of them is the mark
    assert ids(folder, 11.0 + tickets.LEASE_SECONDS) == [2] and len(os.listdir(folder)) == 1
    tickets.remove(folder, ticket(2)["id"], 5000.0)
    assert ids(folder, 20.0) == [] and os.listdir(folder) == []  # after a boot


def test_what_another_start_writes_during_a_look_is_not_of_before_a_boot(tmp_path, monkeypatch):
    folder, times = str(tmp_path / "tickets"), iter([10.0, 12.0, 14.0, 16.0, 18.0, 20.0])
    tickets.renew(folder, ticket(1), 9.0)
    tickets.remove(folder, ticket(2)["id"], 9.0)
    read = tickets.read_mapping

    def renew_and_read(path, limit):
        if path.endswith(".json"):
            tickets.renew(folder, ticket(1), next(times))
        else:
            tickets.remove(folder, ticket(2)["id"], next(times))
        return read(path, limit)

    monkeypatch.setattr(tickets, "read_mapping", renew_and_read)
    found = tickets.list_living(folder, lambda: next(times))
    assert [item["id"] for item in found] == [ticket(1)["id"]]
    assert len(os.listdir(folder)) == 2  # the ticket, and the mark of the removed one


def test_a_ticket_of_before_a_boot_has_ended(tmp_path):
    tickets.renew(str(tmp_path), ticket(1), 5000.0)
    assert ids(str(tmp_path), 20.0) == []


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../../x"},
        {"id": ticket(7)["id"]},  # of another file
        {"by": "a\x1b[31m"},
        {"by": ["alice"]},
        {"by": "x" * 201},
        {"since": True},
        {"since": float("nan")},
        {"since": -1},
        {"turn": "yes"},
        {"expires": 1e9},
        {"renewed": "10"},
        {"renewed": 50.0},
    ],
)
def test_a_file_that_is_not_a_ticket_counts_as_ended(tmp_path, change):
    tickets.renew(str(tmp_path), ticket(1), 10.0)
    path = tmp_path / (ticket(1)["id"] + ".json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert ids(str(tmp_path), 11) == [] and not path.exists()


def test_a_name_that_leads_elsewhere_is_refused(tmp_path):
    for act in (
        lambda folder, name: tickets.remove(folder, name, 1.0),
        lambda folder, name: tickets.renew(folder, {"id": name}, 1.0),
    ):
        with pytest.raises(attempt_dir.AttemptError) as caught:
            act(str(tmp_path), "../other")
        assert caught.value.code == "wait.bad_ticket"


def test_a_start_removes_the_tickets_of_its_run_alone(tmp_path):
    other = RUN.replace("1f2e", "1f2f")
    for item in (ticket(1), ticket(2), ticket(3, run=other)):
        tickets.renew(str(tmp_path), item, 10.0)
    tickets.remove_of_run(str(tmp_path), RUN)
    assert ids(str(tmp_path), 11) == [3]


def test_the_place_counts_those_ahead_on_any_node():
    one, two, three = ({"id": name} for name in ("a", "b", "c"))
    assert tickets.place_of([[one, three], [two, three]], "c") == (3, 3)
    assert tickets.place_of([[one], []], "new") == (2, 2)
    assert tickets.place_of([[one, three], [one]], "a") == (1, 2)


class Start:
    """A waiting start of the model, one step at a time, in any order with other starts."""

    def __init__(self, token, wanted, since):
        self.ticket, self.wanted, self.state = ticket(token, since), wanted, "waiting"
        self.looks, self.order = {}, list(wanted)

    def step(self, site, choose):
        """Look at one node and perhaps start, or end."""
        if self.state == "running":
            self.state = "ended"
            for node in self.wanted:
                site.held[node] = None
            return
        node = choose(self.order)
        folder = site.folders[node]
        tickets.renew(folder, self.ticket, 10.0)
        self.looks[node] = {
            "held": [1] if site.held[node] else [],
            "tickets": tickets.list_living(folder, lambda: 10.0),
            "at": 0.0,
            "problem": "",
            "answered": True,
        }
        ready = len(self.looks) == len(self.wanted)
        if ready and turn.is_turn(self.looks, self.ticket["id"], 0.0):
            # All nodes or none, as ownership.run_when_free and the rescue of a start have it.
            if any(site.held[node] for node in self.wanted):
                self.looks.clear()
                return
            self.state = "running"
            for node in self.wanted:
                site.held[node] = self
                tickets.remove(site.folders[node], self.ticket["id"], 10.0)


class Site:
    def __init__(self, root, number):
        self.folders = [str(root / str(node)) for node in range(number)]
        self.held = dict.fromkeys(range(number))


WANTED = st.lists(
    st.sampled_from([(0, 1), (1, 0), (1, 2), (2, 0), (0, 1, 2), (2,), (1,)]), min_size=2, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(
    wanted=WANTED,
    times=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    seed=st.integers(0, 10**6),
)
def test_starts_that_overlap_never_block_each_other(tmp_path_factory, wanted, times, seed):
    """Whatever the order of looks, each start runs; and the clocks of first nodes may be equal."""
    site, chance = Site(tmp_path_factory.mktemp("site"), 3), random.Random(seed)
    starts = [Start(at, nodes, float(times[at])) for at, nodes in enumerate(wanted)]
    for _step in range(600):
        waiting = [start for start in starts if start.state != "ended"]
        if not waiting:
            return
        chance.choice(waiting).step(site, chance.choice)
    pytest.fail(f"blocked: {[start.state for start in starts]}")
