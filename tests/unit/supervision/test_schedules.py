# SPDX-License-Identifier: Apache-2.0
"""The protocol of the supervisors under schedules of faults. `make simulate` plays many more."""

from __future__ import annotations

import pytest
import supervision_support as simulator
from supervision_mutants import MUTANTS

SEEDS = range(60)
NOTICED = [mutant for mutant in MUTANTS if mutant.seed is not None]


@pytest.fixture(scope="module")
def parts():
    """The protocol as it is."""
    return simulator.load()


def test_schedules_are_safe_and_live(parts):
    attempts = 0
    for seed in SEEDS:
        world = simulator.World(seed, parts)
        world.play()
        attempts += world.state.attempt
    assert attempts > 2 * len(SEEDS)  # faults had to be answered


def test_schedules_of_detached_runs_are_safe_and_live(parts):
    attempts = verdicts = 0
    for seed in range(40):
        world = simulator.World(seed, parts, is_detached=True)
        world.play()
        attempts += world.state.attempt
        verdicts += len(world.state.verdicts)
    assert attempts > 80 and verdicts > 40


def test_a_schedule_is_the_same_every_time(parts):
    worlds = [simulator.World(5, parts) for _time in range(2)]
    for world in worlds:
        world.play()
    assert worlds[0].committed == worlds[1].committed and worlds[0].committed


@pytest.mark.parametrize("mutant", NOTICED, ids=lambda mutant: mutant.name)
def test_a_guard_that_is_left_out_is_noticed(mutant):
    with pytest.raises((simulator.Unsafe, simulator.Stuck)):
        simulator.World(mutant.seed, simulator.load(mutant)).play()


def test_most_guards_are_shown_by_a_schedule():
    assert len(NOTICED) >= 10 and len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
