# SPDX-License-Identifier: Apache-2.0
"""A training of a benchmark: `train.yml` in a process of its own, as a user starts it.

Ctrl-C of the benchmark does not reach it, so that the benchmark can stop the run on its nodes.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_mapping
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable

from ..base.playbook_process import PlaybookProcess
from ..recovery import resume_command
from ..report import series
from ..report.json_values import mappings_of

# What a start takes of this command's variables is given anew for each of them.
OWN_VARIABLES = frozenset(("nodes", "min_nodes", "minutes", "max_restarts", "detach"))
# `stop.yml` needs the run alone.
START_VARIABLES = OWN_VARIABLES | resume_command.DROPPED | {"rehearse", "wait"}
# Variables of the environment that are about the benchmark's own output.
_NOT_PASSED = ("TRAINYARD_RESULT", "TRAINYARD_DETACH", "TRAINYARD_BRIEF")
_RUN = re.compile(r"^run (\S+), job ", re.MULTILINE)
LOOK_SECONDS, SAY_SECONDS, STOP_SECONDS, END_SECONDS = 2, 60, 180, 60
LONGEST_RESULT = 16 << 20


class Command(PlaybookProcess):
    """One of the product's playbooks with the options of this command.

    variables: of the playbook. dropped: this command's variables that it does not get. Raises
    resume_command.CommandRefused, OSError.
    """

    def __init__(
        self,
        playbook: str,
        variables: Mapping[str, Any],
        dropped: frozenset[str],
        output: str,
    ) -> None:
        argv = resume_command.rebuild(sys.argv, playbook, dropped, variables)
        self._result = output + ".json"
        environment = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED}
        environment.update(TRAINYARD_RESULT=self._result, TRAINYARD_RESTART="0")
        super().__init__([*resume_command.program(), *argv], environment, output)

    def last_line(self) -> str:
        """Return the last line of the output that is not empty, safe to print."""
        lines = [line for line in self.text().splitlines() if line.strip()]
        return printable("".join(lines[-1:]).strip())

    def result(self) -> dict[str, Any]:
        """Return what the playbook says of its end (docs/runbooks/command.md), {} for nothing."""
        return read_mapping(self._result, LONGEST_RESULT)


class TrainingProcess:
    """A training with its limit of time.

    label: what it is called, as `2 nodes`. job: its name. stop_playbook: path of stop.yml. minutes:
    of training, after which the run is stopped; 0 for none. say: prints a line. alone: the node
    that trains alone, where others do the same at the same time, else ''.
    """

    def __init__(
        self,
        command: Command,
        label: str,
        job: str,
        runs_dir: str,
        stop_playbook: str,
        minutes: float,
        say: Callable[[str], None],
        alone: str = "",
    ) -> None:
        self.command, self.label, self.job, self.say = command, label, job, say
        self._alone = alone
        self.run, self.stopped = "", False
        self._runs_dir, self._stop_playbook, self._minutes = runs_dir, stop_playbook, minutes
        self._earlier = self._runs()
        self._first_step: float | None = None  # unix seconds of this machine
        self._next_stop = 0.0  # when a stop that failed is tried again
        self._stopping: Command | None = None  # the stop that goes on, and its latest end
        self._stop_until = 0.0
        self._said, self._last = time.monotonic(), ""
        self._parent = os.getppid()

    def look(self) -> bool:
        """Return whether it has ended. Stops it when its time is over, and tells of it.

        Raises KeyboardInterrupt where Ansible has ended without a signal to its workers.
        """
        if os.getppid() != self._parent:
            raise KeyboardInterrupt
        if self.command.has_ended():
            self._settle_stop(wait=True)
            return True
        if not self.run:
            self._find_run()
        elif self._stopping:
            self._settle_stop()
        elif self._is_over() and time.monotonic() >= self._next_stop:
            self.begin_stop()
        if time.monotonic() - self._said >= SAY_SECONDS:
            self._said, line = time.monotonic(), self.command.last_line()
            if line != self._last:
                self.say(f"{self.label}: {line}")
            self._last = line
        return False

    def _runs(self) -> set[str]:
        """Return the names in the controller's directory of runs."""
        if not os.path.isdir(self._runs_dir):
            return set()
        return set(os.listdir(self._runs_dir))

    def _find_run(self) -> None:
        found = _RUN.search(self.command.text())
        if found and RUN_ID.match(found.group(1)):
            self.run = found.group(1)
            self.say(f"{self.label}: run {self.run}")

    def _find_fresh_run(self) -> None:
        """Find a run that has only just started: the one new directory of the job's name.

        Of several trainings at the same time each is on a node of its own.
        """
        mark = f"-{self.job}-"
        fresh = [name for name in self._runs() - self._earlier if mark in name]
        if self._alone:
            fresh = [name for name in fresh if self._nodes_of(name) == [self._alone]]
        if len(fresh) == 1 and RUN_ID.match(fresh[0]):
            self.run = fresh[0]

    def _nodes_of(self, run: str) -> list[str]:
        """Return the names of the nodes in a run's plan, [] without one."""
        path = os.path.join(self._runs_dir, run, "plan.json")
        nodes = mappings_of(read_mapping(path, LONGEST_RESULT).get("nodes"))
        return [str(node.get("name")) for node in nodes]

    def _is_over(self) -> bool:
        """Return whether the time of the training is over."""
        if not self._minutes or self.stopped:
            return False
        if self._first_step is None:
            attempts = series.of_run(os.path.join(self._runs_dir, self.run), points=50)["attempts"]
            curves = [curve for attempt in attempts for curve in attempt["series"].values()]
            if not curves:
                return False
            times = [time_ for curve in curves for time_ in curve["time"][:1] if time_ is not None]
            self._first_step = min([time.time(), *times])
        return time.time() - self._first_step >= self._minutes * 60

    def begin_stop(self) -> None:
        """Stop the run on its nodes, if it is known. The command that follows it ends with that.

        It returns at once, since other trainings may be waiting for their own end.
        """
        if not self.run or self.stopped or self._stopping:
            return
        self._next_stop = time.monotonic() + SAY_SECONDS
        self._stop_until = time.monotonic() + STOP_SECONDS
        self._stopping = Command(
            self._stop_playbook, {"run": self.run}, START_VARIABLES, self.command.output + ".stop"
        )

    def stop(self) -> None:
        """Stop the run on its nodes, and wait for that."""
        self.begin_stop()
        self._settle_stop(wait=True)

    def _settle_stop(self, wait: bool = False) -> None:
        """Note how a stop ended, if it has ended or took too long. wait: for its end."""
        command, left = self._stopping, max(0.0, self._stop_until - time.monotonic())
        if command is None or (not wait and left and not command.has_ended()):
            return
        self.stopped = command.wait(left) == 0
        command.end()
        self._stopping = None
        if not self.stopped:
            self.say(f"{self.label}: {self.run} was not stopped: {command.last_line()}")

    def give_up(self) -> None:
        """End the training, since the benchmark ends."""
        if not self.command.has_ended():
            self._find_run()
            follows = bool(self.run)
            if not follows:
                self.command.end()
                self._find_fresh_run()
            if self.run and not self.stopped:
                self.stop()
            if self.stopped:
                self._await_logs(follows)
            self.command.end()

    def _await_logs(self, follows: bool) -> None:
        """Wait until the logs of a stopped run are collected.

        follows: whether the run's own command does that. Else it has ended, and follow.yml does.
        """
        command = self.command
        if not follows:
            playbook = os.path.join(os.path.dirname(self._stop_playbook), "follow.yml")
            output = self.command.output + ".follow"
            command = Command(playbook, {"run": self.run}, START_VARIABLES, output)
        command.wait(END_SECONDS)
        command.end()
        if not command.result().get("verdict"):
            self.say(f"{self.label}: the logs of {self.run} were not collected")

    def outcome(self) -> dict[str, Any]:
        """Return {run, label, ended_well, text, output} of a training that has ended."""
        result = self.command.result()
        verdict = result.get("verdict") or {}
        wanted = {"completed"}
        if self.stopped:
            wanted.add("stopped")
        problems = "; ".join(str(problem.get("text")) for problem in result.get("problems") or ())
        return {
            "run": result.get("run") or self.run,
            "label": self.label,
            "ended_well": verdict.get("outcome") in wanted,
            "text": verdict.get("text") or problems or self.command.last_line(),
            "output": self.command.output,
        }


def await_ends(trainings: Sequence[TrainingProcess]) -> list[dict[str, Any]]:
    """Wait until all trainings have ended, and return their outcomes.

    They are stopped where that fails.
    """
    try:
        left = list(trainings)
        while left:
            left = [training for training in left if not training.look()]
            if left:
                time.sleep(LOOK_SECONDS)
    except BaseException:
        give_all_up(trainings)
        raise
    for training in trainings:
        if training.run and not training.command.result().get("verdict"):
            training.stop()  # its command has left it, and the next training needs its nodes
    return [training.outcome() for training in trainings]


def give_all_up(trainings: Sequence[TrainingProcess]) -> None:
    """End all trainings, since the benchmark ends. One that cannot be ended hinders no other."""
    for training in trainings:
        _try(training, training.begin_stop)
    for training in trainings:
        _try(training, training.give_up)


def _try(training: TrainingProcess, step: Callable[[], None]) -> None:
    try:
        step()
    except (OSError, resume_command.CommandRefused) as error:
        training.say(f"{training.label}: {printable(str(error))}")
