# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps of logs.yml: select, find, show and follow the logs.

See library/run_logs.py for the documentation.

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
import time
from collections.abc import Callable
from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleConnectionFailure
from ansible.utils.color import stringc
from ansible.utils.vars import load_extra_vars
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_choice
from ansible_collections.trainyard.cluster.plugins.modules.run_logs import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import (
    logs_options as questions,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    archive,
    log_follower,
    log_receiver,
    log_view,
    rank_index,
)

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
UNIT_SECONDS = 30
# The playbook has shown what is to be seen; with -v Ansible would print the whole result besides.
QUIET = {"changed": False, "_ansible_verbose_override": True}

_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class ActionModule(answer_gate.Gated, ControllerAction):
    """One of the steps of logs.yml, by `state`.

    Only found, brought and followed open a connection.
    """

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (rank_index.IndexProblem, archive.RunNotFound)

    def execute(self, arguments: Arguments) -> Result:
        """Run one step of logs.yml."""
        steps = {
            "asked": self._asked,
            "found": self._found,
            "chosen": self._chosen,
            "brought": self._brought,
            "shown": self._shown,
            "followed": self._followed,
        }
        self._given = arguments
        self._extra = plain(load_extra_vars(self._loader))
        self._asks = questions.parse_options(self._extra)
        return {**steps[arguments["state"]](), **QUIET}

    # --- on the controller

    def _of_site(self, name: str, default: str) -> str:
        """Return a variable of the site, which the nodes have and localhost perhaps not."""
        first = (self.group("trainers") or ["localhost"])[0]
        return str(self.host_value(first, name) or default)

    def _runs_dir(self) -> str:
        runs_dir = os.path.expanduser(self._of_site("trainyard_runs_dir", "runs"))
        return os.path.join(_PROJECT, runs_dir)

    def _asked(self) -> Result:
        """Refuse invalid questions before a node is contacted. Return the nodes to ask."""
        run, spares = self._extra.get("run"), self.group("spares")
        nodes = [*self.group("trainers"), *spares]
        home = None
        if run in archive.list_runs(self._runs_dir()):
            home = archive.LocalAttempt(self._runs_dir(), run)
        self._refuse(home, self._certain_logs(home), nodes)
        if home and home.over:
            nodes = []
        elif home:
            nodes = [node for node in nodes if node in home.nodes or node in spares]
        return {"run": run or "", "ask": nodes}

    def _certain_logs(self, home: archive.LocalAttempt | None) -> list[Any] | None:
        """Return the logs that there can be of a run, None where that is not known yet.

        What a run that goes on will still write can be asked for, and is compared later.
        """
        if not home or not home.plan:
            return None
        by_number = all(isinstance(rank, int) for rank in self._asks["ranks"] or ())
        if not home.over and not by_number:
            return None
        return home.logs() + home.planned()

    def _refuse(
        self, home: archive.LocalAttempt | None, logs: list[Any] | None, nodes: list[str]
    ) -> None:
        known, node = nodes, self._asks["node"]
        if home and home.nodes:
            known = home.nodes
        if node is not None and node not in known:
            self._fail_command_line(f"node: there is no {node}; nodes: {', '.join(known)}")
        if logs is not None:
            problem = log_view.select_logs(logs, self._asks["ranks"], node)[1]
            if problem:
                self._fail_command_line(problem)

    def _fail_command_line(self, text: str) -> None:
        """Fail with a problem of the command line."""
        head = "1 problem:"
        if self._given["state"] == "asked":
            head = "1 problem, nothing was touched:"
        self.fail(printable(f"{head}\n  command line {text}", newlines=True))

    def _chosen(self) -> Result:
        """Return the run, by the nodes' answers or by the controller's record."""
        asked = self._given["asked"]
        answers = {name: self.host_value(name, "logs_attempt_status") for name in asked["ask"]}
        # A node that --limit leaves out was not asked.
        statuses = {name: answer.get("status") for name, answer in answers.items() if answer}
        chosen = archive.choose_run(self._runs_dir(), asked["run"], statuses)
        for note in chosen.pop("notes"):
            self._display.warning(printable(note))
        for name in chosen["silent"]:
            self._display.warning(
                f"{name} does not answer: its logs are shown as far as they were copied before"
            )
        followed = []
        if self._asks["follow"]:
            followed = chosen["goes_on"]
        return dict(chosen, follow=followed)

    @property
    def _chosen_run(self) -> dict[str, Any]:
        return self._given["chosen"]

    def _home(self) -> archive.LocalAttempt:
        return archive.LocalAttempt(
            self._runs_dir(), self._chosen_run["run"], self._chosen_run["number"]
        )

    def _shown(self) -> Result:
        """Print the answer, the ends of the logs, or where all of them lie.

        Return {offsets}: how far each log has been shown.
        """
        home, asks = self._home(), self._asks
        offsets: dict[str, int] = {}
        logs = home.logs()
        here = {log.home for log in logs}
        every = list(logs)
        if asks["follow"]:
            every += [log for log in home.planned() if log.home not in here]
        self._refuse(home, every, home.nodes)
        if home.index is None:
            home.index = {"ranks": [], "files": [], "run": home.run, "attempt": home.number}
        if asks["query"] is not None:
            lines, problem = questions.answer_query(home.index, asks["query"], home.secrets)
            if problem:
                self.fail(printable(problem, newlines=True))
        elif self._asks_for_lines():
            chosen = log_view.select_logs(every, asks["ranks"], asks["node"])[0]
            lines, offsets = self._ends(home, [log for log in chosen if log.home in here])
        else:
            lines = self._overview(home, logs)
        self._display.display("\n" + "\n".join(lines) + "\n")
        return {"offsets": offsets}

    def _asks_for_lines(self) -> bool:
        if self._asks["follow"]:
            return True
        return any(self._asks[name] is not None for name in ("lines", "ranks", "node"))

    def _overview(self, home: archive.LocalAttempt, logs: list[Any]) -> list[str]:
        """Return the lines that name a run's logs."""
        state = "over"
        if self._chosen_run["goes_on"]:
            state = "goes on"
        head = f"run {home.run}, attempt {home.number}: {state}"
        return [head, "", *log_view.describe_logs(home.index or {"ranks": []}, logs, home.shown)]

    def _ends(
        self, home: archive.LocalAttempt, logs: list[Any]
    ) -> tuple[list[str], dict[str, int]]:
        """Return (the ends of logs as lines, {home: where they end}).

        Lines of several logs are merged.
        """
        most, is_over = (
            self._asks["lines"] or questions.DEFAULT_LINES,
            not self._chosen_run["goes_on"],
        )
        found, ends = log_view.merge_lines(logs, most, home.zones, is_over)
        if len(logs) == 1 and not self._asks["follow"]:
            log = logs[0]
            head = f"{home.shown}/{log.home}: its last {len(found)} lines, {log.bytes} bytes in all"
            return [
                head,
                "",
                *(log_view.format_line(line, home.secrets) for _log, line in found),
            ], ends
        view = self._view(home, logs)
        lines = [view.lines(log.label, [line])[0] for log, line in found]
        if self._asks["follow"]:
            last = f"the run {home.run} is over"
            if self._chosen_run["follow"]:
                last = (
                    f"following the run {home.run}; Ctrl-C ends this view and leaves the run alone"
                )
            lines += ["", last]
        return lines, ends

    @staticmethod
    def _view(home: archive.LocalAttempt, logs: list[Any]) -> log_view.View:
        return log_view.View(
            logs + home.planned(),
            home.secrets,
            lambda words, number: stringc(words, COLORS[number % len(COLORS)]),
        )

    # --- on a node

    def _found(self) -> Result:
        """Ask the node for the run, or for the one that holds it."""
        return {"status": self._status(self._given["asked"]["run"], 0)}

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
        return self._of_site("trainyard_home", ".trainyard")

    def _brought(self) -> Result:
        """Fetch what there is of a run that goes on."""
        home, node = self._home(), self.task_vars["inventory_hostname"]
        if self.check_mode:
            return {"bytes": 0}
        bounds = quota.Quota.of_host(self.task_vars, node)
        outcome = log_follower.copy_logs(*self._sender(False), home.path, node, bounds)
        if not outcome:
            return {"bytes": 0}
        self._warn_of_logs(node, outcome["problem"])
        return {"bytes": outcome["bytes"]}

    def _warn_of_logs(self, node: str, problem: str | None) -> None:
        if problem:
            self._display.warning(f"the logs of {node} were not copied to their end: {problem}")

    def _followed(self) -> Result:
        """Print this node's lines as they come, until the run has ended here."""
        home, node = self._home(), self.task_vars["inventory_hostname"]
        logs = self._wanted(home.planned()) or self._wanted(home.logs())
        labels = {log.home: log.label for log in logs if log.node == node}
        if not labels:
            return {"lines": 0, "problem": None, "brought": False}
        view = self._view(home, logs)

        def show(name: str, lines: list[bytes]) -> None:
            self._display.display("\n".join(view.lines(labels[name], lines)))

        folder: str = C.DEFAULT_LOCAL_TMP  # type: ignore[attr-defined]
        follower = log_follower.Follower(
            home.path,
            node,
            labels,
            self._given["offsets"],
            show,
            os.path.join(folder, f"ended-{home.run}-{home.number}"),
            quota.Quota.of_host(self.task_vars, node),
        )
        problem = follower.follow(*self._sender(True), self._over, _end_with_parent())
        self._warn_of_logs(node, problem)
        # The launcher has ended. The unit stops its peers and writes its end, and only then its
        # files stay as they are.
        deadline = time.monotonic() + UNIT_SECONDS
        while follower.copies_logs and self._over() is False and time.monotonic() < deadline:
            time.sleep(1)
        return {"lines": follower.lines, "problem": problem, "brought": follower.copies_logs}

    def _wanted(self, logs: list[Any]) -> list[Any]:
        return log_view.select_logs(logs, self._asks["ranks"], self._asks["node"])[0]

    def _sender(self, follow: bool) -> tuple[list[str], dict[str, Any]]:
        """Return (argv, spec) of the program that sends this node's logs."""
        run, number = self._chosen_run["run"], self._chosen_run["number"]
        spec = {"attempt_dir": f"{self._base()}/runs/{run}/attempt-{number}", "follow": follow}
        interpreter = plain(self.task_vars.get("ansible_python_interpreter")) or "python3"
        return log_receiver.ssh_argv(self._connection, interpreter), spec

    def _over(self) -> bool | None:
        """Return whether the run has ended on this node, None where it does not answer."""
        try:
            return self._status(self._chosen_run["run"], self._chosen_run["number"])["ended"]
        except AnsibleConnectionFailure:
            return None


def _is_valid(status: Any, run: str) -> bool:
    """Return true for a status that is about this run."""
    if not isinstance(status, dict) or not isinstance(status.get("ended"), bool):
        return False
    return not status.get("found") or run_choice.is_sound(status, run)


def _end_with_parent() -> Callable[[], None]:
    """Return a function that ends this worker where its ansible-playbook was killed.

    It would follow for ever, in a session of its own.
    """
    parent = os.getppid()

    def alive() -> None:
        if os.getppid() != parent:
            os._exit(1)

    return alive
