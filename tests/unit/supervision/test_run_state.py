# SPDX-License-Identifier: Apache-2.0
"""What entries of a run's log change, and what late and doubled ones do not."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision.run_state import (
    RunState,
)


def plan(attempt, step=0, generation=1, members=("a", "b")):
    """Return the entry with which an attempt begins."""
    return {
        "kind": "plan",
        "generation": generation,
        "attempt": attempt,
        "members": list(members),
        "step": step,
    }


def after(*values):
    """Return (state, what the last entry changed)."""
    state, changed = RunState(), None
    for value in values:
        changed = state.apply(value)
    return state, changed


BEGUN = (plan(1),)
FAILED = (*BEGUN, {"kind": "supersede", "attempt": 1})
STOPPED = (*BEGUN, {"kind": "stop", "generation": 1})
SAVED = {"kind": "checkpoint", "attempt": 1, "step": 20}


def test_an_attempt_trains_on_its_members_until_it_is_superseded():
    state, changed = after(*BEGUN)
    assert changed and state.may_train("a", 1) and not state.may_train("c", 1)
    state, changed = after(*FAILED)
    assert changed and not state.may_train("a", 1)


@pytest.mark.parametrize(
    "values, changed",
    [
        ((plan(2),), False),
        ((*BEGUN, plan(2)), False),
        ((*FAILED, plan(2)), True),
        ((*FAILED, plan(1)), False),
        ((*FAILED, plan(2, generation=2)), False),
        ((*BEGUN, SAVED, FAILED[1], plan(2)), False),
        ((*BEGUN, SAVED, FAILED[1], plan(2, step=20)), True),
        ((*STOPPED, plan(2)), False),
        ((*STOPPED, {"kind": "open", "generation": 2}, plan(2)), False),
        ((*STOPPED, {"kind": "open", "generation": 2}, plan(2, generation=2)), True),
        ((*STOPPED, {"kind": "open", "generation": 3}), False),
        ((*BEGUN, {"kind": "open", "generation": 2}), False),
        ((*STOPPED, STOPPED[1]), False),
        ((*BEGUN, SAVED, SAVED), False),
        ((*FAILED, SAVED), False),
        ((*STOPPED, SAVED), False),
        ((*BEGUN, {"kind": "done", "attempt": 1}, plan(2)), False),
        ((*FAILED, {"kind": "done", "attempt": 1}), False),
        ((*FAILED, {"kind": "ended", "attempt": 1, "node": "c"}), False),
        ((None,), False),
        (({"voters": ["a"]},), False),
    ],
)
def test_what_an_entry_changes(values, changed):
    assert after(*values)[1] is changed


def judged(instead):
    return {"kind": "verdict", "attempt": 2, "again": True, "delay": 0.0, "instead": instead}


def test_an_older_checkpoint_stands_instead_of_a_lost_one():
    first = dict(judged(None), attempt=1)
    begun = (*BEGUN, SAVED, FAILED[1], first, plan(2, step=20))
    over = {"kind": "supersede", "attempt": 2}
    assert after(*begun, over, judged(None))[0].step == 20
    assert after(*begun, over, judged({"step": 10, "point": None}))[0].step == 10
    assert after(*begun, over, judged({"step": 30, "point": None}))[0].step == 20
    saved = dict(SAVED, attempt=2, step=30)
    assert after(*begun, saved, over, judged({"step": 10, "point": None}))[0].step == 30


def test_what_an_attempt_has_left_stands_where_it_is_newer():
    over, left = (*BEGUN, SAVED, FAILED[1]), {"step": 30, "point": {"name": "3"}}
    state, _changed = after(*over, dict(judged(None), attempt=1, newer=left))
    assert (state.step, state.point, state.written_by) == (30, {"name": "3"}, 1)
    state, _changed = after(*over, dict(judged(None), attempt=1, newer=dict(left, step=10)))
    assert (state.step, state.point) == (20, None)


LEFT = {"kind": "left", "attempt": 1, "step": 30, "point": {"name": "3"}}
VERDICT = dict(judged(None), attempt=1)


@pytest.mark.parametrize(
    "values, fits",
    [
        ((SAVED, FAILED[1], VERDICT), True),
        ((SAVED, FAILED[1]), False),  # the verdict is still to come
        ((SAVED,), False),
        ((SAVED, FAILED[1], VERDICT, plan(2, step=20)), False),
        ((SAVED, FAILED[1], dict(VERDICT, again=False)), False),
        ((SAVED, FAILED[1], dict(VERDICT, newer={"step": 30, "point": None})), False),
        ((SAVED, FAILED[1], VERDICT, {"kind": "stop", "generation": 1}), False),
    ],
)
def test_what_a_node_finds_after_the_verdict_counts_until_the_next_attempt(values, fits):
    state, changed = after(*BEGUN, *values, LEFT)
    assert changed is fits and (state.point == {"name": "3"}) is fits
    if fits:
        assert (state.step, state.written_by) == (30, 1)


def test_the_node_that_failed_last_is_the_last_one():
    state, _changed = after()
    for attempt, names in ((1, ["b"]), (2, []), (3, ["a"]), (4, ["b"])):
        for value in (plan(attempt), {"kind": "supersede", "attempt": attempt}):
            assert state.apply(value)
        verdict = {"kind": "verdict", "attempt": attempt, "again": True, "delay": 0.0}
        assert state.apply(dict(verdict, failed=names))
    assert state.failed == ["a", "b"]


def test_a_node_is_broken_by_the_newest_verdict_alone():
    state = RunState()
    for number, names in enumerate((["a"], []), 1):
        verdict = {"kind": "verdict", "attempt": number, "again": True, "delay": 0.0}
        assert state.apply(plan(number))
        assert state.apply({"kind": "supersede", "attempt": number})
        assert state.apply(dict(verdict, broken=names)) and state.broken == names


def test_an_attempt_has_ended_when_all_its_members_say_so():
    ended = [{"kind": "ended", "attempt": 1, "node": node} for node in "ab"]
    assert not after(*FAILED, ended[0])[0].has_ended()
    assert after(*FAILED, *ended)[0].has_ended()
    assert not after(*FAILED, *ended, plan(2))[0].has_ended()
