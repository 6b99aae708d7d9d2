# SPDX-License-Identifier: Apache-2.0
"""Why an attempt ended by what its nodes found, and whether the nodes begin another one."""

from __future__ import annotations

import json

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import restart_policy
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import (
    judgement,
    messages,
    node_attempts,
    run_state,
)
from conftest import sample_plan
from detached_support import order_of, point_of
from unit.diagnosis.test_verdict import OK, VALUE, end, node, stopped

NODES = ("node1", "node2")
PLAN = sample_plan(2, 1)["ranks"]
T = 1795166907.0
BAD = {"service_result": "exit-code", "exit_code": "exited", "exit_status": "250"}
ENDS = {
    "kill": ({"exit_code": 1}, {"signal": "SIGKILL"}),
    "raise": ({"exit_code": 1}, {"exit_code": 1}),
}


@pytest.fixture
def found(make_attempt):
    """Return what two nodes found after a real end: found("kill" or "raise")."""

    def collect(kind):
        answers = {}
        for rank, name in enumerate(NODES):
            event = {"event": "end", "rank": rank, "pid": 1, "time": T - rank, **ENDS[kind][rank]}
            sample, plan = f"paddle262_failure_{kind}_2x1", sample_plan(2, 1)
            home = make_attempt(name, sample, plan=plan, events=[event], exit=dict(BAD))
            answers[name] = evidence.collect(str(home), name)
        return answers

    return collect


def lost(step=None, saved=0):
    """Return what node1 found where node2 went without a word."""
    rank = end(0, signal="SIGTERM", at=1.0, last_step=step, saved_count=saved)
    return {"node1": node("node1", rank, unit=stopped("peer", at=0.5, source="node2"))}


def exited(step):
    """Return what both nodes found where rank 0 ended without a message."""
    rank = end(0, code=7, at=0.0, last_step=step)
    other = end(1, signal="SIGTERM", at=2.0, last_step=step)
    unit = stopped("peer", at=1.0, source="node1")
    return {"node1": node("node1", rank), "node2": node("node2", other, unit=unit)}


def apply(run, *values):
    for value in values:
        assert run.apply(value), value


def run_of(attempts=1, judged=(), point=None):
    """Return a run whose newest attempt is over. judged: verdicts of those before it."""
    run = run_state.RunState(point=point)
    for number in range(1, attempts + 1):
        plan = {"kind": "plan", "generation": 1, "attempt": number, "step": 0}
        apply(run, dict(plan, members=NODES), {"kind": "supersede", "attempt": number})
        if number < attempts:
            apply(run, judged[number - 1])
    return run


def test_a_lost_node_has_failed_by_a_fault_of_its_own():
    value = judge(run_of(), lost())
    assert value["failed"] == ["node2"] and value["broken"] == []  # it may come back as it was


def test_a_node_with_a_broken_device_is_broken():
    ecc = {"kind": "OSError", "text": "uncorrectable ECC error encountered", "origin": "python"}
    other = end(1, signal="SIGTERM", at=2.0)
    found = {
        "node1": node("node1", end(0, code=1, at=0.0, said=ecc)),
        "node2": node("node2", other, unit=stopped("peer", at=1.0, source="node1")),
    }
    value = judge(run_of(), found)
    assert value["verdict"]["cause"] == "device_error"
    assert value["failed"] == value["broken"] == ["node1"]


def test_a_checkpoint_that_all_know_of_is_progress_where_its_log_is_lost():
    judged = [judge(run_of(), lost())]
    judged.append(judge(run_of(2, judged), lost()))
    run = run_of(3, judged)
    assert not judge(run, lost())["saved"] and judge(run, lost())["delay"] > 0
    run.written_by = 3
    value = judge(run, lost())
    assert value["saved"] and value["trained"] and value["delay"] == 0


def test_who_ended_by_a_fault_of_the_training_has_not(found):
    assert judge(run_of(), found("kill"))["failed"] == []


def judge(run, answers, **order):
    value = judgement.judge(order_of("/x", **order), PLAN, run, answers)
    message = {
        "kind": "append",
        "term": 1,
        "prev_index": 0,
        "prev_term": 0,
        "commit": 0,
        "round": 1,
    }
    assert messages.is_valid(dict(message, entries=[[1, value]]), NODES)
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    return value


def test_a_killed_rank_is_named_and_the_run_goes_on(found):
    value = judge(run_of(), found("kill"))
    said = {key: value["verdict"][key] for key in ("outcome", "cause", "rank", "node")}
    assert said == {"outcome": "failed", "cause": "killed", "rank": 1, "node": "node2"}
    assert (value["kind"], value["attempt"], value["again"]) == ("verdict", 1, True)
    assert value["verdict"]["text"].startswith("FAILED: rank 1 on node2")
    assert (value["decision"]["number"], value["decision"]["of"]) == (1, 3)


def test_an_error_of_the_user_ends_the_run(found):
    value = judge(run_of(), found("raise"))
    assert value["verdict"]["cause"] == "python_exception" and value["again"] is False
    assert value["decision"]["code"] == "restart.cause_remains"


def test_the_verdict_keeps_no_more_than_a_message_can_carry(found):
    answers = found("kill")
    answers["node2"]["ranks"][0]["first_error"] = None
    value = judge(run_of(), answers)
    assert set(value["verdict"]) == {"outcome", "code", "cause", "rank", "node", "text"}
    assert len(json.dumps(value)) < 4 * judgement.LONGEST


def test_a_node_that_says_nothing_is_named_and_the_run_goes_on():
    value = judge(run_of(), lost())
    assert (value["verdict"]["node"], value["verdict"]["cause"]) == ("node2", "unreachable")
    assert judgement.SILENT in value["verdict"]["text"] and value["again"] is True


def test_a_node_that_could_not_start_says_why():
    reason = "attempt 2 did not start here: no space"
    answers = dict(lost(), node2={"node": "node2", "unreachable": reason})
    assert reason in judge(run_of(), answers)["verdict"]["text"]
    answers["node2"]["unreachable"] = "x" * 10**5
    assert len(judge(run_of(), answers)["verdict"]["text"]) <= judgement.LONGEST


@pytest.mark.parametrize("answer", [{"node": "node2"}, {"ranks": {}}, {"unreachable": None}, {}])
def test_an_answer_without_ranks_counts_as_silence(answer):
    value = judge(run_of(), dict(lost(), node2=answer))
    assert (value["verdict"]["node"], value["verdict"]["cause"]) == ("node2", "unreachable")


def test_a_node_that_is_not_of_the_plan_is_not_heard():
    stranger = {"node": "node3", "ranks": [{"rank": 0, "first_error": {"kind": "x"}}]}
    assert judge(run_of(), dict(lost(), node3=stranger)) == judge(run_of(), lost())


def test_the_first_restart_does_not_wait_and_later_ones_do():
    judged, delays = [], []
    for attempt in (1, 2, 3):
        value = judge(run_of(attempt, judged), lost())
        judged.append(value)
        delays.append(value["delay"])
    assert delays == [0.0, 20.0, 40.0]


def test_a_restart_after_a_newer_checkpoint_does_not_wait():
    judged = [judge(run_of(), lost())]
    value = judge(run_of(2, judged), lost(step={"step": 9}, saved=2))
    assert (value["delay"], value["trained"], value["saved"]) == (0.0, True, True)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_there_are_as_many_restarts_as_the_job_wants(limit):
    judged = []
    for attempt in range(1, limit + 2):
        value = judge(run_of(attempt, judged), lost(), max_restarts=limit)
        assert value["again"] is (attempt <= limit)
        judged.append(value)
    assert value["decision"]["reason"] == "max_restarts"


def test_restarts_without_progress_end():
    judged = []
    for attempt in range(1, restart_policy.MAX_FRUITLESS_RESTARTS + 2):
        value = judge(run_of(attempt, judged), lost(), max_restarts=99)
        judged.append(value)
    assert [value["again"] for value in judged] == [True, True, True, False]
    assert value["decision"]["reason"] == "no_progress"


def test_restarts_from_the_same_point_end():
    judged = []
    for attempt in range(1, restart_policy.MAX_FRUITLESS_RESTARTS + 2):
        run = run_of(attempt, judged, point={"digest": "a" * 64})
        judged.append(judge(run, lost(), max_restarts=99))
    assert [value["again"] for value in judged] == [True, True, True, False]


def test_progress_is_the_point_that_the_next_attempt_began_from():
    judged = []
    for attempt in range(1, 7):
        run = run_of(attempt, judged, point={"digest": f"{attempt}" * 64})
        value = judge(run, lost(), max_restarts=99)
        assert value["resume"] == {"digest": f"{attempt}" * 64} and value["again"]
        judged.append(value)


@pytest.mark.parametrize("step, again", [(None, False), ({"step": 3}, True)])
def test_an_end_without_a_reason_depends_on_the_training(step, again):
    """Whether it had made a step: the policy's class `trained`."""
    value = judge(run_of(), exited(step))
    assert restart_policy.restart_class(value["verdict"]["cause"])[0] == restart_policy.TRAINED
    assert value["again"] is again and value["trained"] is bool(step)


def test_a_completed_run_is_not_begun_again():
    launcher = {"exit_code": 0, "signal": None, "first_error": None}
    answers = {
        name: node(name, end(rank, code=0, at=0.0), unit=OK, launcher=launcher)
        for rank, name in enumerate(NODES)
    }
    value = judge(run_of(), answers)
    assert (value["verdict"]["outcome"], value["again"], value["decision"]) == (
        "completed",
        False,
        {},
    )


OLD, NEW = point_of(epoch=3), point_of(epoch=5, name="5", stem="5")
HELD = point_of(epoch=4, source="node2")
LEFT = point_of(epoch=5, attempt=2)


@pytest.mark.parametrize(
    "answers, point",
    [
        ([{"lacks": True, "holds": OLD}, {"holds": HELD}], HELD),
        ([{"lacks": True, "holds": OLD}, {"lacks": True, "holds": None}], OLD),
        ([{"lacks": True, "holds": None}, {}], None),
        ([{"lacks": True, "holds": dict(HELD, source="node9")}, {}], None),
        ([{"lacks": True, "holds": dict(HELD, path="x")}, {"holds": [1]}], None),
    ],
)
def test_an_older_checkpoint_stands_where_the_newest_one_is_lost(answers, point):
    run = run_of(point=dict(NEW, digest="1" * 64))
    run.step = node_attempts.order_of(NEW)
    found = {name: dict(node(name), **answer) for name, answer in zip(NODES, answers)}
    step = 0
    if point:
        step = node_attempts.order_of(point)
    assert judge(run, found)["instead"] == {"step": step, "point": point}


@pytest.mark.parametrize(
    "answers",
    [
        [{"holds": OLD}, {"holds": OLD}],  # each has begun, so that each has it
        [{"lacks": True, "holds": OLD}, {"holds": NEW}],
        [{"lacks": True, "holds": OLD}],  # the other one may have it
    ],
)
def test_the_newest_checkpoint_stays_where_a_node_may_have_it(answers):
    run = run_of(point=dict(NEW, digest=NEW["digest"]))
    run.step = node_attempts.order_of(NEW)
    found = {name: dict(node(name), **answer) for name, answer in zip(NODES, answers)}
    assert judge(run, found)["instead"] is None


@pytest.mark.parametrize("serves", [True, False])
def test_the_newest_checkpoint_stays_where_a_node_has_it_beside_a_newer_one(serves):
    """A superseded attempt may have left the newer one."""
    run = run_of(point=dict(NEW, digest="1" * 64))
    run.step = node_attempts.order_of(NEW)
    later = point_of(epoch=9, source="node2")
    answers = [{"lacks": True, "holds": OLD}, {"holds": later, "serves": serves}]
    found = {name: dict(node(name), **answer) for name, answer in zip(NODES, answers)}
    older = {"step": node_attempts.order_of(OLD), "point": OLD}
    assert judge(run, found)["instead"] == (None if serves else older)


def test_no_node_speaks_for_another():
    answers = exited(None)
    answers["node1"] = dict(answers["node2"], ranks=[end(1, code=1, at=0.0, said=VALUE)])
    assert judge(run_of(), answers)["verdict"]["cause"] != "python_exception"


@pytest.mark.parametrize(
    "answer", [{"node": [], "ranks": []}, {"node": "node2", "ranks": [{"rank": []}]}]
)
def test_an_answer_that_cannot_be_judged_ends_no_supervisor(answer):
    assert judge(run_of(), dict(lost(), node2=answer))["verdict"]["node"] == "node2"


@pytest.mark.parametrize(
    "answers, point",
    [
        ([{"holds": LEFT}, {"holds": HELD}], LEFT),
        ([{"holds": OLD}, {"holds": NEW, "saved": LEFT}], LEFT),
        ([{"holds": dict(OLD, attempt=2, epoch=2)}, {}], None),  # no newer one
        ([{"holds": NEW}, {}], None),  # of an attempt that was superseded
        ([{"holds": dict(LEFT, source="node9")}, {"saved": [1]}], None),
    ],
)
def test_a_newer_checkpoint_that_the_attempt_has_left_is_gone_on_from(answers, point):
    run = run_of(2, [judge(run_of(), lost())], point=OLD)
    run.step = node_attempts.order_of(OLD)
    found = {name: dict(lost()["node1"], node=name, **a) for name, a in zip(NODES, answers)}
    value = judge(run, found)
    assert (value["newer"] or {}).get("point") == point and value["saved"] is bool(point)
    apply(run, value)
    assert run.point == (point or OLD) and run.step == node_attempts.order_of(run.point)


def missed(holds1, holds2, lacks=True):
    """Return what two nodes found whose start failed. holds: each one's newest checkpoint."""
    text = {"unreachable": "attempt 2 did not start here", "lacks": lacks}
    return {"node1": dict(text, holds=holds1), "node2": dict(text, holds=holds2)}


def points_here():
    """Return (an older point, the newest one)."""
    files = {"5.pdopt": ["f", 3, "3" * 64]}
    newest = point_of(epoch=2, source="node1", files=files, digest=manifest.digest(files))
    return point_of(epoch=1, source="node2"), newest


def instead_of(answers, newest):
    run = run_of(1, point=newest)
    run.step = node_attempts.order_of(newest)
    return judge(run, answers)["instead"]


def test_a_lost_checkpoint_is_replaced_by_the_newest_that_a_node_has():
    older, newest = points_here()
    step = node_attempts.order_of(older)
    assert instead_of(missed(None, older), newest) == {"step": step, "point": older}
    assert instead_of(missed(None, None), newest) == {"step": 0, "point": None}
    stranger = dict(older, source="node9")
    assert instead_of(missed(stranger, {"digest": []}), newest) == {"step": 0, "point": None}


def test_a_checkpoint_that_may_be_there_is_not_given_up():
    older, newest = points_here()
    assert instead_of(missed(newest, older), newest) is None, "node1 has it"
    assert instead_of(missed(None, older, lacks=False), newest) is None, "nobody missed it"
    silent = {"node1": missed(None, older)["node1"]}
    assert instead_of(silent, newest) is None, "node2 says nothing"
