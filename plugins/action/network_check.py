# SPDX-License-Identifier: GPL-3.0-or-later
"""Run network_check on a node, with its listener. Documented in library/network_check.py.

The workers of all nodes do `tested` together: a node connects when all listen, and a listener stays
until all have connected. Where Ansible holds a connection to the node, one program there answers in
all states. A module would begin a Python for each.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.network import (
    check_lock,
    check_session,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import held_program, zipapp
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import Result
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import (
    agent_action,
    answer_gate,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    log_receiver,
    node_program,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.network import meeting

# The arguments of each state.
NODE = ("id", "node")
LINKS = (*NODE, "nodes", "address", "interface", "ports", "matrix")
# What a node says in each meeting that it does not reach.
NOTHING_SAID: dict[str, dict[str, Any]] = {"listeners": {}, "ends": {"complete": False}}
MODULE = "network_check"
# The program of module_utils that answers in all states.
PROGRAM = "network.check_session"
READY_SECONDS = 20.0  # for its start on a busy node


class ActionModule(agent_action.AgentAction):
    """Result of the module, which brings the listener's program to the node."""

    STATES = ("listening",)

    def answer(self, task_vars: dict[str, Any] | None) -> Result:
        """Return what the module answers, or the answers of all its states together."""
        given = plain(self._task.args)
        if given.get("state") != "tested":
            return super().answer(task_vars)
        if self._task.check_mode:
            return {"changed": False, "skipped": True}
        self._given, self._vars, self._unsaid = given, task_vars, dict(NOTHING_SAID)
        self._session: held_program.HeldProgram | None = None
        self._node, self._together = str(given.get("node")), list(given.get("together") or ())
        if not check_lock.ID.match(str(given.get("id"))) or self._node not in self._together:
            raise AnsibleActionFail("id is not that of a check, or together lacks the node")
        try:
            self._open_session()
            return self._test()
        finally:
            self._close_session()
            # The others wait for this node, whatever became of it.
            for subject in list(self._unsaid):
                self._say(subject, NOTHING_SAID[subject])

    def _test(self) -> Result:
        """Listen, connect when all listen, and end the listener where a connection is missing."""
        self._say("listeners", self._ask("listening", (*LINKS, "seconds")))
        book = self._hear("listeners")
        found = self._ask("connected", (*LINKS, "depth"), book=book)
        self._say("ends", {"complete": bool(found.get("complete"))})
        ends = self._hear("ends")
        if not all(ends.get(name, {}).get("complete") for name in self._together):
            # What the node found counts also where its listener cannot be ended.
            with contextlib.suppress(AnsibleError):
                found["ended_by"] = self._ask("closed", NODE).get("rival")
        return found

    def _ask(self, state: str, names: tuple[str, ...], **more: Any) -> Result:
        """Return the node's answer in one of the module's states."""
        if self._session is not None:
            question = {"state": state, **more}
            seconds = answer_gate.definition(MODULE)["seconds"]
            try:
                return self._validated(self._session.ask(question, seconds), question)
            except held_program.HeldError as error:
                self._close_session()
                # What it had begun is not known, and a second try could find what the first one
                # has left.
                if state != "closed":
                    text = f"the connection broke while the network was tested: {error}"
                    raise AnsibleConnectionFailure(text) from None
        arguments = {name: self._given[name] for name in names if name in self._given}
        return self.ask({**arguments, "state": state, **more}, self._vars)

    def _open_session(self) -> None:
        """Start the program on the node, where Ansible holds a plain connection to it."""
        if not node_program.is_ssh(self._connection):
            return
        if not log_receiver.is_connected(self._connection):
            return
        python = node_program.find_python(self._vars or {})
        try:
            shared = {**self._shared_arguments(), "agent": zipapp.encoded()}
            argv = node_program.start_argv(self._connection, python, "network-check")
            self._session = held_program.HeldProgram(argv, PROGRAM, shared)
            self._session.ask({"state": check_session.READY}, READY_SECONDS)
        except (held_program.HeldError, OSError, TypeError, ValueError):
            self._close_session()  # the module does it, or says why it cannot

    def _shared_arguments(self) -> Result:
        """Return the arguments that are the same in all states, of the types that the module takes.

        Raises TypeError or ValueError for one that it refuses.
        """
        given = {"address": "", "interface": "", "depth": "full", **self._given}
        if given["depth"] not in ("quick", "full"):
            raise ValueError("depth is neither quick nor full")
        texts = {name: str(given[name]) for name in (*NODE, "address", "interface", "depth")}
        return {
            **texts,
            "nodes": [str(name) for name in given.get("nodes", ())],
            "ports": [int(port) for port in given.get("ports", ())],
            "matrix": boolean(given.get("matrix", False)),
            "seconds": int(given["seconds"]),
        }

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _validated(self, answer: Any, question: Result) -> Result:
        """Return an answer of the program as the module's would be after the gate."""
        try:
            self._refuse_skipped(MODULE, answer)
            return answer_gate.validate(MODULE, answer, {**self._given, **question})
        except answer_gate.InvalidAnswer as error:
            return answer_gate.refusal(MODULE, self._node, error)

    def _meeting(self, subject: str) -> meeting.Meeting:
        folder: str = C.DEFAULT_LOCAL_TMP  # type: ignore[attr-defined]
        name = f"network-{self._task._uuid}-{subject}"
        return meeting.Meeting(os.path.join(folder, name), self._together)

    def _say(self, subject: str, what: dict[str, Any]) -> None:
        self._meeting(subject).say(self._node, what)
        self._unsaid.pop(subject, None)

    def _hear(self, subject: str) -> dict[str, Any]:
        """Return what the nodes say while a listener lives."""
        return self._meeting(subject).hear(float(self._given["seconds"]))
