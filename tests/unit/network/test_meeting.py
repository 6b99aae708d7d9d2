# SPDX-License-Identifier: Apache-2.0
"""Meetings of the workers of one task, and the network check that they do together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible_collections.trainyard.cluster.plugins.plugin_utils.network import meeting
from core_support import ROOT

NAMES = ["node1", "node2", "node3"]


def test_each_hears_all_and_those_who_are_late_are_left_out(tmp_path):
    folder, heard = str(tmp_path / "meeting"), {}

    def attend(name):
        held = meeting.Meeting(folder, NAMES)
        held.say(name, {"port": name})
        heard[name] = held.hear(30)

    workers = [threading.Thread(target=attend, args=(name,)) for name in NAMES]
    for worker in workers:
        worker.start()
        time.sleep(0.05)
    for worker in workers:
        worker.join()
    assert [heard[name] for name in NAMES] == [{name: {"port": name} for name in NAMES}] * 3
    late = meeting.Meeting(str(tmp_path / "late"), NAMES)
    late.say("node2", {"port": 1})
    assert late.hear(0.1) == {"node2": {"port": 1}}
    with pytest.raises(ValueError):
        late.say("node4", {})


def test_a_worker_whose_ansible_has_gone_waits_no_longer(tmp_path):
    source = (
        f"from {meeting.__name__} import Meeting; import os, time\n"
        "if os.fork(): time.sleep(1); os._exit(0)\n"
        f"Meeting({str(tmp_path / 'm')!r}, ['a']).hear(600)\n"
    )
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "collections")),
        capture_output=True,  # until the child has ended, too
    )
    assert done.returncode == 0 and time.monotonic() - begun < 60


@pytest.fixture
def check(load_plugin, tmp_path, monkeypatch):
    """The network check of all nodes at once, each by a thread. `answers` has what the module says
    on a node in a state (an exception is raised). The result is {node: result or exception}, and
    `asked` has (node, state, arguments) in turn.
    """
    plugin = load_plugin("action", "network_check")
    monkeypatch.setattr(plugin.C, "DEFAULT_LOCAL_TMP", str(tmp_path))

    def one(name, results, asked, **more):
        args = {"state": "tested", "id": "5f2a", "node": name, "nodes": NAMES, "ports": [17000]}
        args.update({"together": NAMES, "seconds": 60, "depth": "quick"}, **more)
        task = SimpleNamespace(
            args=args, async_val=0, check_mode=call.check, action="x", _uuid="this task"
        )
        shell = SimpleNamespace(tmpdir="/tmp")
        connection = SimpleNamespace(_shell=shell, transport=call.transport, become=None)
        action = plugin.ActionModule(task, connection, None, None, None, None)

        def execute(module_args, task_vars):
            asked.append((name, module_args["state"], module_args))
            said = call.answers.get((name, module_args["state"]), {"complete": True, "on": name})
            if isinstance(said, Exception):
                raise said
            return dict(said)

        monkeypatch.setattr(action, "_execute_module", execute)
        try:
            results[name] = action.run(task_vars={"inventory_hostname": name})
        except Exception as error:
            results[name] = error

    def call(**more):
        results, asked = {}, []
        workers = [
            threading.Thread(target=one, args=(name, results, asked), kwargs=more) for name in NAMES
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        return results, asked

    call.answers, call.check, call.plugin, call.transport = {}, False, plugin, "local"
    return call


def states(asked, name):
    return [state for node, state, _arguments in asked if node == name]


def test_all_listen_before_one_connects_and_no_listener_is_ended(check):
    results, asked = check()
    assert [state for _node, state, _arguments in asked] == ["listening"] * 3 + ["connected"] * 3
    for name in NAMES:
        assert results[name]["complete"] and "ended_by" not in results[name]
    for _node, state, arguments in asked:
        assert ("agent" in arguments) == ("seconds" in arguments) == (state == "listening")
        assert "together" not in arguments
        if state == "connected":
            assert arguments["book"] == {n: {"complete": True, "on": n} for n in NAMES}


def test_every_listener_is_ended_where_a_connection_is_missing(check):
    check.answers["node2", "connected"] = {"complete": False}
    check.answers["node3", "closed"] = {"rival": {"id": "77", "seconds": 3}}
    results, asked = check()
    for name in NAMES:
        assert states(asked, name) == ["listening", "connected", "closed"]
    assert [results[name]["ended_by"] for name in NAMES] == [None, None, {"id": "77", "seconds": 3}]
    assert not results["node2"]["complete"]


@pytest.mark.parametrize("state", ["listening", "connected"])
def test_nobody_waits_for_a_node_that_is_lost(check, state):
    check.answers["node1", state] = AnsibleConnectionFailure("gone")
    results, asked = check()
    assert isinstance(results["node1"], AnsibleConnectionFailure)
    for name in ("node2", "node3"):
        assert states(asked, name) == ["listening", "connected", "closed"]
        assert results[name]["on"] == name
    books = [arguments["book"] for _node, state, arguments in asked if state == "connected"]
    assert all(bool(book["node1"]) == (state == "connected") for book in books)


def test_a_failed_listener_is_told_to_the_others(check):
    check.answers["node1", "listening"] = {"failed": True, "msg": "no port"}
    results, asked = check()
    assert not any(isinstance(result, Exception) for result in results.values())
    (book,) = [a["book"] for node, state, a in asked if (node, state) == ("node2", "connected")]
    assert book["node1"] == {"failed": True, "msg": "no port"}


def test_what_was_found_counts_where_the_listener_cannot_be_ended(check):
    check.answers["node2", "connected"] = {"complete": False, "on": "node2"}
    check.answers["node2", "closed"] = AnsibleConnectionFailure("gone")
    results, _asked = check()
    assert results["node2"]["on"] == "node2" and "ended_by" not in results["node2"]


def test_nobody_waits_longer_than_a_listener_lives(check):
    began = time.monotonic()
    results, _asked = check(together=[*NAMES, "node4"], seconds=1)
    assert time.monotonic() - began < 30 and all(results[name]["complete"] for name in NAMES)
    assert all("ended_by" in result for result in results.values())


def test_nobody_waits_for_a_node_whose_word_cannot_be_written(check):
    check.answers["node1", "listening"] = {"on": {1, 2}}  # no JSON
    results, _asked = check()
    assert isinstance(results["node1"], TypeError)
    assert results["node2"]["on"] == "node2" and results["node3"]["on"] == "node3"


def test_nothing_is_opened_with_check_mode(check):
    check.check = True
    results, asked = check()
    assert asked == [] and all(result["skipped"] for result in results.values())


@pytest.mark.parametrize("more", [{"id": "../x"}, {"together": ["node4"]}])
def test_what_cannot_be_a_check_is_refused(check, more):
    results, asked = check(**more)
    assert asked == [] and all(isinstance(r, AnsibleActionFail) for r in results.values())


# --- one program for all states, where Ansible holds a connection

# Reads what comes before the first question, as agent/stdin_boot.py does. `shared` is the first
# line.
BOOT = """
import json, sys, time
for _part in range(2):
    sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
shared = json.loads(sys.stdin.buffer.readline())
"""
# Answers each question with what came, in a field that the gate lets through.
ECHO = """
for line in sys.stdin:
    said = {"shared": sorted(shared), **json.loads(line)}
    print(json.dumps({"complete": True, "closed": {"asked": json.dumps(said)}}), flush=True)
"""


@pytest.fixture
def session(check, monkeypatch):
    """The network check over held connections. `script` is the program of every node."""
    check.transport, check.script, check.connected = "ssh", ECHO, True
    monkeypatch.setattr(check.plugin.log_receiver, "is_connected", lambda _held: check.connected)
    monkeypatch.setattr(
        check.plugin.node_program,
        "start_argv",
        lambda *_which: [sys.executable, "-c", BOOT + check.script],
    )
    return check


def test_one_program_answers_in_all_states(session):
    results, asked = session(matrix="false", ports=["17000"])
    assert asked == []
    for name in NAMES:
        said = json.loads(results[name]["closed"]["asked"])
        assert said["state"] == "connected" and sorted(said["book"]) == NAMES
        assert {"agent", "id", "nodes", "ports", "seconds"} <= set(said["shared"])


def test_the_program_gets_what_the_module_would_get(session):
    session.script = """
for line in sys.stdin:
    named = {key: shared[key] for key in ("matrix", "ports", "depth", "interface")}
    print(json.dumps({"complete": True, "closed": {"asked": json.dumps(named)}}), flush=True)
"""
    results, _asked = session(matrix="false", ports=["17000"])
    assert json.loads(results["node1"]["closed"]["asked"]) == {
        "matrix": False,
        "ports": [17000],
        "depth": "quick",
        "interface": "",
    }


@pytest.mark.parametrize("script", ["", "print('no JSON', flush=True); time.sleep(600)"])
def test_the_module_answers_where_the_program_does_not_begin(session, script):
    session.script = script
    results, asked = session()
    for name in NAMES:
        assert results[name]["on"] == name
        assert states(asked, name) == ["listening", "connected"]


@pytest.mark.parametrize("how", ["not connected", "another transport", "arguments"])
def test_no_program_is_begun_where_it_could_not_answer(session, how):
    session.connected = how != "not connected"
    session.transport = "docker" if how == "another transport" else "ssh"
    results, asked = session(**({"depth": "deep"} if how == "arguments" else {}))
    assert len(asked) == 6 and all(result["on"] for result in results.values())


@pytest.mark.parametrize("lie", ['"more": 1', '"skipped": True'])
def test_what_the_program_answers_passes_the_gate_of_the_module(session, lie):
    session.script = ECHO.replace('"complete": True', f'"complete": True, {lie}')
    results, _asked = session()
    assert all(result["code"] == "answer.invalid" for result in results.values())


@pytest.mark.parametrize("state", ["listening", "connected"])
def test_a_node_whose_connection_breaks_is_unreachable(session, state):
    """A second try could find listeners that have seen this node through, and end by themselves."""
    session.script = ECHO.replace("    said =", f"    if {state!r} in line: break\n    said =", 1)
    results, asked = session()
    assert all(isinstance(result, AnsibleConnectionFailure) for result in results.values())
    assert asked == []
