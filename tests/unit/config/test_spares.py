# SPDX-License-Identifier: Apache-2.0
"""The inventory's group spares: what is wrong with it, who could stand in for whom, and that a
first start never takes a spare.
"""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import site as sites
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import spares
from core_support import ROOT, job_of
from unit.config.test_site import host


def site_of(*extra, groups=None, **changes):
    """Return (site, problems as text) of two trainers and spares spare1, spare2, ... with these
    variables.
    """
    hostvars = {"node1": host(1), "node2": host(2)}
    hostvars.update(
        {"spare%d" % (n + 1): dict(variables, **changes) for n, variables in enumerate(extra)}
    )
    names = [name for name in hostvars if name.startswith("spare")]
    groups = dict(
        {"all": list(hostvars), "trainers": ["node1", "node2"]},
        **({"spares": names} if groups is None else groups),
    )
    site, problems = sites.read_site(groups, hostvars)
    return site, [str(problem) for problem in problems]


def test_spares_are_read_like_nodes_and_never_taken_by_a_first_start():
    site, problems = site_of(host(3), host(4, ansible_port=2222))
    assert not problems and [(node["name"], node["port"]) for node in site["spares"]] == [
        ("spare1", 22),
        ("spare2", 2222),
    ]
    nodes, problems = sites.select_nodes(job_of(), site)
    assert not problems and [node["name"] for node in nodes] == ["node1", "node2"]
    # three nodes are asked for, and two trainers are there: spares are for when one of them fails
    assert "the site 'site' has 2" in str(sites.select_nodes(job_of(nodes=3), site)[1][0])


def test_a_run_that_goes_on_takes_the_members_it_is_told_in_their_order():
    site = site_of(host(3))[0]
    nodes, problems = sites.select_nodes(
        job_of(nodes=2, min_nodes=2), site, members=["spare1", "node2"]
    )
    assert not problems and [node["name"] for node in nodes] == ["spare1", "node2"]
    nodes, problems = sites.select_nodes(job_of(nodes=2, min_nodes=2), site, members=["node1"])
    assert not problems and [node["name"] for node in nodes] == ["node1"]


@pytest.mark.parametrize(
    "extra, groups, words",
    [
        ((), {"spares": ["node2"]}, "inventory node2: is in both groups, trainers and spares"),
        (
            (host(3),),
            {"spare": ["spare1"]},
            "inventory spare: a group of spare machines is named spares; rename it",
        ),
        (
            (host(2),),
            None,
            "inventory spare1: has the same ansible_host as node2: one machine under two names",
        ),
        (
            (host(3, trainyard_accelerator="cpu"),),
            None,
            "inventory, host spare1 trainyard_accelerator: a spare must compute with what",
        ),
        (
            (host(3, trainyard_devcies=1),),
            None,
            "inventory, host spare1 trainyard_devcies: unknown site variable",
        ),
        (
            (host(3, trainyard_devices=None),),
            None,
            "got None; what group_vars/trainers.yml says must hold for the spares, too",
        ),
        (
            (host(3, trainyard_address="224.0.0.1"),),
            None,
            "inventory, host spare1 trainyard_address: must be an address",
        ),
    ],
)
def test_what_a_group_of_spares_may_not_be(extra, groups, words):
    problems = site_of(*extra, groups=groups)[1]
    assert len(problems) == 1 and words in problems[0], problems


@pytest.mark.parametrize("groups", [{}, {"spares": []}, {"reserve": ["spare1"]}])
def test_a_site_without_spares_is_a_site(groups):
    site, problems = site_of(host(3), groups=groups)
    assert not problems and site["spares"] == []


@pytest.mark.parametrize(
    "job, changes, words",
    [
        ({}, {}, None),
        (
            {},
            {"trainyard_devices": 4},
            "it declares the devices 0, 1, 2, 3, the run takes 0, 1, 2, 3, 4, 5, 6, 7 of each node",
        ),
        (
            {},
            {"trainyard_devices": 16},
            "it has 16 devices, the run takes 8 of each node; set 'devices' in the job",
        ),
        ({"devices": 4}, {"trainyard_devices": 4}, None),
        (
            {"devices": 4},
            {"trainyard_devices": [4, 5, 6, 7]},
            "it declares the devices 4, 5, 6, 7, the run takes 0, 1, 2, 3 of each node",
        ),
        ({"devices": [6, 7]}, {"trainyard_devices": [6, 7]}, None),
        (
            {"devices": [6, 7]},
            {"trainyard_devices": 6},
            "it declares the devices 0, 1, 2, 3, 4, 5, the run takes 6, 7",
        ),
        ({}, {"trainyard_accelerator": "ascend"}, "it computes with ascend, the run with gpu"),
    ],
)
def test_who_could_stand_in_for_a_node(job, changes, words):
    site = site_of(host(3), **changes)[0]
    assert (
        spares.replacement_problem(job_of(**job), site["spares"][0], site["nodes"][0]) or ""
    ).startswith(words or "")
    assert (
        spares.replacement_problem(job_of(**job), site["spares"][0], site["nodes"][0]) is None
    ) == (words is None)


def test_a_spare_with_devices_that_no_trainer_has_is_named():
    site = site_of(host(3), host(4, trainyard_devices=4))[0]
    said = spares.device_notes(site["nodes"], site["spares"])
    assert len(said) == 1 and "spare2 " in said[0] and "devices 0, 1, 2, 3, " in said[0]


@pytest.mark.parametrize(
    "job, words",
    [
        ({"min_nodes": 1}, None),
        ({"min_nodes": 2}, None),
        (
            {"min_nodes": 3},
            "min_nodes: is more than the job's 2 nodes; it says with how few the run may go on",
        ),
        ({"min_nodes": 2, "nodes": 1}, "min_nodes: is more than the job's 1 node;"),
    ],
)
def test_min_nodes_is_no_more_than_the_jobs_nodes(job, words):
    problems = [str(problem) for problem in sites.select_nodes(job_of(**job), site_of()[0])[1]]
    assert len(problems) == (words is not None) and all(words in problem for problem in problems)


def test_no_play_forgets_the_spares():
    """A run may go on with them: who asks, stops, follows or prunes on the group trainers alone
    leaves a spare out.
    """
    plays = [
        (path.name, play)
        for path in (ROOT / "playbooks").rglob("*.yml")
        if not {"configs", "group_vars", "suites"} & set(path.parts)
        for play in read(path)
    ]
    assert len(plays) > 40
    assert [
        (name, play["name"])
        for name, play in plays
        if play.get("hosts") in ("trainers", "localhost:trainers")
    ] == []


def read(path):
    """Return the plays of a playbook."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))
