# SPDX-License-Identifier: Apache-2.0
"""Plans of the teams that may train, and the choice of the next team."""

from __future__ import annotations

import json

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    supervisor_order as orders,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import (
    planned_attempts,
    run_state,
)
from core_support import put

# Two nodes with two spares, as standby.teams orders them.
TEAMS = [("a", "b"), ("s", "b"), ("t", "b"), ("a", "s"), ("a", "t"), ("s", "t")]


def run_of(members, failed, broken=()):
    """Return the state of a run."""
    run = run_state.RunState()
    run.members, run.failed, run.broken = tuple(members), list(failed), list(broken)
    return run


@pytest.mark.parametrize(
    "members, ready, failed, expected",
    [
        ("ab", "abst", [], ("a", "b")),  # nobody is replaced without a need
        ("ab", "ast", [], ("a", "s")),  # a lost node: the first spare takes its place
        ("ab", "at", [], ("a", "t")),  # the first spare is not ready either
        ("as", "abs", [], ("a", "s")),  # who came back does not drive out its replacement
        ("as", "ab", [], ("a", "b")),  # and takes its place again when that is lost
        ("ab", "abst", ["b"], ("a", "s")),  # a broken device in a node that answers
        ("ab", "ab", ["b"], ("a", "b")),  # without a spare it is tried again
        ("as", "abs", ["b", "s"], ("a", "b")),  # the one that failed first comes first
        ("as", "abs", ["s", "b"], ("a", "s")),
        ("ab", "st", [], ("s", "t")),
        ("ab", "a", [], ()),
    ],
)
def test_the_next_team(members, ready, failed, expected):
    run = run_of(members, failed)
    assert planned_attempts.choose(TEAMS, run, ready, False) == expected


# Three nodes, of which two are enough.
SMALLER = [("a", "b", "c"), ("b", "c"), ("a", "c"), ("a", "b")]


@pytest.mark.parametrize(
    "members, ready, broken, may_be_fewer, expected",
    [
        ("abc", "abc", "", True, ("a", "b", "c")),  # nobody is left out without a need
        ("abc", "ac", "", False, ()),  # the lost one may still come back
        ("abc", "ac", "", True, ("a", "c")),
        ("ac", "abc", "", False, ("a", "b", "c")),  # and has its place again
        ("abc", "abc", "b", False, ("a", "c")),  # all are ready: nobody is waited for
        ("abc", "ab", "b", True, ("a", "b")),
        ("abc", "a", "", True, ()),
    ],
)
def test_the_next_team_may_be_smaller(members, ready, broken, may_be_fewer, expected):
    run = run_of(members, "b", broken)
    assert planned_attempts.choose(SMALLER, run, ready, may_be_fewer) == expected


@pytest.fixture
def place(tmp_path):
    rows = [
        {"nodes": ["a", "b"], "fresh": '{"of":"ab"}', "template": ""},
        {"nodes": ["a", "s"], "fresh": '{"of":"as"}', "template": ""},
    ]
    return str(put(tmp_path, {orders.PLANS: json.dumps(rows)}))


def test_each_team_has_its_own_plan(place):
    assert planned_attempts.plan_text(place, ("s", "a"), None) == '{"of":"as"}'
    assert planned_attempts.fresh_plan(place, ("a", "b")) == {"of": "ab"}


def test_nodes_for_which_the_controller_has_compiled_nothing_get_no_plan(place):
    with pytest.raises(ValueError, match="no plan for the nodes b, s"):
        planned_attempts.plan_text(place, ("b", "s"), None)
