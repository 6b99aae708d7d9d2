# SPDX-License-Identifier: Apache-2.0
"""The attempt module: started, held, stopped, idempotent, --check; with programs in place of
systemd's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import attempt as module
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    ownership,
    tickets,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as plans
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import zipapp
from core_support import CODE, ROOT, RUN, gang, program, put, recorded, trusted

UNIT = f"trainyard-{RUN}-1.service"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node's home with the code tree, a systemctl that lists $UNITS and a systemd-run that
    records.
    """
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    put(home / ".trainyard/code" / CODE[:16], {"tools/train.py": "1"})
    tools = program(
        tmp_path / "bin",
        "systemctl",
        'echo "$XDG_RUNTIME_DIR $@" >>$LOG\ncase "$2" in list-units) [ -z "$UNITS" ] || echo'
        ' "$UNITS";; is-active) echo "$STATE";; esac',
    )
    program(tools, "systemd-run", 'echo "$@" >>$LOG; exit ${RUN_EXIT:-0}')
    monkeypatch.setenv("PATH", tools + os.pathsep + os.environ["PATH"])
    arguments = gang(count=2)
    for fact in arguments["facts"].values():
        fact["base"] = str(home / ".trainyard")
    made = plans.compile_plan(**arguments)

    class Node:
        bin, place = tools, str(home / ".trainyard/runs" / RUN / "attempt-1")
        start = {
            "state": "started",
            "run_id": RUN,
            "node": "node2",
            "plan": plans.canonical_bytes(made).decode(),
            "plan_sha256": plans.sha256(made),
            "agent": zipapp.encoded(),
            "keys": trusted(home, ["node1", "node2"], "node2"),
        }
        stop = {"state": "stopped", "node": "node2"}

    return Node


def units(monkeypatch, *names):
    """Let systemctl list these units as running."""
    monkeypatch.setenv(
        "UNITS",
        "\n".join(f"{name} loaded active running Trainyard run {name[10:-10]}" for name in names),
    )
    monkeypatch.setenv("STATE", "active" if names else "inactive")


def test_check_mode_says_it_would_start(run_module, node):
    assert run_module(module, node.start, check=True)["changed"] is True
    assert not os.path.exists(node.place) and recorded(node.bin, "systemd-run") == []


def test_started_answers_with_the_digest_on_the_disk(run_module, node):
    result = run_module(module, node.start)
    assert {key: result[key] for key in ("changed", "unit", "attempt_dir", "plan_sha256")} == {
        "changed": True,
        "unit": UNIT,
        "attempt_dir": node.place,
        "plan_sha256": node.start["plan_sha256"],
    }
    calls = recorded(node.bin, "systemd-run")
    assert (
        len(calls) == 2  # the second starts the guard
        and "--unit=" + UNIT in calls[0]
        and calls[0].endswith(f"agent.pyz run {node.place} node2")
    )
    assert recorded(node.bin, "systemctl")[0].startswith(
        "/run/user/%d --user list-units" % os.getuid()
    )


def test_a_start_ends_its_own_wait_and_a_rehearsal_does_not(
    run_module, node, monkeypatch, tmp_path
):
    folder = str(tmp_path / "tickets")
    monkeypatch.setattr(tickets, "folder_of", lambda _base: folder)
    ids = [f"{run}-{'0' * 16}" for run in (RUN, RUN.replace("ppyoloe", "other"))]
    for ticket_id in ids:
        ticket = {"id": ticket_id, "by": "", "since": 1.0, "turn": True}
        tickets.renew(folder, ticket, tickets.clock())

    def left():
        return [item["id"] for item in tickets.list_living(folder)]

    assert run_module(module, dict(node.start, number=0, key_of=1))["changed"]
    assert sorted(left()) == sorted(ids)
    assert run_module(module, node.start)["changed"]
    assert left() == ids[1:]


def test_the_record_says_whose_start_it_is_and_of_which_boot(run_module, node):
    run_module(module, dict(node.start, start="mine", by="ann@desk"))
    with open(node.place + "/attempt.json", encoding="ascii") as handle:
        record = json.load(handle)
    assert (record["start"], record["by"], record["boot"]) == (
        "mine",
        "ann@desk",
        ownership.boot_mark(),
    )


def test_the_same_start_again_changes_nothing(run_module, node, monkeypatch):
    units(monkeypatch, UNIT)
    assert (
        run_module(module, node.start)["changed"] is False
        and recorded(node.bin, "systemd-run") == []
    )


def test_a_node_that_another_run_holds_is_refused(run_module, node, monkeypatch):
    units(monkeypatch, UNIT.replace("ppyoloe", "other"))
    result = run_module(module, node.start)
    run, unit = RUN.replace("ppyoloe", "other"), UNIT.replace("ppyoloe", "other")
    assert result["failed"] and "node2 is held by " in result["msg"]
    assert f" run {run} ({unit}, active)" in result["msg"]
    assert not os.path.exists(node.place)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"plan_sha256": "0" * 64}, "the plan arrived with sha256"),
        ({"run_id": "../x"}, "'../x' is not a run id"),
        ({"run_id": ""}, "is not a run id"),
        ({"plan": None}, "plan"),
        ({"plan": "{half"}, "Expecting"),
        ({"state": "restarted"}, "value of state must be one of: started, stopped, standby"),
    ],
)
def test_what_cannot_start(run_module, node, change, words):
    arguments = {
        key: value for key, value in dict(node.start, **change).items() if value is not None
    }
    result = run_module(module, arguments)
    assert result["failed"] and words in result["msg"] and recorded(node.bin, "systemd-run") == []


def test_systemds_refusal_is_shown(run_module, node, monkeypatch):
    refusal = "Failed to start transient service unit"
    program(node.bin, "systemd-run", f'echo "{refusal}" >&2; exit 1')
    result = run_module(module, node.start)
    assert result["failed"] and f"not start {UNIT}: {refusal}" in result["msg"]


@pytest.mark.parametrize(
    "given, by", [({}, "user"), ({"reason": "peer", "by": "the controller"}, "peer")]
)
def test_stopped_by_name(run_module, node, monkeypatch, given, by):
    units(monkeypatch, UNIT)
    result = run_module(module, dict(node.stop, run_id=RUN, **given))
    assert (result["changed"], result["stopped"], result["left"]) == (True, [RUN], [])
    assert "/run/user/%d --user stop %s" % (os.getuid(), UNIT) in recorded(node.bin, "systemctl")
    with open(node.place + "/stop.json", encoding="ascii") as handle:
        said = json.load(handle)
    assert (said["by"], said["from"]) == (by, given.get("by", "the user"))


def test_stopped_whatever_holds_the_node(run_module, node, monkeypatch):
    second = UNIT.replace("ppyoloe", "other")
    units(monkeypatch, UNIT, second)
    checked = run_module(module, node.stop, check=True)
    assert checked["changed"] is True and not any(
        " stop " in call for call in recorded(node.bin, "systemctl")
    )
    result = run_module(module, node.stop)
    assert result["stopped"] == [RUN, RUN.replace("ppyoloe", "other")]
    assert [call.split()[-1] for call in recorded(node.bin, "systemctl") if " stop " in call] == [
        UNIT,
        UNIT.replace("trainyard", "yardguard", 1),
        second,
        second.replace("trainyard", "yardguard", 1),
    ]


def test_stopping_twice_changes_nothing(run_module, node, monkeypatch):
    units(monkeypatch)
    assert run_module(module, node.stop)["changed"] is False
    put(node.place, {"exit.json": "{}"})
    assert run_module(module, dict(node.stop, run_id=RUN))["changed"] is False and sorted(
        os.listdir(node.place)
    ) == ["exit.json"]


# --- what a run has left outside its units


def test_a_person_ends_all_that_a_run_left_and_nothing_else(run_module, node, monkeypatch, marked):
    units(monkeypatch)
    first, second, other = (
        marked(RUN + "/1"),
        marked(RUN + "/2"),
        marked(RUN.replace("ppyoloe", "other") + "/1"),
    )
    asked = dict(node.stop, run_id=RUN)
    assert run_module(module, asked, check=True)["changed"] is True and first.poll() is None
    result = run_module(module, asked)
    assert (result["changed"], result["stopped"], result["left"]) == (True, [RUN], [])
    assert sorted(
        (item["pid"], item["attempt"], item["signal"]) for item in result["ended"]
    ) == sorted([(first.pid, 1, "TERM"), (second.pid, 2, "TERM")])
    assert first.wait(5) and second.wait(5) and other.poll() is None
    again = run_module(module, asked)
    assert (again["changed"], again["ended"]) == (False, [])


def test_a_peer_ends_its_own_attempt_alone(run_module, node, monkeypatch, marked):
    units(monkeypatch)
    first, second = marked(RUN + "/1"), marked(RUN + "/2")
    result = run_module(module, dict(node.stop, run_id=RUN, reason="peer"))
    assert [item["pid"] for item in result["ended"]] == [first.pid] and second.poll() is None


def test_another_attempt_of_the_run_that_runs_is_stopped_as_a_unit(run_module, node, monkeypatch):
    running = UNIT.replace("-1.service", "-2.service")
    units(monkeypatch, running)
    run_module(module, dict(node.stop, run_id=RUN, number=1))
    stops = [call.split()[-1] for call in recorded(node.bin, "systemctl") if " stop " in call]
    assert stops[-2:] == [running, running.replace("trainyard", "yardguard", 1)]


def test_without_a_user_manager_what_is_named_is_ended_all_the_same(
    run_module, node, monkeypatch, marked
):
    program(node.bin, "systemctl", 'echo "Failed to connect to bus" >&2; exit 1')
    process = marked(RUN + "/1")
    assert [item["pid"] for item in run_module(module, dict(node.stop, run_id=RUN))["ended"]] == [
        process.pid
    ]
    result = run_module(module, node.stop)
    assert result["failed"] and "provision.yml" in result["msg"]


def test_what_runs_on_nodes_needs_no_pyyaml():
    """Nodes have Python and nothing else (check, node_info): a module that imports more fails
    there, and only there.
    """
    code = (
        "import sys; sys.modules['yaml'] = sys.modules['jinja2'] = None; sys.path[:0] ="
        " ['library', 'collections']\nimport attempt,"
        " attempt_monitor, run_prune, rehearsal_wait, run_history_info"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=str(ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


# --- a run that its nodes restart themselves

PLANS = [{"nodes": ["node1", "node2"], "fresh": "{}", "template": ""}]
SUPERVISE = {
    "max_restarts": 3,
    "point": {},
    "notify": [],
    "spares": ["node3"],
    "voters": ["node1", "node2", "node3"],
    "plans": PLANS,
}


@pytest.fixture
def spare(node):
    """The arguments that make node3 ready."""
    home = os.environ["HOME"]
    keys = {**node.start["keys"], "node3": None}
    keys.update(trusted(home, ["node1", "node2", "node3"], "node3"))
    given = {key: node.start[key] for key in ("run_id", "plan", "agent")}
    archives = dict.fromkeys(("supervisor", "replicator"), node.start["agent"])
    more = {"state": "standby", "node": "node3", "keys": keys, "start": "t1"}
    return {**given, **archives, **more, "supervise": json.dumps(SUPERVISE)}


def credential(name):
    """Return the directory of a node's credential."""
    return os.path.join(os.environ["HOME"], ".trainyard/mesh/runs", RUN, "1", name)


def test_a_spare_gets_a_supervisor_and_starts_nothing(run_module, node, spare):
    result = run_module(module, spare)
    assert (result["changed"], result["unit"]) == (True, UNIT)
    place = os.path.join(os.path.dirname(node.place), "supervisor/node3")
    with open(os.path.join(place, "order.json"), encoding="utf-8") as handle:
        order = json.load(handle)
    assert (order["nodes"], order["spares"]) == (["node1", "node2"], ["node3"])
    assert order["mesh"] == os.path.join(credential("node3"), "config")
    assert sorted(os.listdir(place)) == sorted(
        ["order.json", "plans.json", "job.json", "agent.pyz", "replicator.pyz", "supervisor.pyz"]
    )
    assert recorded(node.bin, "systemd-run") == [] and not os.path.exists(node.place)
    calls = "".join(recorded(node.bin, "systemctl"))
    assert f"start yardsupervisor-{RUN}-1-node3.service" in calls
    keys = os.path.join(os.environ["HOME"], ".ssh/authorized_keys")
    with open(keys, encoding="utf-8") as handle:
        lines = [line.split()[-2:] for line in handle if "trainyard-run" in line]
    assert lines == [["node1", "node3"], ["node2", "node3"]]


def test_a_spare_whose_supervisor_does_not_start_keeps_no_key(run_module, node, spare):
    program(node.bin, "systemctl", "exit 1")
    result = run_module(module, spare)
    assert result["code"] == "attempt.supervisor_not_started"
    assert not os.path.exists(credential("node3"))


def test_the_nodes_of_a_run_let_its_spares_call_them(run_module, node, spare):
    more = {"supervise": spare["supervise"], "supervisor": spare["supervisor"], "start": "t1"}
    keys = {**spare["keys"], **node.start["keys"], "node3": spare["keys"]["node3"]}
    given = {**node.start, **more, "replicator": spare["replicator"], "keys": keys}
    assert run_module(module, given)["changed"]
    with open(os.path.join(credential("node2"), "machine.json"), encoding="utf-8") as handle:
        machine = json.load(handle)
    assert machine["nodes"] == ["node1", "node2", "node3"] and machine["supervised"]
    assert not os.path.exists(os.path.join(node.place, "replicator.pyz"))
    assert os.path.exists(os.path.join(os.path.dirname(node.place), "supervisor/node2/order.json"))
