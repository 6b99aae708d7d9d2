# SPDX-License-Identifier: GPL-3.0-or-later
"""Base class of the actions of logs.yml.

How lines reach the terminal: every node has one worker of Ansible, a process of its own without a
terminal, which gives what it reads to Display.display. Ansible hands that over a pipe to one thread
of the main process, which writes it out. So lines of two nodes never tear each other, what Ansible
itself prints comes between whole lines, a terminal that is slow holds the workers up instead of
filling memory, and it works under ansible-runner. A callback is called only when a task of a node
ends or is tried again. One call takes all lines that there are, since each costs a turn of that
thread. Nothing flushes what is written into a pipe, so the callback plugin makes standard output
line-buffered.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any

from ansible.utils.color import stringc
from ansible.utils.vars import load_extra_vars
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_choice

from .base.project import project_dir
from .config import logs_options
from .controller_action import Arguments, ControllerAction, Result
from .gate import answer_gate
from .logsync import archive, log_view, rank_index

COLORS = (
    "cyan",
    "green",
    "yellow",
    "blue",
    "magenta",
    "bright cyan",
    "bright green",
    "bright yellow",
    "bright blue",
    "bright magenta",
)
# The playbook has shown what is to be seen; with -v Ansible would print the whole result besides.
QUIET = {"changed": False, "_ansible_verbose_override": True}


class LogsAction(ControllerAction):
    """An action of logs.yml, which reads its options from the command line as data."""

    FAILURES = (rank_index.IndexProblem, archive.RunNotFound)
    # What a refusal adds to the number of problems.
    UNTOUCHED = ""

    def execute(self, arguments: Arguments) -> Result:
        """Read the options, and return the result of the action's own work."""
        self._given = arguments
        self._extra = plain(load_extra_vars(self._loader))
        self._options = logs_options.parse_options(self._extra)
        return {**self.answer(), **QUIET}

    @abstractmethod
    def answer(self) -> Result:
        """Return the result's fields."""

    def _site_value(self, name: str, default: str) -> str:
        """Return a variable of the site, which the nodes have and localhost perhaps not."""
        first = (self.group("trainers") or ["localhost"])[0]
        return str(self.host_value(first, name) or default)

    def _runs_dir(self) -> str:
        runs_dir = os.path.expanduser(self._site_value("trainyard_runs_dir", "runs"))
        return os.path.join(project_dir(), runs_dir)

    @property
    def _choice(self) -> dict[str, Any]:
        return self._given["choice"]

    def _attempt(self) -> archive.LocalAttempt:
        """Return the chosen attempt as it is on the controller."""
        return archive.LocalAttempt(self._runs_dir(), self._choice["run"], self._choice["number"])

    def _refuse(
        self, home: archive.LocalAttempt | None, logs: list[Any] | None, nodes: list[str]
    ) -> None:
        """Refuse a node or a rank that the run does not have."""
        known, node = nodes, self._options["node"]
        if home and home.nodes:
            known = home.nodes
        if node is not None and node not in known:
            self._fail_command_line(f"node: there is no {node}; nodes: {', '.join(known)}")
        if logs is not None:
            problem = log_view.select_logs(logs, self._options["ranks"], node)[1]
            if problem:
                self._fail_command_line(problem)

    def _fail_command_line(self, text: str) -> None:
        """Fail with a problem of the command line."""
        self.fail(printable(f"1 problem{self.UNTOUCHED}:\n  command line {text}", newlines=True))

    def _select(self, logs: list[Any]) -> list[Any]:
        """Return the logs of the ranks and the node that the command line names."""
        return log_view.select_logs(logs, self._options["ranks"], self._options["node"])[0]

    @staticmethod
    def _view(home: archive.LocalAttempt, logs: list[Any]) -> log_view.View:
        return log_view.View(
            logs + home.planned(),
            home.secrets,
            lambda words, number: stringc(words, COLORS[number % len(COLORS)]),
        )


class NodeLogsAction(answer_gate.Gated, LogsAction):
    """An action of logs.yml that asks a node."""

    def _status(self, run: str, number: int) -> dict[str, Any]:
        """Return the node's status of an attempt. Fail where it is not valid."""
        node = self.task_vars["inventory_hostname"]
        answer = self._execute_module(
            module_name="trainyard.cluster.attempt_monitor",
            module_args={"run_id": run, "number": number, "node": node, "base": self._base()},
            task_vars=self.task_vars,
        )
        if answer.get("failed") or "status" not in answer:
            text = str(answer.get("msg") or "attempt_monitor gave no status")
            self.fail(printable(text))
        status = answer["status"]
        if not _is_valid(status, run):
            self.fail(f"{node} gave an answer about a run that is not valid")
        return status

    def _base(self) -> str:
        return self._site_value("trainyard_home", ".trainyard")


def _is_valid(status: Any, run: str) -> bool:
    """Return true for a status that is about this run."""
    if not isinstance(status, dict) or not isinstance(status.get("ended"), bool):
        return False
    return not status.get("found") or run_choice.is_sound(status, run)
