# SPDX-License-Identifier: Apache-2.0
"""Who could take part in the next attempt, by what every node answered."""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import candidates
from core_support import job_of
from unit.config.test_site import host
from unit.config.test_spares import site_of

FREE = {"held": []}
SILENT = {
    "unreachable": True,
    "msg": "Task failed: Failed to connect to the host via ssh: Connection timed out",
}
RUN = "20261120-103501-x-1f2e"


def given(looks=None, job=None, nodes=("node1", "node2"), places=(), extra=None, **more):
    """Return what is asked: a run on node1 and node2, with spares beside them; all are free unless
    looks says otherwise.
    """
    site = site_of(*(extra or (host(3), host(4))))[0]
    found = {name: FREE for name in ("node1", "node2", "spare1", "spare2")}
    found.update(looks or {})
    return dict(
        {
            "run_id": RUN,
            "nodes": list(nodes),
            "places": list(places),
            "site": site,
            "job": job_of(**(job or {})),
            "looks": {name: look for name, look in found.items() if look is not None},
            "cooldown_minutes": 30.0,
        },
        **more,
    )


def test_all_that_answer_and_are_free_can_take_part():
    assert candidates.find_obstacles(["node1", "node2", "spare1"], given()) == {}
    mine = {
        "node1": {"held": [{"run": RUN, "mine": True, "user": "me"}]}
    }  # what is left of the run itself is the preflight's to say
    assert candidates.find_obstacles(["node1"], given(mine)) == {}


@pytest.mark.parametrize(
    "look, code, end",
    [
        (SILENT, "replacement.no_answer", ": Connection timed out"),
        ({"unreachable": True}, "replacement.no_answer", "answer"),
        (
            {"failed": True, "msg": "systemd does not answer"},
            "replacement.invalid_answer",
            ": systemd does not answer",
        ),
        (
            {"held": [{"run": "20261120-000000-y-0000", "mine": True, "user": "me"}]},
            "replacement.node_held",
            " 20261120-000000-y-0000 of the user me",
        ),
        (
            {"held": [{"run": RUN, "mine": False, "user": "eve"}]},
            "replacement.node_held",
            f" {RUN} of the user eve",
        ),
        (None, "replacement.not_asked", "(--limit)"),
    ],
)
def test_why_a_node_cannot_take_part(look, code, end):
    obstacles = candidates.find_obstacles(["spare1"], given({"spare1": look}))
    assert list(obstacles) == ["spare1"]
    assert obstacles["spare1"].code == code and obstacles["spare1"].text.endswith(end)


def test_a_node_that_left_the_inventory_and_a_spare_that_is_unlike():
    asked = given(nodes=("node1", "node9"), extra=(host(3, trainyard_devices=4), host(4)))
    found = candidates.find_obstacles(["node1", "node9", "spare1", "spare2"], asked)
    assert sorted(found) == ["node9", "spare1"]
    assert found["node9"].code == "replacement.inventory"
    assert found["spare1"].code == "replacement.unlike"
    assert re.findall("[0-9]", found["spare1"].text) == list("0123" + "01234567")


def test_the_choice_of_a_run():
    found = candidates.choose(given({"node2": SILENT, "spare1": SILENT}), {}, 1000.0)
    assert (
        found["nodes"] == ["node1", "spare2"]
        and found["replaced"] == {"node2": "spare2"}
        and found["places"] == ["node1", "node2"]
    )
    found = candidates.choose(
        given({"node2": SILENT, "spare1": None, "spare2": None}, job={"min_nodes": 1}), {}, 1000.0
    )
    assert found["nodes"] == ["node1"] and found["dropped"] == ["node2"]
    cooling = {"node2": {"time": 900.0, "cause": "node_lost"}}
    assert candidates.choose(given(), cooling, 1000.0)["nodes"] == ["node1", "spare1"]
    assert candidates.choose(given(cooldown_minutes=0.0), cooling, 1000.0)["nodes"] == [
        "node1",
        "node2",
    ]
    found = candidates.choose(given(nodes=("node1",), places=("node1", "node2")), {}, 1000.0)
    assert found["nodes"] == ["node1", "node2"]  # the run had lost a node, which is back


def test_where_a_node_was_taken_out_of_the_inventory_a_trainer_that_is_idle_takes_its_place():
    asked = given(nodes=("node0", "node2"), extra=(host(3),))
    assert candidates.choose(asked, {}, 1000.0)["nodes"] == ["spare1", "node2"]
    asked["site"] = dict(asked["site"], spares=[])
    assert candidates.choose(asked, {}, 1000.0)["nodes"] == ["node1", "node2"]
    # as long as the lost one is listed, nobody takes a trainer for it
    idle = given({"node1": SILENT}, nodes=("node1",), extra=(host(3),))
    idle["site"] = dict(idle["site"], spares=[])
    assert candidates.choose(idle, {}, 1000.0)["refused"]


def test_whose_silence_is_noted():
    looks = {"node1": FREE, "node2": SILENT, "spare1": SILENT}
    assert candidates.silent_nodes(looks, ["node1", "node2"]) == {"node2": "unreachable"}
    # a controller that reaches nobody is cut off itself
    assert candidates.silent_nodes({"node1": SILENT, "node2": SILENT}, ["node1", "node2"]) == {}


@pytest.mark.parametrize("held", [7, "x", [7], {"a": 1}])
def test_a_look_of_another_shape_costs_its_node_only(held):
    site = {"nodes": [{"name": "node1"}, {"name": "node2"}], "spares": []}
    given = {
        "looks": {"node1": {"held": held}, "node2": {"held": []}},
        "nodes": [],
        "run_id": "r",
        "site": site,
        "job": {},
    }
    assert set(candidates.find_obstacles(["node1", "node2"], given)) == {"node1"}
