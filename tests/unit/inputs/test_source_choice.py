# SPDX-License-Identifier: Apache-2.0
"""source_choice: a slow node keeps nobody behind it waiting, and a healthy chain stays a chain."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import source_choice

MUCH = 10_000  # bytes that are missing
BEFORE = ["node4", "node3", "node2", "node1"]  # of node5


def play(rates, nodes=BEFORE, rest=MUCH, looks=8):
    """Return (the sources that were asked, one for each look; the one that is asked then).

    rates: {node: bytes per second}.
    """
    choice, asked = source_choice.SourceChoice(nodes), []
    for _look in range(looks):
        asked.append(choice.node)
        choice.leaves(rates[choice.node], rest)
    return asked, choice.node


@pytest.mark.parametrize(
    ("rates", "tried", "taken"),
    [
        # One link is the limit of all: one other source is tried, and the chain stays.
        ({"node4": 100, "node3": 110}, ["node4", "node3"], "node4"),
        ({"node4": 10, "node3": 100, "node2": 90}, ["node4", "node3", "node2"], "node3"),
        ({"node4": 10, "node3": 20, "node2": 100}, ["node4", "node3", "node2"], "node2"),
        # Not more than three are compared.
        ({"node4": 1, "node3": 2, "node2": 4, "node1": 9}, ["node4", "node3", "node2"], "node2"),
        # One that has nothing yet is left at once, for the one that is known.
        ({"node4": 10, "node3": 0}, ["node4", "node3"], "node4"),
    ],
)
def test_a_slow_source_is_left_for_a_faster_one(rates, tried, taken):
    asked, last = play(rates)
    assert asked[: len(tried)] == tried and set(asked[len(tried) :]) == {taken} and last == taken


def test_nothing_is_tried_where_the_rest_comes_soon_or_nothing_comes_at_all():
    soon = 100 * source_choice.PATIENCE_SECONDS
    assert play({"node4": 100}, rest=soon)[0] == ["node4"] * 8
    assert play({"node4": 0})[0] == ["node4"] * 8
    assert play({"node4": 1}, ["node4"])[0] == ["node4"] * 8


def test_a_source_that_was_fast_at_first_is_compared_when_it_is_slow():
    choice = source_choice.SourceChoice(BEFORE)
    assert not choice.leaves(1000, MUCH)
    assert choice.leaves(1, MUCH) and choice.node == "node3"


def looks_until_compared(choice, rate):
    """Return after how many looks the chosen source is compared with others again."""
    looks = 1
    while not choice.leaves(rate, MUCH):
        looks += 1
    return looks


def test_all_are_compared_again_where_the_chosen_one_has_become_slow_but_ever_later():
    choice = source_choice.SourceChoice(BEFORE)
    assert choice.leaves(50, MUCH) and choice.leaves(50, MUCH) and choice.node == "node4"
    assert not choice.leaves(100, MUCH)
    for _look in range(50):
        assert not choice.leaves(50, MUCH)
    assert choice.leaves(49, MUCH) and choice.node == "node3"
    assert choice.leaves(10, MUCH) and choice.node == "node4"
    assert looks_until_compared(choice, 10) == 2 * source_choice.FIRST_LOOKS
    assert choice.leaves(1, MUCH) and choice.node == "node4"
    assert looks_until_compared(choice, 1) == 4 * source_choice.FIRST_LOOKS


def test_a_source_that_has_failed_is_not_asked_again():
    choice = source_choice.SourceChoice(BEFORE[:3])
    choice.leaves(10, MUCH)
    assert choice.is_comparing()
    choice.fail()  # node3, in its trial
    assert choice.node == "node4" and not choice.is_comparing()
    choice.fail()
    assert choice.node == "node2"
    choice.fail()
    assert choice.node is None
