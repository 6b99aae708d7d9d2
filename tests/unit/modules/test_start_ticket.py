# SPDX-License-Identifier: Apache-2.0
"""The ticket of a start on a node, and the action that waits with it."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import pytest
import start_ticket as module
from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.utils.display import Display
from ansible_collections.trainyard.cluster.plugins.action import start_ticket as action
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    ownership,
    tickets,
)

RUN, TOKEN = "20261120-103501-x-1f2e", "0123456789abcdef"
OWNER = "a\n@" + "desk" * 100
HELD = {"description": "Trainyard run R", "state": "active", "since": 5.0, "by": "bob@desk"}


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node that is free, with its directory of tickets."""
    folder = tmp_path / "tickets"
    monkeypatch.setattr(tickets, "folder_of", lambda _base: str(folder))
    monkeypatch.setattr(ownership, "list_owners", lambda _run, _base: [])
    return folder


def ask(run_module, state, **more):
    return run_module(module, {"run_id": RUN, "token": TOKEN, "state": state, **more})


def test_a_ticket_is_drawn_renewed_and_removed(run_module, node):
    drawn = ask(run_module, "present", by="alice@desk")
    again = ask(run_module, "turn", by="alice@desk", since=drawn["since"])
    assert drawn["since"] == again["since"] > 1e9
    (ticket,) = again["tickets"]
    assert (ticket["run"], ticket["by"], ticket["turn"]) == (RUN, "alice@desk", True)
    assert os.stat(node / f"{RUN}-{TOKEN}.json").st_mode & 0o777 == 0o600
    ask(run_module, "absent")
    late = ask(run_module, "present", by="alice@desk", since=drawn["since"])
    assert late["tickets"] == [] and not list(node.glob("*.json"))


def test_check_mode_leaves_no_ticket(run_module, node):
    answer = run_module(module, {"run_id": RUN, "token": TOKEN}, check=True)
    assert answer["tickets"] == [] and not node.exists()


def test_a_node_whose_systemd_is_silent_gets_no_ticket(run_module, node, monkeypatch):
    def refuse(_run, _base):
        raise attempt_dir.AttemptError("attempt.no_user_systemd", "systemd does not answer")

    monkeypatch.setattr(ownership, "list_owners", refuse)
    assert ask(run_module, "present")["code"] == "attempt.no_user_systemd" and not node.exists()


def test_an_id_that_leads_elsewhere_is_refused(run_module, node):
    assert ask(run_module, "present", token="../x")["code"] == "wait.bad_ticket"


@pytest.fixture
def wait(tmp_path, monkeypatch):
    """Return a call that runs the action on one node with these answers, the last one for ever.

    It returns (result, states that the node was asked for, lines shown).
    """
    monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    lines = []
    monkeypatch.setattr(Display, "display", lambda _self, text, **_more: lines.append(text))

    def call(answers, wait="yes", nodes=("node1",), check=False, before=lambda _states: None):
        monkeypatch.setattr(context, "CLIARGS", {"forks": 2})
        worker, states = object.__new__(action.ActionModule), []
        worker._task = SimpleNamespace(
            args={"run_id": RUN, "wait": wait, "nodes": list(nodes), "poll": 0.3, "by": OWNER},
            check_mode=check,
            async_val=0,
        )
        worker._vars, worker._display = {}, Display()

        def execute(module_args, **_more):
            states.append(module_args["state"])
            assert tickets.OWNER.match(module_args["by"])
            before(states)
            answer = answers[min(len(states), len(answers)) - 1]
            if isinstance(answer, Exception):
                raise answer
            own = {"id": f"{RUN}-{module_args['token']}", "run": RUN, "by": "", "turn": False}
            held, others = answer
            listed = [*others, *([] if check else [own])]
            return {"held": held, "tickets": listed, "since": 7.0, "changed": False}

        worker._execute_module = execute
        monkeypatch.setattr(action.ActionBase, "run", lambda *_arguments: {})
        monkeypatch.setattr(
            action.ActionModule, "_execute_module", lambda _self, **more: execute(**more)
        )
        return worker.run(None, {"inventory_hostname": "node1"}), states, lines

    return call


OTHER = {"id": f"{RUN}-{'0' * 16}", "run": RUN, "by": "bob", "turn": False}
FREE, BUSY, BEHIND = ([], []), ([HELD], []), ([], [OTHER])


def test_a_free_node_costs_two_looks_and_no_word(wait):
    result, states, lines = wait([FREE])
    assert (result["end"], states, lines) == ("go", ["present", "turn"], [])


def test_a_start_waits_for_runs_and_for_those_before_it(wait):
    result, states, lines = wait([BUSY, BUSY, BEHIND, FREE], wait="2h")
    assert result["end"] == "go" and states == [*["present"] * 4, "turn"]
    assert len(lines) == 2 and "bob@desk" in lines[0] and "place 2 of 2" in lines[1]
    assert all("at most 1:5" in line or "at most 2:0" in line for line in lines)


def test_a_wait_that_is_over_removes_the_ticket(wait):
    result, states, _lines = wait([BUSY], wait="1s")
    assert result["failed"] and result["code"] == "wait.timed_out" and states[-1] == "absent"


def test_a_node_that_never_answered_is_not_waited_for(wait):
    result, states, _lines = wait([AnsibleConnectionFailure("no route")])
    assert result["end"] == "no_answer" and states == ["present", "absent"]


def test_a_node_that_is_silent_for_a_while_is_waited_for(wait):
    result, states, lines = wait([BUSY, AnsibleConnectionFailure("no route"), FREE])
    assert result["end"] == "go" and "no route" in lines[1]


def test_check_mode_only_says_that_it_would_wait(wait):
    result, states, lines = wait([BUSY], check=True)
    assert (result["end"], states, len(lines)) == ("check", ["present"], 1)


def test_wait_no_asks_no_node(wait):
    result, states, _lines = wait([BUSY], wait="no")
    assert result["skipped"] and not states


@pytest.mark.parametrize(
    "change", [{"nodes": ["a", "b", "node1"]}, {"nodes": ["b"]}, {"wait": "2"}]
)
def test_a_wait_that_cannot_end_is_refused(wait, change):
    with pytest.raises(AnsibleActionFail):
        wait([FREE], **change)


def test_ctrl_c_removes_the_ticket(wait, monkeypatch):
    seen = []

    def leave(code):
        raise SystemExit(code)

    def interrupt(states):
        seen[:] = states
        if len(states) == 1:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    monkeypatch.setattr(os, "_exit", leave)
    handlers = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit):
            wait([BUSY], before=interrupt)
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)
    assert seen == ["present", "absent"]


def test_a_worker_whose_playbook_was_killed_ends_and_leaves_the_ticket(wait, monkeypatch):
    def leave(code):
        raise SystemExit(code)

    seen, parents = [], iter([1])
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 2))
    with pytest.raises(SystemExit):
        wait([BUSY], before=lambda states: seen.__setitem__(slice(None), states))
    assert seen == ["present"]
