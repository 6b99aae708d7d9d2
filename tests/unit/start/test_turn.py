# SPDX-License-Identifier: Apache-2.0
"""Whether a start that waits may go on, and what it says."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import (
    extra_vars,
    wait_option,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import turn, turn_board

RUN = "20261120-103501-ppyoloe-1f2e"
HELD = {"description": "Trainyard run R", "state": "active", "since": 0.0, "by": "bob\x1b[1m@desk"}


def ticket(token, **more):
    ticket_id = f"{RUN}-{token:016x}"
    return {"id": ticket_id, "run": RUN, "by": "bob", "since": 1.0, "turn": False, **more}


OWN, OTHER = ticket(1), ticket(2)


def look(**more):
    start = {"held": [], "tickets": [OWN, OTHER], "at": 100.0, "problem": "", "answered": True}
    return {**start, **more}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (look(), True),
        (look(held=[HELD]), False),
        (look(tickets=[OTHER, OWN]), False),
        (look(tickets=[OTHER]), False),  # the node has lost the ticket
        (look(tickets=[]), False),
        (look(problem="timeout"), False),
        (look(at=100.0 - turn.FRESH_SECONDS - 1), False),
    ],
)
def test_a_start_goes_on_when_it_is_first_on_every_free_node(second, expected):
    assert turn.is_turn({"node1": look(), "node2": second}, OWN["id"], 100.0) is expected


def test_a_start_without_a_ticket_would_wait_for_runs_and_for_tickets():
    free = look(tickets=[])
    assert turn.is_free({"node1": free})
    for other in (look(), look(tickets=[], held=[HELD]), look(tickets=[], problem="timeout")):
        assert not turn.is_free({"node1": free, "node2": other})


def test_the_line_names_node_owner_and_place_and_is_safe_to_show():
    looks = {
        "node1": look(held=[HELD]),
        "node2": look(held=[HELD]),
        "node3": look(tickets=[OTHER, OWN]),
    }
    text = turn.describe(looks, OWN["id"])
    assert "node1, node2" in text and "1970-01-01 00:00:00" in text and "\x1b" not in text
    assert "node3" in text and RUN in text and text.endswith("place 2 of 2")


def test_the_line_does_not_change_with_the_time_alone():
    first = turn.describe({"node1": look(held=[dict(HELD, age_s=5)])}, OWN["id"])
    assert first == turn.describe({"node1": look(held=[dict(HELD, age_s=65)], at=160)}, OWN["id"])


@pytest.mark.parametrize(
    ("value", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), (True, None)]
)
def test_limits_of_a_wait(value, seconds):
    assert wait_option.value_problem(value) is None
    assert wait_option.is_on(value) and wait_option.limit_of(value) == seconds


@pytest.mark.parametrize("value", ["2", "0h", "-2h", "2 h", "2h\n", "h", "1e3s", "9999999s", [1]])
def test_a_wait_without_a_unit_is_refused(value):
    problems = extra_vars.validate({"wait": value}, ["wait"], {})
    assert [problem.code for problem in problems] == ["cli.wrong_value"]


def test_wait_no_is_no_wait():
    assert not wait_option.is_on("no") and not wait_option.is_on(False)


@pytest.mark.parametrize(("verb", "codes"), [("check", ["cli.contradiction"]), ("train", [])])
def test_only_a_start_waits(verb, codes):
    assert [item.code for item in extra_vars.conflicts({"wait": "2h"}, verb, False)] == codes


def test_workers_exchange_their_looks_once_each_has_one(tmp_path):
    board = turn_board.Board(str(tmp_path / "turn"), ["node1", "node2"])
    same = turn_board.Board(str(tmp_path / "turn"), ["node1", "node2"])
    assert (board.looks(), board.ticket(), board.end()) == (None, {}, "")
    board.post_look("node1", look())
    assert same.looks() is None
    board.post_look("node2", look(held=[HELD]))
    board.post_ticket("ab", 7.5)
    board.post_end("go")
    assert same.looks() == {"node1": look(), "node2": look(held=[HELD])}
    assert (same.ticket(), same.end()) == ({"token": "ab", "since": 7.5}, "go")
