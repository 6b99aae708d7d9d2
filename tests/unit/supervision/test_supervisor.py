# SPDX-License-Identifier: Apache-2.0
"""One node's part: leases, processes, and what a leader does not do too soon."""

from __future__ import annotations

import random

import pytest
import supervision_support as simulator
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import supervisor

PLAN = {"kind": "plan", "generation": 1, "attempt": 1, "members": ["a", "b"], "step": 0}
AT = 4.0  # the time of a question


@pytest.fixture
def member():
    """A node that follows b and knows that it is to train in attempt 1."""
    made = supervisor.Supervisor("a", ("a", "b", "c"), 2, None, 0.0, random.Random(1))
    message = {
        "kind": "append",
        "term": 1,
        "prev_index": 0,
        "prev_term": 0,
        "commit": 2,
        "round": 1,
    }
    made.receive("b", dict(message, entries=[[1, None], [1, PLAN]]), 0.5)
    made.take_outbox()
    return made


def question(made):
    """Return the number of the newest question."""
    return [m["nonce"] for _to, m in made.take_outbox() if m["kind"] == "ask_lease"][-1]


def ask(made, now):
    """Let time pass until a node has asked, and return the number of its question."""
    made.tick(now)
    return question(made)


def answer(number, attempt=1):
    """Return a leader's answer to a question."""
    return {"kind": "lease", "nonce": number, "attempt": attempt}


def test_a_lease_lasts_from_the_question(member):
    number = ask(member, AT)
    member.receive("b", answer(number), AT + 10.0)
    assert member.lease == (1, AT + supervisor.LEASE)
    assert [action["do"] for action in member.take_actions()] == ["start"]


def test_a_question_is_answered_once_and_in_time(member):
    number = ask(member, AT)
    ask(member, AT + supervisor.LEASE)
    member.receive("b", answer(number), AT + supervisor.LEASE + 0.1)
    assert member.lease[0] == 0 and member.take_actions() == []


def test_nothing_starts_once_the_lease_is_over(member):
    number = ask(member, AT)
    member.report = supervisor.Report(0, True, False, False, 0)  # something is still ending
    member.receive("b", answer(number), AT + 0.1)
    member.report = supervisor.IDLE
    member.take_actions()
    member.tick(AT + supervisor.LEASE)
    assert member.take_actions() == []


def test_processes_end_with_the_lease_and_are_told_once(member):
    number = ask(member, AT)
    member.receive("b", answer(number), AT + 0.1)
    member.take_actions()
    member.report = supervisor.Report(1, True, False, False, 0)
    member.tick(AT + supervisor.LEASE - 0.1)
    assert member.take_actions() == []
    member.tick(AT + supervisor.LEASE)
    member.tick(AT + supervisor.LEASE + 1.0)
    assert member.take_actions() == [{"do": "end", "attempt": 1}]


def begun(seed):
    """Return a world without faults in which an attempt trains, or None for another leader."""
    world = simulator.World(seed, simulator.load(), size=2, spares=1)
    world.loss, world.delay = 0.0, 0.05
    for function in (world.train, world.check_overlap, world.begin):
        world.at(0.5, function)
    world.run(25.0)
    (leader,) = [h for h in world.hosts.values() if h.supervisor.raft.role == "leader"]
    assert world.state.attempt == 1 and world.trained > 20.0
    if leader.name in world.state.members:
        return None
    return world, leader


def test_another_leader_ends_no_attempt_that_trains():
    world, leader = next(filter(None, map(begun, range(40))))
    leader.frozen_until = leader.thawed = 60.0
    world.run(60.0)
    assert world.state.attempt == 1 and world.trained > 58.0
    leaders = [h.name for h in world.hosts.values() if h.supervisor.raft.role == "leader"]
    assert leaders and leaders != [leader.name]


def test_a_killed_rank_is_answered_within_seconds():
    world, _leader = next(filter(None, map(begun, range(40))))
    world._kill(world.hosts[world.state.members[0]])
    world.run(45.0)
    assert world.state.attempt == 2 and not world.state.is_superseded
    assert world.started[2] < 25.0 + 3 * simulator.SECONDS["ASK"] + simulator.SECONDS["KILL"]


def test_who_is_no_member_gets_no_lease():
    world, leader = next(filter(None, map(begun, range(40))))
    leases = {host.name: host.supervisor.lease[0] for host in world.hosts.values()}
    assert leases == {**dict.fromkeys(world.state.members, 1), leader.name: 0}


def test_a_node_that_is_lost_has_time_to_end_what_it_runs():
    world, _leader = next(filter(None, map(begun, range(40))))
    lost = world.hosts[world.state.members[0]]
    lost.frozen_until = lost.thawed = 90.0
    while not world.state.is_superseded:
        world.run(world.now + 0.1)
    superseded = world.now
    assert superseded < 25.0 + simulator.SECONDS["LOST"] + 2.0
    world.run(60.0)  # the spare takes its place
    wait = simulator.SECONDS["LEASE"] + simulator.SECONDS["KILL"]
    assert superseded + wait - 0.1 <= world.started[2] < superseded + wait + 3.0


def test_what_is_still_ending_delays_the_next_attempt():
    world, _leader = next(filter(None, map(begun, range(40))))
    killed, other = (world.hosts[name] for name in world.state.members)
    world._kill(killed)
    while other.ending_at is None:
        world.run(world.now + 0.1)
    other.ending_at = ending = world.now + 4.0
    world.run(ending + 10.0)
    assert ending <= world.started[2] < ending + 5.0


WHY = {"a": {"said": "why"}}


def alone(again, delay=0.0, expected=WHY):
    """Return a node that is a run of its own, whose attempt 1 a controller has begun.

    expected: what its verdict is made from.
    """

    def judge(run, found):
        assert found == expected
        entry = {"kind": "verdict", "attempt": run.attempt, "again": again, "delay": delay}
        return dict(entry, verdict={}, decision={})

    first = supervisor.Beginning(1, ("a",), 90.0, 0, None, 90.0)
    made = supervisor.Supervisor("a", ("a",), 1, None, 0.0, random.Random(1), first, judge)
    pass_time(made, 0.0, 10.0, supervisor.Report(1, True, False, False, 0))
    assert made.run.attempt == 1 and made.take_actions() == []
    return made


def pass_time(made, start, end, report):
    for step in range(int((end - start) * 5) + 1):
        made.tell(report, start + step / 5)
        made.tick(start + step / 5)


FAILED = supervisor.Report(1, False, True, False, 0)


def test_the_next_attempt_waits_for_the_verdict_and_its_delay():
    made = alone(again=True, delay=7.0)
    pass_time(made, 10.0, 20.0, FAILED)
    assert (made.run.attempt, made.run.judged) == (1, 0), "nothing was found yet"
    pass_time(made, 20.0, 25.0, FAILED._replace(finding={"said": "why"}))
    assert (made.run.attempt, made.run.judged) == (1, 1), "the delay goes on"
    pass_time(made, 25.0, 30.0, FAILED._replace(finding={"said": "why"}))
    assert made.run.attempt == 2 and [a["do"] for a in made.take_actions()] == ["start"]


def test_a_verdict_against_a_restart_ends_the_run():
    made = alone(again=False)
    pass_time(made, 10.0, 120.0, FAILED._replace(finding={"said": "why"}))
    assert made.run.is_given_up and made.run.attempt == 1 and made.take_actions() == []


def test_what_a_node_found_after_an_earlier_attempt_is_not_heard():
    made = alone(again=True, expected={})
    pass_time(made, 10.0, 80.0, FAILED)
    assert made.run.attempt == 2
    made.request({"kind": "supersede", "attempt": 2}, 80.0)
    pass_time(made, 80.0, 160.0, FAILED._replace(finding={"said": "why"}))
    assert made.run.judged == 2


def test_a_finding_that_never_comes_holds_the_verdict_up_for_a_minute():
    made = alone(again=True, expected={})
    pass_time(made, 10.0, 5.0 + supervisor.FINDING, FAILED)
    assert made.run.judged == 0
    pass_time(made, 5.0 + supervisor.FINDING, 15.0 + supervisor.FINDING, FAILED)
    assert made.run.judged == 1


def found_newer(run, found):
    """Return the newest checkpoint of findings that have its step."""
    newest = max((finding["step"] for finding in found.values()), default=0)
    return {"step": newest, "point": None} if newest > run.step else None


FOUND = FAILED._replace(finding={"step": 9})
JUDGED_AT = 15.0 + supervisor.FINDING


def judged_without_a_finding():
    """Return a node that is a run of its own. Its next attempt begins 30 s after the verdict."""
    made = alone(again=True, delay=30.0, expected={})
    made.newer = found_newer
    pass_time(made, 10.0, JUDGED_AT, FAILED)
    assert (made.run.attempt, made.run.judged, made.run.step) == (1, 1, 0)
    return made


def test_what_is_found_after_the_verdict_counts_for_the_next_attempt():
    made = judged_without_a_finding()
    pass_time(made, JUDGED_AT, JUDGED_AT + 5.0, FOUND)
    assert (made.run.attempt, made.run.step) == (1, 9)
    pass_time(made, JUDGED_AT + 5.0, JUDGED_AT + 35.0, FOUND)
    assert made.run.attempt == 2 and made.take_actions()[0]["step"] == 9


def test_a_member_that_is_back_is_waited_for_while_it_reads():
    made = judged_without_a_finding()
    made._back["a"] = back = JUDGED_AT + 10.0
    pass_time(made, JUDGED_AT, back + supervisor.FINDING - 1.0, FAILED)
    assert made.run.attempt == 1, "the delay was over long ago"
    pass_time(made, back + supervisor.FINDING - 1.0, back + supervisor.FINDING + 1.0, FAILED)
    assert made.run.attempt == 2


def test_a_member_is_back_when_it_asks_after_a_silence():
    made = leader_of_three()
    made._seen, made._back = {"b": 100.0}, {"b": 1.0}
    question = {"nonce": 1, "report": list(supervisor.IDLE), "over": 0}
    for now, since in ((100.0 + supervisor.LOST, 1.0), (130.0, 130.0), (131.0, 130.0)):
        made._on_ask_lease("b", question, now)
        assert made._back["b"] == since


def leader_of_three():
    """Return the leader of a and b, which train, and a spare s. b does not answer any more."""
    plan = dict(PLAN, attempt=1)
    made = supervisor.Supervisor("a", ("a", "b", "s"), 2, None, 0.0, random.Random(1))
    made.raft.role, made.raft.term, made.raft.leader = "leader", 1, "a"
    made.run.apply(plan)
    made.run.apply({"kind": "supersede", "attempt": 1})
    made._seen = {"a": 100.0, "s": 100.0}
    return made


def test_a_new_leader_waits_for_the_leases_of_those_before_it():
    made = leader_of_three()
    made._note_leading(100.0)
    made._seen = {"a": 100.0, "s": 100.0}
    waits = 100.0 + supervisor.LEASE + supervisor.KILL
    assert [made._may_begin(now) for now in (waits - 0.1, waits)] == [False, True]


@pytest.mark.parametrize("can_join, members", [(True, ["a", "s"]), (False, None)])
def test_a_spare_that_another_run_holds_is_not_chosen(can_join, members):
    made = leader_of_three()
    made._reports = {"s": supervisor.IDLE._replace(can_join=can_join)}
    plan = made._next_plan(100.0)
    assert (plan and plan["members"]) == members


def test_who_trained_goes_on_whatever_still_holds_it():
    made = leader_of_three()
    made._seen["b"] = 100.0
    made._reports = {"b": supervisor.IDLE._replace(can_join=False)}
    plan = made._next_plan(100.0)
    assert (plan["members"], plan["by"]) == (["a", "b"], "a")


def test_the_caller_may_choose_the_members():
    made = leader_of_three()
    asked = []

    def choose(run, ready, may_be_fewer):
        asked.append((run.attempt, ready, may_be_fewer))
        return ("s", "a")

    made.choose = choose
    assert made._next_plan(100.0)["members"] == ["s", "a"] and asked == [(1, ["a", "s"], True)]
    made.choose = lambda *_given: ()
    assert made._next_plan(100.0) is None


def first_of_two():
    """Return the leader of a and b, which a controller has started. Its own lease ends at 90 s."""
    first = supervisor.Beginning(1, ("a", "b"), 90.0, 0, None, 90.0)
    made = supervisor.Supervisor("a", ("a", "b", "c"), 2, None, 0.0, random.Random(1), first)
    return made, first


def test_a_controllers_attempt_is_agreed_on_once_all_its_nodes_have_asked():
    made, first = first_of_two()
    made._seen = {"a": 10.0}
    assert made._first_plan(first, 10.0) is None
    assert made._first_plan(first, 90.0 + supervisor.SKEW)["members"] == ["a", "b"]
    made._seen["b"] = 10.0
    assert made._first_plan(first, 10.0)["members"] == ["a", "b"]


def test_a_lost_node_trains_by_the_controllers_lease_no_longer_than_it_was_granted():
    made, _first = first_of_two()
    made.run.attempt = 1
    assert not made._is_agreed(1000.0)
    made._planned_at = 20.0
    assert not made._is_agreed(20.0 + 90.0 + supervisor.KILL - 0.1)
    assert made._is_agreed(20.0 + 90.0 + supervisor.KILL)
    made.run.attempt = 2
    assert made._is_agreed(0.0)


def test_fewer_nodes_than_before_begin_after_a_while():
    made = leader_of_three()
    made.least, made._since, made._seen = 1, 100.0, {"a": 200.0}
    assert made._next_plan(100.0 + supervisor.PATIENCE - 0.1) is None
    assert made._next_plan(100.0 + supervisor.PATIENCE)["members"] == ["a"]
    made.least = 2
    assert made._next_plan(100.0 + supervisor.PATIENCE) is None


def test_an_answer_to_a_question_of_an_earlier_life_counts_nothing(member):
    number, state = ask(member, AT), member.raft.state()
    again = supervisor.Supervisor("a", ("a", "b", "c"), 2, state, AT, random.Random(2))
    for turn in range(number):  # as many questions as the earlier life had asked
        again.tick(AT + turn * supervisor.ASK)
    assert number * supervisor.ASK < supervisor.LEASE
    again.receive("b", answer(number), AT + number * supervisor.ASK)
    assert again.lease[0] == 0
