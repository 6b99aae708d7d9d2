# SPDX-License-Identifier: Apache-2.0
"""Rules of Raft that few schedules of the simulator need: one situation each."""

from __future__ import annotations

import random

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import raft

VOTERS = ("a", "b", "c")


def node(me="a", log=(), term=0, voted_for=None, voters=VOTERS, learners=()):
    """Return a node with a log of [term, value]."""
    saved = {"term": term, "voted_for": voted_for, "log": [list(entry) for entry in log]}
    return raft.Raft(me, voters, saved, 0.0, random.Random(1), learners)


def asked(term, last_index=0, last_term=0):
    """Return a request for a vote."""
    return {"kind": "ask_vote", "term": term, "last_index": last_index, "last_term": last_term}


def answered(term, match, number=1):
    """Return a follower's good answer to a round."""
    return {"kind": "appended", "term": term, "success": True, "match": match, "round": number}


def led(log=(), term=0, voters=VOTERS, learners=()):
    """Return a leader that b has voted for."""
    made = node(log=log, term=term, voters=voters, learners=learners)
    made.tick(10.0)
    for voter in voters[1:]:
        made.receive(voter, {"kind": "vote", "term": term + 1, "granted": True}, 10.0)
    assert made.role == "leader"
    made.take_outbox()
    return made


def votes(made):
    """Return {receiver: granted} of the votes in an outbox."""
    return {to: m["granted"] for to, m in made.take_outbox() if m["kind"] == "vote"}


def test_a_vote_outlives_a_restart():
    first = node()
    first.receive("b", asked(3), 1.0)
    assert votes(first) == {"b": True} and first.is_changed
    again = raft.Raft("a", VOTERS, first.state(), 2.0, random.Random(1))
    again.receive("c", asked(3), 2.0)
    again.receive("b", asked(3), 2.0)
    assert votes(again) == {"c": False, "b": True}


def test_a_vote_goes_to_a_log_that_is_as_new():
    made = node(log=[(1, None), (2, None)], term=2)
    made.receive("b", asked(3, last_index=9, last_term=1), 1.0)
    made.receive("c", asked(3, last_index=2, last_term=2), 1.0)
    assert votes(made) == {"b": False, "c": True}


def test_entries_of_older_terms_are_committed_with_one_of_the_leaders_own():
    """Figure 3.7 of the dissertation: a majority may have an old entry and lose it again."""
    made = led(log=[(1, None), (2, {"kind": "x"})], term=3)
    made.receive("b", answered(4, 2), 10.1)
    assert made.commit == 0
    made.receive("b", answered(4, 3), 10.2)
    assert made.commit == 3


def test_a_read_waits_for_an_entry_of_the_term_and_for_a_majority():
    made = led()
    assert made.begin_read(10.1) is None
    made.receive("b", answered(1, 1), 10.2)
    number = made.begin_read(10.3)
    assert number and not made.is_confirmed(number)
    made.receive("b", answered(1, 1, number - 1), 10.4)
    assert not made.is_confirmed(number)
    made.receive("c", answered(1, 1, number), 10.5)
    assert made.is_confirmed(number)


def test_voters_change_one_at_a_time():
    made = led()
    assert made.propose({"voters": ["a", "b"]}, 10.1) is None  # nothing of the term is committed
    made.receive("b", answered(1, 1), 10.2)
    assert made.propose({"voters": ["a"]}, 10.3) is None
    assert made.propose({"voters": ["a", "b"]}, 10.3) == 2
    assert made.voters() == ("a", "b")
    assert made.propose({"voters": ["a", "b", "d"]}, 10.4) is None
    made.receive("b", answered(1, 2), 10.5)
    assert made.propose({"voters": ["a", "b", "d"]}, 10.6) == 3


def test_a_leader_that_nobody_answers_stops_leading():
    made = led()
    made.receive("b", answered(1, 1), 11.0)
    made.tick(14.5)
    assert made.role == "leader"
    made.tick(15.1)
    assert (made.role, made.leader) == ("follower", None)


def test_a_node_that_was_cut_off_deposes_no_leader():
    made = node()
    made.receive("b", {"kind": "append", "term": 1, "prev_index": 0, "prev_term": 0,
                       "entries": [], "commit": 0, "round": 1}, 1.0)  # fmt: skip
    made.receive("c", asked(7), 2.0)
    assert made.term == 1 and votes(made) == {}
    made.receive("c", asked(7), 3.5)
    assert made.term == 7 and votes(made) == {"c": True}


def test_who_has_no_vote_does_not_stand():
    made = node("d")
    made.tick(100.0)
    assert (made.role, made.term) == ("follower", 0)


def receivers(made):
    """Return the receivers of the log in an outbox."""
    return [to for to, message in made.take_outbox() if message["kind"] == "append"]


def test_a_learner_gets_the_log_and_counts_nowhere():
    made = led(learners=("d", "e"))
    made.propose({"kind": "stop", "generation": 1}, 10.0)
    assert receivers(made) == ["b", "c", "d", "e"]
    for learner in "de":
        made.receive(learner, answered(1, match=2), 10.0)
    assert made.commit == 0  # of three voters only the leader has it
    made.receive("b", answered(1, match=2), 10.0)
    assert made.commit == 2 and receivers(made) == ["b", "c", "d", "e"]


def test_a_learner_is_not_asked_for_each_round_nor_for_a_read():
    made = led(learners=("d",))
    made.receive("b", answered(1, match=1), 10.0)
    made.take_outbox()
    number = made.begin_read(10.1)
    assert receivers(made) == ["b", "c"]
    made.receive("d", answered(1, match=1, number=number), 10.1)
    assert not made.is_confirmed(number)
    made.receive("b", answered(1, match=1, number=number), 10.2)
    assert made.is_confirmed(number)
    made.tick(10.1 + raft.HEARTBEAT)
    assert receivers(made) == ["b", "c"]


def test_reads_that_never_end_keep_no_news_from_a_learner():
    made = led(learners=("d",))
    made.receive("b", answered(1, match=1), 10.0)
    made.take_outbox()
    told = []
    for tenth in range(1, 50):
        made.begin_read(10.0 + tenth / 10)
        made.tick(10.0 + tenth / 10)
        told += receivers(made)
    assert told.count("d") == 2


def test_a_learner_never_stands_for_election():
    made = node(me="d", learners=("d",))
    made.tick(1000.0)
    assert made.role == "follower" and made.take_outbox() == []


def test_a_leader_that_lies_replaces_nothing_that_is_committed():
    made = node(log=[(1, {"kind": "stop"}), (1, None)], term=1)
    sent = {"kind": "append", "term": 1, "prev_index": 2, "prev_term": 1, "entries": [],
            "commit": 1, "round": 1}  # fmt: skip
    made.receive("b", sent, 1.0)
    made.take_outbox()
    other = [[7, {"kind": "done"}]]
    for place, sender in ((0, "c"), (1, "b")):
        forged = dict(sent, term=7, prev_index=place, prev_term=place, entries=other, commit=9)
        made.receive(sender, forged, 2.0)
    answers = [to for to, message in made.take_outbox() if message["kind"] == "appended"]
    assert made.denied_by == "c" and answers == ["b"]
    # The second entry was not committed, so a new leader may replace it.
    assert [tuple(entry) for entry in made.log] == [(1, {"kind": "stop"}), (7, {"kind": "done"})]


def of_term(kind, term):
    """Return a message of any kind."""
    fields = {"last_index": 9, "last_term": 9, "granted": False, "prev_index": 0, "prev_term": 0,
              "entries": [], "commit": 0, "round": 1, "success": True, "match": 0}  # fmt: skip
    return {"kind": kind, "term": term, **fields}


@pytest.mark.parametrize("kind", ["ask_vote", "vote", "append", "appended"])
def test_a_term_beyond_all_others_is_not_taken_at_once(kind):
    made = node(term=1)
    made.receive("b", of_term(kind, (1 << 62) - 1), 99.0)
    assert made.term == 1 + raft.MOST_AHEAD


def test_nodes_of_which_one_was_lied_to_come_together_again():
    ahead, behind = node(term=1), node(term=1)
    for step in (1, 2):
        ahead.receive("c", of_term("vote", 1 + step * raft.MOST_AHEAD), 1.0)
    for now in (2.0, 3.0):
        behind.receive("b", asked(ahead.term), now)
    assert behind.term == ahead.term and votes(behind) == {"b": True}


def test_a_single_voter_tells_its_learners_at_once_what_is_committed():
    made = led(voters=("a",), learners=("d",))
    made.propose(None, 10.0)
    last = [m for to, m in made.take_outbox() if to == "d"][-1]
    assert last["commit"] == made.commit == 2
