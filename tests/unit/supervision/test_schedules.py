# SPDX-License-Identifier: Apache-2.0
"""The protocol of the supervisors under schedules of faults. `make simulate` plays many more."""

from __future__ import annotations

import json
import types

import pytest
import supervision_support as simulator
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import messages
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
    attempts = verdicts = newer = 0
    for seed in range(40):
        world = simulator.World(seed, parts, is_detached=True)
        world.play()
        attempts += world.state.attempt
        verdicts += len(world.state.verdicts)
        newer += sum(bool(verdict["newer"]) for verdict in world.state.verdicts)
    assert attempts > 80 and verdicts > 40 and newer > 10


def test_schedules_in_which_a_node_comes_back_after_the_verdict_are_safe_and_live(parts):
    left = 0
    for seed in range(60):
        world = simulator.World(seed, parts, is_detached=True, stress="away")
        world.play()
        left += sum((entry.value or {}).get("kind") == "left" for entry in world.committed)
    assert left > 1


def test_nodes_that_are_lost_for_good_and_spares_that_are_taken_end_no_run(parts):
    destroyed = damaged = instead = fewer = refused = spares = 0
    for seed in range(60):
        world = simulator.World(seed, parts, is_detached=True, stress="losses")
        world.play()
        destroyed += sum(host.is_destroyed for host in world.hosts.values())
        damaged += sum(host.is_damaged for host in world.hosts.values())
        instead += sum(bool(verdict["instead"]) for verdict in world.state.verdicts)
        teams = world.state.teams.values()
        fewer += sum(len(team) < world.size for team in teams)
        spares += sum(not set(team) <= set(world.first) for team in teams)
        refused += world.refused
    assert destroyed > 10 and damaged > 10 and instead > 0
    assert fewer > 10 and spares > 10 and refused > 0


@pytest.mark.parametrize("stress", ["all", "away", "losses"])
def test_peers_take_every_message(parts, monkeypatch, stress):
    """What the supervisors say passes the check of what a peer says."""
    seen = set()

    def send(world, host, outbox):
        for _receiver, message in outbox:
            assert messages.is_valid(message, tuple(world.hosts)), message
            values = [value for _term, value in message.get("entries", ())]
            seen.update(value["kind"] for value in values if value)
        plain(world, host, outbox)

    plain = simulator.World._send
    monkeypatch.setattr(simulator.World, "_send", send)
    for seed in range(15):
        simulator.World(seed, parts, is_detached=True, stress=stress).play()
    assert {"plan", "supersede", "ended", "checkpoint", "verdict"} <= seen


def test_a_schedule_is_the_same_every_time(parts):
    worlds = [simulator.World(5, parts) for _time in range(2)]
    for world in worlds:
        world.play()
    assert worlds[0].committed == worlds[1].committed and worlds[0].committed


@pytest.mark.parametrize("stress", sorted(set(simulator.STRESSES) - {"all"}))
def test_schedules_of_one_kind_of_faults_are_safe_and_live(parts, stress):
    for seed in range(10):
        simulator.World(seed, parts, is_detached=seed % 2, stress=stress).play()


@pytest.mark.parametrize("is_detached", [False, True])
def test_messages_are_what_json_makes_of_them(parts, monkeypatch, is_detached):
    """The simulator copies few messages, and not by JSON, for its speed."""

    def end(seed):
        world = simulator.World(seed, parts, is_detached=is_detached)
        world.play()
        return world.committed, world.trained, world.sequence, world.chance.getstate()

    ends = [end(seed) for seed in range(8)]
    by_json = types.SimpleNamespace(loads=json.loads, dumps=lambda m: json.dumps(m).encode())
    monkeypatch.setattr(simulator, "marshal", by_json)
    monkeypatch.setattr(simulator, "is_shared", lambda message: True)
    assert [end(seed) for seed in range(8)] == ends


@pytest.mark.parametrize("mutant", NOTICED, ids=lambda mutant: mutant.name)
def test_a_guard_that_is_left_out_is_noticed(mutant):
    with pytest.raises((simulator.Unsafe, simulator.Stuck)):
        simulator.World(
            mutant.seed,
            simulator.load(mutant),
            is_detached=mutant.is_detached,
            stress=mutant.stress,
        ).play()


def test_a_value_that_is_changed_in_place_is_noticed(parts):
    world = simulator.World(0, parts)
    world.run(simulator.FAULTY)
    world.calm()
    world.begin()
    world.run(world.now + 20.0)
    world._check_values()
    world.committed[-1].value["attempt"] = 0
    with pytest.raises(simulator.Unsafe):
        world._check_values()


def test_every_guard_can_be_left_out():
    for mutant in MUTANTS:
        simulator.load(mutant)


def test_most_guards_are_shown_by_a_schedule():
    assert len(NOTICED) >= 20 and len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
