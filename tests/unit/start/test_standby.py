# SPDX-License-Identifier: Apache-2.0
"""Spares that stand by for a run."""

from __future__ import annotations

import json
import math

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    supervisor_order as orders,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import job_plan, standby
from core_support import ADDRESSES, gang, job_of, peer_key
from unit.modules.test_plan import module_arguments

DETACHED = job_of(detach=True, max_restarts=3)


def site_of(count, spares, **changes):
    """Return a site with some trainers and spares."""
    nodes = gang(count=count + spares)["nodes"]
    for node in nodes[count:]:
        node.update(changes)
    return {**gang()["site"], "nodes": nodes[:count], "spares": nodes[count:]}


def named(count, spares):
    """Return (nodes, spares) that have only their names."""
    made = [{"name": f"n{number}"} for number in range(count + spares)]
    return made[:count], made[count:]


@pytest.mark.parametrize("count", range(1, 12))
def test_the_first_nodes_alone_have_more_than_half_of_the_votes(count):
    spares = standby.most_spares(count)
    nodes, standing_by = named(count, spares)
    voters = standby.voters(nodes, standing_by, count)
    assert spares <= orders.MOST_SPARES and len(voters) <= orders.MOST_VOTERS
    assert len({node["name"] for node in nodes} & set(voters)) > len(voters) / 2


def test_of_two_nodes_only_rank_0_votes_where_one_may_go_on_alone():
    nodes, spares = named(2, 1)
    assert standby.voters(nodes, [], 1) == ["n0"] and len(standby.voters(nodes, [], 2)) == 2
    assert len(standby.voters(nodes, spares, 1)) == 3


def test_of_many_nodes_few_vote():
    nodes, spares = named(orders.MOST_VOTERS + 1, 1)
    assert standby.voters(nodes, spares, 10) == ["n0", "n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    "job, names",
    [
        (DETACHED, ["node3", "node4"]),
        (job_of(max_restarts=1), ["node3", "node4"]),
        (job_of(), []),
    ],
)
def test_only_a_job_that_its_nodes_restart_takes_spares(job, names):
    site = site_of(2, 2)
    assert [node["name"] for node in standby.candidates(job, site, site["nodes"])] == names


@pytest.mark.parametrize("changes", [{"devices": ["0"]}, {"accelerator": "ascend"}])
def test_a_spare_that_is_unlike_the_nodes_is_no_candidate(changes):
    site = site_of(2, 1, **changes)
    assert standby.candidates(DETACHED, site, site["nodes"]) == []


def test_a_spare_that_has_a_place_already_is_no_candidate():
    site = site_of(2, 2)
    taken = [site["nodes"][0], site["spares"][0]]
    assert [node["name"] for node in standby.candidates(DETACHED, site, taken)] == ["node4"]


@pytest.mark.parametrize("count, spares", [(2, 0), (2, 1), (3, 2), (7, 2)])
def test_each_team_keeps_the_places_of_those_that_stay(count, spares):
    nodes, standing_by = named(count, spares)
    teams = list(standby.teams(nodes, standing_by, count))
    assert len(teams) == math.comb(count + spares, count) and teams[0] == nodes
    assert len({tuple(sorted(n["name"] for n in team)) for team in teams}) == len(teams)
    for team in teams:
        for place, node in enumerate(team):
            assert node in standing_by or node == nodes[place]


@pytest.mark.parametrize("count, spares, least", [(2, 0, 1), (3, 1, 2), (4, 2, 2)])
def test_each_smaller_team_keeps_the_order_of_the_ranks(count, spares, least):
    nodes, standing_by = named(count, spares)
    teams = list(standby.teams(nodes, standing_by, least))
    sizes = range(least, count + 1)
    assert len(teams) == sum(math.comb(count + spares, size) for size in sizes)
    assert len({tuple(sorted(n["name"] for n in team)) for team in teams}) == len(teams)
    lost = [len([node for node in nodes if node not in team]) for team in teams]
    assert teams[0] == nodes and lost == sorted(lost)
    for team in teams:
        own = [node for node in team if node in nodes]
        assert own == sorted(own, key=nodes.index) and least <= len(team) <= count


def arguments_of(spares=1, **facts):
    """Return the arguments of the module plan for two nodes and some spares that are ready."""
    given = module_arguments(job=DETACHED)
    site = site_of(2, spares)
    names = [node["name"] for node in site["nodes"] + site["spares"]]
    rows = [(name, ADDRESSES[n], 22, None) for n, name in enumerate(names)]
    mesh = {"nodes": names, "inventory": primitives.inventory_digest(rows)}
    known = {}
    for number, name in enumerate(names):
        like = given["facts"]["node2"]
        address = ADDRESSES[number]
        known[name] = {
            **json.loads(json.dumps(like).replace(ADDRESSES[1], address)),
            "mesh": {**like["mesh"], **mesh},
            "run_key": peer_key(number + 1),
        }
    known["node3"].update(facts)
    given.update(site={**given["site"], "spares": site["spares"]}, spares=site["spares"])
    given["facts"] = {name: known[name] for name in ("node1", "node2")}
    given["spare_facts"] = {name: known[name] for name in names[2:]}
    return given


def test_a_spare_that_is_ready_gets_a_key_a_vote_and_a_plan_for_each_place(run_action):
    made = run_action("plan", arguments_of())
    supervise = json.loads(made["supervise"])
    assert supervise["spares"] == ["node3"]
    assert sorted(made["keys"]) == ["node1", "node2", "node3"]
    teams = [["node1", "node2"], ["node3", "node2"], ["node1", "node3"]]
    assert [plans["nodes"] for plans in supervise["plans"]] == teams
    for plans in supervise["plans"]:
        plan = json.loads(plans["fresh"])
        assert [node["name"] for node in plan["nodes"]] == plans["nodes"]
        assert json.loads(plans["template"])["resume"]
    assert made["node_groups"]["node3"] == ["trainyard_standby_nodes"]
    assert [node["name"] for node in made["plan"]["nodes"]] == teams[0]


def test_a_spare_gets_what_it_lacks_after_the_first_step(run_action):
    given = arguments_of(trees={})
    groups = run_action("plan", given)["node_groups"]
    assert groups["node3"] == ["trainyard_standby_nodes", "trainyard_standby_inputs"]
    assert "trainyard_needs_inputs" not in groups["node1"]


def unit(name):
    """Return what the probe says of a unit that holds a node."""
    return {"unit": name, "state": "active", "description": "another", "run": "r", "age_s": None}


@pytest.mark.parametrize(
    "facts, said",
    [
        ({"missing": ["rsync"]}, "rsync"),
        ({"environments": {}}, "environment"),
        ({"mesh": None}, "SSH"),
        ({"run_key": None}, "key"),
        ({"run_key": peer_key(1)}, "another node's"),
        ({"units": [unit("trainyard-x.service")]}, "is held by"),
        ({"python_version": "3.9"}, "3.9"),
        ({"login": "hello"}, "login"),
    ],
)
def test_a_spare_that_is_not_ready_is_left_out_with_its_reason(run_action, facts, said):
    made = run_action("plan", arguments_of(**facts))
    (finding,) = [item for item in made["findings"] if item["code"] == "spare.not_ready"]
    assert finding["level"] == "warn" and finding["nodes"] == ["node3"] and said in finding["text"]
    supervise = json.loads(made["supervise"])
    assert supervise["spares"] == [] and len(supervise["plans"]) == 1
    assert sorted(made["keys"]) == ["node1", "node2"] and "node3" not in made["node_groups"]


def test_the_next_spare_takes_the_place_of_one_that_does_not_answer(run_action):
    given = arguments_of(spares=2)
    del given["spare_facts"]["node3"]
    given["spare_silent"] = {"node3": "No route to host"}
    made = run_action("plan", given)
    assert json.loads(made["supervise"])["spares"] == ["node4"]
    (finding,) = [item for item in made["findings"] if item["code"] == "spare.not_ready"]
    assert "No route to host" in finding["text"]


def test_nodes_that_may_be_fewer_get_plans_of_smaller_teams(run_action):
    given = arguments_of()
    given["job"] = job_of(detach=True, max_restarts=3, min_nodes=1)
    supervise = json.loads(run_action("plan", given)["supervise"])
    names = [plans["nodes"] for plans in supervise["plans"]]
    assert names[:3] == [["node1", "node2"], ["node3", "node2"], ["node1", "node3"]]
    assert len(names) == 6 and supervise["voters"] == ["node1", "node2", "node3"]
    alone = json.loads(supervise["plans"][names.index(["node2"])]["fresh"])
    assert [node["name"] for node in alone["nodes"]] == ["node2"]
    assert {rank["node"] for rank in alone["ranks"]} == {"node2"}


def test_the_plans_of_many_teams_are_cut_off_at_a_length(run_action, monkeypatch):
    monkeypatch.setattr(job_plan, "MOST_PLAN_BYTES", 1)
    supervise = json.loads(run_action("plan", arguments_of())["supervise"])
    assert [plans["nodes"] for plans in supervise["plans"]] == [["node1", "node2"]]


def test_spares_that_the_votes_cannot_bear_are_left_out(run_action):
    made = run_action("plan", arguments_of(spares=2))
    assert json.loads(made["supervise"])["spares"] == ["node3"]
    assert not [item for item in made["findings"] if item["code"] == "spare.not_ready"]
