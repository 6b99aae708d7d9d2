# SPDX-License-Identifier: Apache-2.0
"""The attempt of a detached run that is collected next."""

from __future__ import annotations

import json

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import attempt_in_turn
from core_support import RUN

SITE = ["node1", "node2", "node3"]
# What was agreed: node3 has taken the place of node1, which came back and replaced node3.
TEAMS = {1: ["node1", "node2"], 2: ["node3", "node2"], 3: ["node3", "node2"], 4: ["node1", "node2"]}
# Attempt 2 has begun on no node.
ATTEMPTS = {"node1": [1, 4], "node2": [1, 3, 4], "node3": [3]}


def status_of(node, teams=None, **changes):
    """Return what a node says of the run."""
    rows = [{"attempt": number, "nodes": nodes} for number, nodes in (teams or TEAMS).items()]
    status = {"found": True, "ended": False, "run": RUN, "attempt": max(ATTEMPTS[node])}
    supervised = {"is_open": True, "teams": rows}
    numbers = {"attempts": ATTEMPTS[node], "begun": ATTEMPTS[node]}
    return {**status, **numbers, "supervised": supervised, **changes}


@pytest.fixture
def collect(tmp_path):
    """Return (number, nodes, later) of the next attempt; collected: attempts with a verdict."""

    def run(collected=(), after=0, answers=None):
        rows = [{"number": n, "verdict": {"outcome": "failed"}, "ranks": []} for n in collected]
        (tmp_path / RUN).mkdir(exist_ok=True)
        record = {"version": 1, "run": RUN, "attempts": rows}
        (tmp_path / RUN / "run.json").write_text(json.dumps(record))
        given = answers or {node: status_of(node) for node in SITE}
        choice = {"run": RUN, "number": 4, "nodes": TEAMS[4]}
        made = attempt_in_turn.choose(str(tmp_path), SITE, choice, given, after)
        return made["number"], made["nodes"], made["later"]

    return run


def test_each_attempt_is_collected_from_its_own_nodes(collect):
    assert collect() == (1, TEAMS[1], True)
    assert collect(collected=[1]) == (3, TEAMS[3], True)
    assert collect(collected=[1, 3]) == (4, TEAMS[4], False)
    assert collect(after=1) == (3, TEAMS[3], True)


def test_an_attempt_that_was_given_up_before_its_start_is_passed_over(collect):
    """node3 has the directory of attempt 2, with nothing but the note of its stop."""
    answers = {node: status_of(node) for node in SITE}
    answers["node3"]["attempts"] = [2, 3]
    assert collect(collected=[1], answers=answers) == (3, TEAMS[3], True)


def test_a_lost_node_is_asked_as_well(collect):
    """Its answer is missed, and the verdict names it."""
    answers = {node: status_of(node) for node in SITE if node != "node3"}
    assert collect(collected=[1], answers=answers) == (3, TEAMS[3], True)


def test_one_node_alone_brings_no_attempt_and_no_node(collect):
    answers = {node: status_of(node) for node in SITE}
    lie = {**TEAMS, 2: ["localhost", "node3"], 3: ["node1", "localhost"]}
    answers["node1"] = dict(status_of("node1", lie), begun=[1, 2, 3, 4])
    few = {number: TEAMS[number] for number in (1, 4)}
    answers["node2"], answers["node3"] = status_of("node2"), status_of("node3")
    assert collect(collected=[1], answers=answers) == (2, TEAMS[2], True)
    answers["node2"] = dict(status_of("node2", few), begun=[1, 4])
    answers["node3"] = dict(status_of("node3", few), begun=[1])
    assert collect(collected=[1], answers=answers) == (4, TEAMS[4], False)


def test_a_run_that_a_controller_restarts_keeps_its_choice(collect):
    answers = {node: dict(status_of(node), supervised=None) for node in SITE}
    assert collect(answers=answers) == (4, TEAMS[4], False)
