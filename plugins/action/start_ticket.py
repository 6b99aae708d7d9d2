# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait until a start has its turn on all nodes. Documented in library/start_ticket.py."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator
from typing import Any

from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import wait_option
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import Result
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import turn, turn_board

_STEP_SECONDS = 0.25
MOST_OWNER = 200
GO, CHECK, NO_ANSWER, TIMED_OUT = "go", "check", "no_answer", "timed_out"


class _Interrupted(BaseException):
    """Ctrl-C, or the end of ansible-playbook."""


class ActionModule(answer_gate.Gated, ActionBase):
    """The wait for one node. The workers of all nodes end it together."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Result:
        """Return the node's last answer and how the wait ended."""
        result: Result = super().run(tmp, task_vars)
        self._vars, self._parent = task_vars or {}, os.getppid()
        self._read_arguments()
        if not wait_option.is_on(self._wait):
            result.update(changed=False, skipped=True)
            return result
        self._began, self._shown = time.monotonic(), ""
        folder: str = C.DEFAULT_LOCAL_TMP  # type: ignore[attr-defined]
        self._board = turn_board.Board(os.path.join(folder, f"turn-{self._run_id}"), self._names)
        self._ticket: dict[str, Any] = {"token": secrets.token_hex(8), "since": 0}
        try:
            with _interruptible():
                answer = self._wait_for_turn()
        except _Interrupted:
            self._ask("absent")
            os._exit(1)
        result.update(answer)
        return result

    def _read_arguments(self) -> None:
        arguments = plain(self._task.args)
        self._run_id, self._wait = str(arguments.get("run_id")), arguments.get("wait", "yes")
        self._names = [str(name) for name in arguments.get("nodes") or ()]
        self._name = str(self._vars.get("inventory_hostname"))
        self._poll = float(arguments.get("poll", 5))
        problem = wait_option.value_problem(self._wait)
        if not RUN_ID.match(self._run_id) or self._name not in self._names:
            problem = "run_id is not a run, or nodes lacks this node"
        forks = int(context.CLIARGS.get("forks") or C.DEFAULT_FORKS)  # type: ignore[attr-defined]
        if len(self._names) > forks:
            problem = (
                f"{len(self._names)} nodes need as many workers; give --forks {len(self._names)}"
            )
        if problem:
            raise AnsibleActionFail(f"wait: {problem}")

    @property
    def _leads(self) -> bool:
        return self._name == self._names[0]

    def _wait_for_turn(self) -> Result:
        """Look again and again until the wait ends, and return the task's result."""
        answered = False
        while True:
            end = self._board.end()
            if end:
                return self._finish(end)
            if not self._leads:
                self._ticket = self._board.ticket()
            if self._ticket:
                answer = self._ask("present")
                answered = self._post(answer, answered)
            self._pause()

    def _post(self, answer: Result, answered: bool) -> bool:
        """Tell the other workers of a look, and return whether the node ever answered."""
        problem = printable(str(answer.get("msg", "no reason"))) if answer.get("failed") else ""
        answered = answered or not problem
        if self._leads and not problem:
            self._ticket["since"] = answer["since"]
            self._board.post_ticket(self._ticket["token"], self._ticket["since"])
        look: turn.Look = {
            "held": answer.get("held", []),
            "tickets": answer.get("tickets", []),
            "at": time.monotonic(),
            "problem": problem,
            "answered": answered,
        }
        self._board.post_look(self._name, look)
        if problem and not answered:
            # The probe names this node and what is wrong with it.
            self._board.post_end(NO_ANSWER)
        return answered

    def _pause(self) -> None:
        """Wait for the next look, less where the wait ends. The leader decides meanwhile."""
        until = time.monotonic() + self._poll
        while time.monotonic() < until and not self._board.end():
            if os.getppid() != self._parent:
                # Without its ansible-playbook a worker would wait for ever. The ticket expires.
                os._exit(1)
            if self._leads:
                self._decide()
            elif not self._ticket and self._board.ticket():
                return
            time.sleep(_STEP_SECONDS)

    def _decide(self) -> None:
        """End the wait where it is this start's turn or its time is over; show what changes."""
        looks = self._board.looks()
        if looks and self._task.check_mode:
            if not turn.is_free(looks):
                self._show("would wait", turn.describe(looks, self._id), "")
            self._board.post_end(CHECK)
            return
        if looks and turn.is_turn(looks, self._id, time.monotonic()):
            self._board.post_end(GO)
            return
        limit, left = wait_option.limit_of(self._wait), None
        if limit is not None:
            left = limit - (time.monotonic() - self._began)
        if (
            looks
            and time.monotonic() - min(look["at"] for look in looks.values()) < turn.FRESH_SECONDS
        ):
            self._show("waiting", turn.describe(looks, self._id), turn.describe_left(left))
        if left is not None and left <= 0:
            self._board.post_end(TIMED_OUT)

    @property
    def _id(self) -> str:
        return f"{self._run_id}-{self._ticket['token']}"

    def _show(self, head: str, text: str, rest: str) -> None:
        if text != self._shown:
            self._shown = text
            # Standard error is written at once, also to a pipe.
            self._display.display(f"{head}: {text}{rest}", stderr=True)

    def _finish(self, end: str) -> Result:
        """Take the turn or remove the ticket, and return the task's result."""
        result: Result = {"changed": False, "end": end, "waited": time.monotonic() - self._began}
        if self._ticket and end != CHECK:
            self._ask("turn" if end == GO else "absent")
        if end == TIMED_OUT and self._leads:
            looks = self._board.looks() or {}
            reason = turn.describe(looks, self._id) if self._ticket else "no answer"
            text = f"nothing was started: the wait of {self._wait} is over: {reason}"
            result.update({"failed": True, "msg": text, "code": "wait.timed_out"})
        return result

    def _ask(self, state: str) -> Result:
        """Return the node's answer, or a failed one where it gives none."""
        arguments = {
            "run_id": self._run_id,
            # A longer one would make the ticket invalid (attempts/tickets.py).
            "by": printable(str(plain(self._task.args).get("by", "")))[:MOST_OWNER],
            "base": plain(self._task.args).get("base", ".trainyard"),
            "state": state,
            **self._ticket,
        }
        try:
            answer: Result = self._execute_module(
                module_name="trainyard.cluster.start_ticket",
                module_args=arguments,
                task_vars=self._vars,
            )
        except AnsibleError as error:
            return {"failed": True, "msg": str(error)}
        return answer


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise _Interrupted in the block at SIGINT and SIGTERM, which Ansible sends to its workers.

    After the first one both are ignored, so that the ticket can be removed.
    """

    def interrupt(_signal: int, _frame: Any) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise _Interrupted

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    except _Interrupted:
        raise
    except BaseException:
        _restore(before)
        raise
    else:
        _restore(before)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
