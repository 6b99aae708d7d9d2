# SPDX-License-Identifier: Apache-2.0
"""Stopping: whose a start is, what else holds the gang, a start that comes later, ports that are
free again.
"""

from __future__ import annotations

import json
import os
import socket

import attempt as module
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    resume_decision,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import stopping
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.stop_summary import (
    summarize_stop,
)
from core_support import RUN, compiled, program, put, raises_code, recorded

UNIT = f"trainyard-{RUN}-1.service"
OTHER = RUN.replace("ppyoloe", "other")


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node's home and a systemctl that knows the units in the file `units` and forgets what it
    stops.
    """
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    units = tmp_path / "units"
    units.write_text("")
    body = """echo "$@" >>$LOG
case "$2" in
list-units) sed 's/$/ loaded active running a run/' %s ;;
is-active) grep -qx "$3" %s && echo active || echo inactive ;;
stop) sed -i "/^$3$/d" %s ;;
esac""".replace("%s", str(units))
    tools = program(tmp_path / "bin", "systemctl", body)
    monkeypatch.setenv("PATH", tools + os.pathsep + os.environ["PATH"])

    class Node:
        bin, base = tools, str(home / ".trainyard")

        @staticmethod
        def hold(run_id=RUN, number=1, files=None, **record):
            """Let an attempt run here; returns its directory."""
            place = attempt_dir.attempt_dir(Node.base, run_id, number)
            put(
                place,
                dict(
                    {"attempt.json": json.dumps(dict({"run": run_id}, **record))}, **(files or {})
                ),
            )
            units.write_text(units.read_text() + attempt_dir.unit_name(run_id, number) + "\n")
            return place

        @staticmethod
        def running():
            return units.read_text().split()

        @staticmethod
        def note(run_id=RUN, number=1):
            path = os.path.join(attempt_dir.attempt_dir(Node.base, run_id, number), "stop.json")
            return json.load(open(path, encoding="utf-8")) if os.path.exists(path) else None

    return Node


def stop(run_module, check=False, **more):
    return run_module(
        module, dict({"state": "stopped", "node": "node2", "by": "ann@desk"}, **more), check
    )


# --- whose a start is


def test_a_start_that_failed_takes_back_its_own(run_module, node):
    node.hold(start="mine")
    assert stop(run_module, run_id=RUN, start="mine", reason="peer")["stopped"] == [RUN]
    assert node.running() == [] and node.note()["by"] == "peer"


@pytest.mark.parametrize("held", [{"start": "theirs"}, {}, None])
def test_a_start_that_failed_leaves_what_another_one_began(run_module, node, held):
    """The same attempt, begun by another follower; one of an older Trainyard; none yet: it may be
    on its way here.
    """
    if held is not None:
        node.hold(**held)
    before = node.running()
    result = stop(run_module, run_id=RUN, start="mine", reason="peer")
    assert (result["changed"], result["kept"]) == (False, [RUN]) and node.running() == before
    assert node.note() is None, "a note would keep the other's start from beginning here"


# --- what is stopped


def test_a_stop_comes_before_the_start_that_it_is_meant_for(run_module, node):
    also = [[RUN, 1, ["node1", "node2"]]]
    result = stop(run_module, run_id=RUN, also=also)
    assert (result["changed"], result["noted"]) == (False, [RUN]) and node.note()[
        "from"
    ] == "ann@desk"
    with pytest.raises(attempt_dir.AttemptError, match="stopped before the start by ann@desk"):
        attempt_dir.prepare(
            attempt_dir.attempt_dir(node.base, RUN, 1), "{}", "", "node2", RUN, 1, {}
        )
    assert stop(run_module, run_id=RUN, also=also)["noted"] == [RUN]


def test_a_node_that_has_no_part_in_the_run_gets_no_note(run_module, node):
    assert stop(run_module, run_id=RUN, also=[[RUN, 1, ["node1"]]])[
        "changed"
    ] is False and not os.path.exists(node.base)


@pytest.mark.parametrize("lost, unconfirmed", [([], [RUN]), (["node1"], [])])
def test_a_stop_without_a_majority_is_final_where_the_lost_nodes_are_named(
    run_module, node, monkeypatch, lost, unconfirmed
):
    supervisors = stopping.supervisor_installation
    order = {"first": 1, "voters": ["node1", "node2"]}
    place = os.path.join(node.base, "runs", RUN, "supervisor", "node2")
    unit = supervisors.supervisor_unit.unit_path(os.environ["HOME"], UNIT, "node2")
    put(place, {"order.json": json.dumps(order)})
    put(os.path.dirname(unit), {os.path.basename(unit): ""})
    monkeypatch.setattr(supervisors, "await_final", lambda *_which: False)
    assert stop(run_module, run_id=RUN, lost=lost)["unconfirmed"] == unconfirmed
    assert os.path.exists(unit) is bool(unconfirmed)


def test_what_holds_another_node_is_stopped_here_as_well_and_may_not_come(run_module, node):
    node.hold(OTHER)
    result = stop(run_module, also=[[OTHER, 1, ["node1", "node2"]], [RUN, 2, ["node1", "node2"]]])
    assert (
        result["stopped"] == [OTHER] and node.note(RUN, 2)["by"] == "user" and node.running() == []
    )
    again = stop(run_module, also=[])
    assert (again["changed"], again["stopped"]) == (False, [])


def test_all_attempts_of_a_run_are_stopped(run_module, node):
    for number in (1, 2):
        node.hold(number=number)
    assert stop(run_module, run_id=RUN, number=1)["stopped"] == [RUN, RUN] and node.running() == []


# --- free again


@pytest.fixture
def port():
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        yield listener.getsockname()[1]


def planned(port):
    made = compiled(count=2, devices=1, accelerator="cpu")
    for rank in made["ranks"]:
        rank["endpoint"] = "10.0.0.1:%d" % port
    return dict(made, ports={"start": port, "count": 1})


def test_who_listens_on_the_runs_port_after_the_stop_is_named(run_module, node, port):
    node.hold(files={"plan.json": json.dumps(planned(port))})
    result = stop(run_module, run_id=RUN)
    assert result["stopped"] == [RUN]
    assert [(item["what"], item["own"]) for item in result["occupied"]] == [
        ("port %d" % port, False)
    ]
    assert "taken by pid %d of " % os.getpid() in result["occupied"][0]["text"]
    told = summarize_stop({"node2": result}, {}, RUN, ["node2"])
    assert (
        "not of this run and left alone: port %d" % port in told["summary"][1]
        and told["verdict"]["outcome"] == "stopped"
    )


def test_a_listener_of_the_run_itself_is_no_stop(port, monkeypatch, tmp_path):
    owner = {"user": "u", "uid": 0, "pid": 7, "command": "python", "run": RUN, "waits": False}
    monkeypatch.setattr(
        stopping.sockets, "owners", lambda taken, rows: {port: owner for port in taken}
    )
    put(attempt_dir.attempt_dir(str(tmp_path), RUN, 1), {"plan.json": json.dumps(planned(port))})
    found = stopping.find_occupied(None, str(tmp_path), RUN, 1, "node2", settle=0)
    assert [item["own"] for item in found] == [True]
    said = {"stopped": [RUN], "ended": [], "left": [], "occupied": found}
    told = summarize_stop({"node2": said}, {}, RUN, ["node2"])
    assert (
        told["verdict"]["outcome"] == "problems"
        and "NOT STOPPED on node2" in told["verdict"]["text"]
    )


def test_devices_that_the_run_still_has(tmp_path, monkeypatch):
    put(
        attempt_dir.attempt_dir(str(tmp_path), RUN, 1),
        {"plan.json": json.dumps(compiled(count=2, devices=2))},
    )
    rows = [
        dict(device=device, pid=7, run=run, user="bob", command="python")
        for device, run in (("0", RUN), ("1", None), ("7", None))
    ]
    monkeypatch.setattr(stopping.devices, "look", lambda run, base, asked: {"processes": rows})
    found = stopping.find_occupied(None, str(tmp_path), RUN, 1, "node2", settle=0)
    assert [(item["what"], item["own"]) for item in found if item["what"].startswith("device")] == [
        ("device 0", True),
        ("device 1", False),
    ]


# --- a run that is on its way


@pytest.mark.parametrize(
    "noted, after, refused", [([2], 1, True), ([], 1, False), ([2], 0, False), ([1], 1, False)]
)
def test_a_restart_that_waits_gives_up_and_a_person_may_resume(noted, after, refused):
    home = {"record": None, "numbers": [1], "job": {}, "nodes": ["node1"], "first": ["node1"]}
    told = {
        "found": True,
        "run": RUN,
        "attempt": 1,
        "attempts": sorted({1, *noted}),
        "noted": noted,
        "ended": True,
        "state": "failed",
        "nodes": ["node1"],
    }
    if refused:
        with raises_code(resume_decision.ResumeRefused, "resume.stopped"):
            resume_decision.decide(RUN, home, {"node1": told}, after)
    else:
        assert (
            resume_decision.decide(RUN, home, {"node1": told}, after)["number"]
            == max(told["attempts"]) + 1
        )


def test_check_mode_stops_nothing(run_module, node):
    node.hold()
    assert stop(run_module, check=True, run_id=RUN)["changed"] is True and node.running() == [UNIT]
    assert not any(line.startswith("--user stop") for line in recorded(node.bin, "systemctl"))
