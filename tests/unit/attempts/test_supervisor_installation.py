# SPDX-License-Identifier: Apache-2.0
"""A run's supervisor as a controller sees it: its order, its stop, its end."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    ownership,
    supervisor_unit,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    supervisor_installation as installation,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    supervisor_order as orders,
)
from core_support import RUN, put
from detached_support import NODES, point_of

GIVEN = {
    "run": RUN,
    "site": "test",
    "node": "node2",
    "nodes": NODES,
    "first": 2,
    "mesh": "/k/config",
    "start": "token",
    "max_restarts": 3,
    "point": point_of(),
    "spares": ["node4"],
    "voters": ["node1", "node2", "node3"],
    "plans": [{"nodes": NODES, "fresh": '{"fresh":1}', "template": '{"template":1}'}],
    "notify": [{"index": 0}],
    "job": '{"job":1}',
}
ARCHIVES = {orders.AGENT: b"agent", orders.PROGRAM: b"program", orders.REPLICATOR: b"replicator"}


class Node:
    """A home and a base, and a systemd that remembers what it was asked for."""

    def __init__(self, folder):
        self.home, self.base = str(folder / "home"), str(folder / "base")
        self.place = Path(self.base, "runs", RUN, "supervisor", "node2")
        self.calls, self.code = [], 0

    def run(self, argv):
        self.calls.append(argv[2])
        return self.code, "", "no bus\n"

    def install(self, archives=ARCHIVES, **changes):
        given = dict(GIVEN, **changes)
        return installation.install(self.run, self.home, self.base, given, archives)

    def read(self):
        return installation.read(self.home, self.base, RUN, "node2")

    def stop(self):
        return installation.ask_to_stop(self.home, self.base, RUN, "node2", "ann@desk")

    def await_final(self):
        return installation.await_final(self.home, self.base, RUN, "node2", 0.0)

    def say(self, **status):
        put(self.place, {orders.STATUS: json.dumps(status)})


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_a_node_gets_its_order_its_plans_and_its_programs(node):
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    node.install()
    order = orders.read(str(node.place))
    expected = {key: value for key, value in GIVEN.items() if key in orders.Order._fields}
    assert {key: order._asdict()[key] for key in expected} == expected
    assert (order.base, order.home, order.boot) == (node.base, node.home, ownership.boot_mark())
    assert 0 <= order.until - before - orders.GRANTED_SECONDS < 5
    assert json.loads((node.place / orders.PLANS).read_text()) == GIVEN["plans"]
    assert (node.place / orders.JOB).read_text() == GIVEN["job"]
    for name, content in ARCHIVES.items():
        assert (node.place / name).read_bytes() == content
    assert stat.S_IMODE(node.place.stat().st_mode) == 0o700
    assert node.calls == ["daemon-reload", "enable", "start"]


def test_without_a_point_the_order_has_none(node):
    node.install(point={})
    assert orders.read(str(node.place)).point is None


@pytest.mark.parametrize("value", [[], {}, {"version": 3}, {"version": 2, "run": "x"}])
def test_an_order_of_another_kind_is_refused(node, value):
    put(node.place, {orders.NAME: json.dumps(value)})
    with pytest.raises((ValueError, TypeError)):
        orders.read(str(node.place))


def test_a_later_start_forgets_what_the_earlier_one_knew(node):
    node.install()
    kept = "supervisor.log"
    own = (orders.STATE, orders.STATUS, orders.LEASE, orders.WISH)
    left = {name: "{}" for name in (*own, kept)}
    put(node.place, left)
    node.install({orders.AGENT: b"a2", orders.PROGRAM: b"p2"}, first=5, start="t5")
    for name in (*own, orders.REPLICATOR):
        assert not (node.place / name).exists(), name
    assert (node.place / kept).exists() and (node.place / orders.PROGRAM).read_bytes() == b"p2"
    assert (node.read()["start"], orders.read(str(node.place)).first) == ("t5", 5)


def test_a_later_start_ends_a_supervisor_that_still_stays(node):
    """It would write its record again."""
    node.install()
    unit = supervisor_unit.unit_path(node.home, attempt_dir.unit_name(RUN, 2), "node2")
    assert Path(unit).exists()
    node.calls.clear()
    node.install(first=5, start="t5")
    assert node.calls[:2] == ["stop", "disable"] and not Path(unit).exists()
    assert node.calls[-1] == "start"


def test_systemds_problem_is_returned_and_nothing_is_open(node):
    node.code = 1
    unit = f"yardsupervisor-{RUN}-2-node2"
    with pytest.raises(attempt_dir.AttemptError, match=f"{unit}.*no bus") as error:
        node.install()
    assert error.value.code == "attempt.supervisor_not_started"
    assert node.read()["open"] is False and not node.stop()


def test_what_is_read(node):
    assert node.read() is None and installation.describe(node.home, node.base, RUN, "node2") is None
    node.install()
    node.say(is_open=True)
    unit = f"trainyard-{RUN}-2.service"
    expected = {"open": True, "status": {"is_open": True}, "start": "token", "unit": unit}
    assert node.read() == dict(expected, place=str(node.place))


@pytest.mark.parametrize(
    "status, is_installed, is_open",
    [({}, True, True), ({"is_open": True}, True, True), ({"is_open": False}, True, False)]
    + [({"is_open": True}, False, False)],
)
def test_whether_the_nodes_restart_a_run_still(node, status, is_installed, is_open):
    node.install()
    node.say(**status)
    if not is_installed:
        supervisor_unit.forget(node.run, node.home, node.read()["unit"], "node2")
    found = installation.describe(node.home, node.base, RUN, "node2")
    assert found == {"is_open": is_open, "teams": []}


@pytest.mark.parametrize(
    "teams, expected",
    [
        ({"2": ["a", "b"], "3": ["b"]}, [(2, ["a", "b"]), (3, ["b"])]),
        ({"x": ["a"], "-1": ["a"], "": ["a"], "4": "a"}, []),
        ([["a"]], []),
        ("2", []),
        (None, []),
    ],
)
def test_the_nodes_of_each_attempt_are_told_as_far_as_they_can_be_read(node, teams, expected):
    node.install()
    node.say(teams=teams)
    found = installation.describe(node.home, node.base, RUN, "node2")["teams"]
    assert [(team["attempt"], team["nodes"]) for team in found] == expected


def test_a_stop_is_asked_for_where_it_is_installed_alone(node):
    assert node.stop() is False and not node.place.exists()
    node.install()
    assert node.stop() is True
    wish = json.loads((node.place / orders.WISH).read_text())
    assert (wish["stop"], wish["by"]) == (True, "ann@desk") and abs(wish["time"] - time.time()) < 60
    (node.place / orders.WISH).unlink()
    supervisor_unit.forget(node.run, node.home, node.read()["unit"], "node2")
    assert node.stop() is False and not (node.place / orders.WISH).exists()


def test_a_stop_is_final_once_the_supervisor_says_so(node):
    assert node.await_final() is True, "there is none"
    node.install()
    assert node.await_final() is False
    node.say(is_open=True)
    assert node.await_final() is False
    node.say(is_open=False)
    assert node.await_final() is True


def test_a_stop_is_waited_for(node, monkeypatch):
    node.install()
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            node.say(is_open=False)

    monkeypatch.setattr(installation.time, "sleep", sleep)
    assert installation.await_final(node.home, node.base, RUN, "node2") is True and len(naps) == 3


@pytest.mark.parametrize(
    "voters, lost, expected",
    [
        (["node1", "node2"], ["node1"], True),
        (["node1", "node2", "node3"], ["node1"], True),
        (["node1", "node2", "node3"], ["node1", "node3"], False),
        (["node1", "node2"], ["node9"], False),
        (["node1", "node2"], [], False),
    ],
)
def test_a_supervisor_is_removed_where_the_lost_nodes_decide_nothing_alone(
    node, voters, lost, expected
):
    node.install(voters=voters)
    assert installation.leave(node.run, node.home, node.base, RUN, "node2", lost) is expected
    assert node.read()["open"] is not expected


@pytest.mark.parametrize("start, is_removed", [("token", True), ("another", False)])
def test_a_start_removes_its_own_supervisor_alone(node, start, is_removed):
    node.install()
    node.calls.clear()
    installation.remove(node.run, node.home, node.base, RUN, "node2", start)
    assert node.read()["open"] is not is_removed
    assert (node.calls[:1] == ["stop"]) is is_removed


def test_nothing_is_removed_where_nothing_is(node):
    assert not installation.leave(node.run, node.home, node.base, RUN, "node2", ["node1"])
    installation.remove(node.run, node.home, node.base, RUN, "node2", "token")
    assert node.calls == []
