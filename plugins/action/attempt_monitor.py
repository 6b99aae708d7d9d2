# SPDX-License-Identifier: GPL-3.0-or-later
"""Run attempt_monitor on a node, and stop an attempt that failed elsewhere.

See library/attempt_monitor.py for the documentation.

A node that is followed, or to which Ansible holds a connection, is asked by a program that stays
there for further looks. A module would begin a Python for each, which takes 0.3 s of the training's
processors. The same program reads what the ranks logged when the attempt has completed, so that the
collection of the logs needs no module either.

The nodes stop each other over the mesh. Where that does not arrive (the mesh is cut, a node is too
busy), the controller that follows stops what still runs. An `until` loop knows its own host only,
so the hosts' workers exchange news through a directory of this process. Besides, a thread of the
worker copies the node's logs to the controller. All looks of one `until` loop are made by one
worker.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from ansible import constants as C
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.states import AttemptState
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import status_reader
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import held_program
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config.site_fields import NAME
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import Result
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    log_receiver,
    log_stream,
    node_program,
)


class Asked(NamedTuple):
    """The subject of a task.

    run: the run's id or ''. number: the attempt's, or 0. node: its name in the inventory.
    """

    run: str
    number: int
    node: str


# Seconds that the mesh has before the controller steps in.
MESH_SECONDS = 6
# Seconds that an ended attempt waits for the rest of its logs here. Collect brings what is still
# missing.
REST_SECONDS = 5
# The program of module_utils that answers, and the seconds that it has for one look or for the
# logs.
READER = "runs.status_reader"
LOOK_SECONDS = 10
MOST_BREAKS = 3  # of the connections to one node, after which modules look
NUMBERS = range(10**6)
_PARENTS: dict[int, int] = {}
_STREAMS: dict[Asked, log_stream.Stream] = {}
_HELD: dict[Asked, held_program.HeldProgram] = {}
_BREAKS: dict[Asked, int] = {}
_PYTHONS: dict[Asked, str] = {}
_WARNED: set[str] = set()


class ActionModule(answer_gate.Gated, ActionBase):
    """One look at a node.

    Where another node of the run has failed a while ago, the attempt is stopped here, too.
    """

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Result:
        """Return the node's status, and what was done about it."""
        result = super().run(tmp, task_vars)
        _end_with_parent()
        self._vars = task_vars or {}
        question = self._asked()
        sent = time.time()
        result.update(self._look(question))
        received = time.time()
        status = result.get("status")
        if result.get("failed") or status is None:
            return result
        problem = _differs(status, question)
        if problem:
            return _refusal(question, problem)
        # A node that was renamed since answers with the name in its plan. Files and messages bear
        # the inventory's.
        status["node"] = question.node
        # The node read its clock between these times. The view may get the answer much later: a
        # laptop that slept.
        if not status["ended"]:
            sent += self._waited()
        status["asked"] = [sent, received]
        if not self._task.args.get("gang", False) or not status["found"]:
            return result
        if not (question.run and question.number):
            raise AnsibleActionFail(
                "gang needs the run and the attempt that are followed (run_id, number)"
            )
        stopped = self._keep_gang(question, status)
        if stopped is not None:
            result["stopped_by_controller"] = stopped
        status["stream"] = self._stream(question, status["ended"])
        self._warn_of_stream(question, status["stream"])
        logs = self._read_logs(question, status)
        if logs is not None:
            # The node's clock is compared with other nodes' later on.
            result["logs"] = {"answer": logs, "received": time.time()}
        if self._may_hold(question) and not status["ended"]:
            self._hold(question)
        return result

    def _look(self, question: Asked) -> Result:
        """Return a look's result: by the connection that stays open, else by the module."""
        if self._may_hold(question) and log_receiver.is_connected(self._connection):
            self._hold(question)
        held = _HELD.get(question)
        if held is not None:
            try:
                answer = held.ask(self._waited(), self._waited() + LOOK_SECONDS)
                if isinstance(answer, dict) and "status" in answer:
                    _BREAKS.pop(question, None)
                    return self._validated({"changed": False, "status": answer["status"]}, question)
            except held_program.HeldError:
                pass  # the module says why
            _HELD.pop(question).close()
            _BREAKS[question] = _BREAKS.get(question, 0) + 1
        result = self._execute_module(
            module_name="trainyard.cluster.attempt_monitor", task_vars=self._vars
        )
        # Only a module's look finds the node's Python, and each look is made by a new object.
        if self._used_interpreter:
            _PYTHONS[question] = self._used_interpreter.lstrip("#!").split()[0]
        return result

    def _validated(self, answer: Result, question: Asked) -> Result:
        """Return an answer as a module's would be after the gate."""
        try:
            return answer_gate.validate("attempt_monitor", answer, plain(self._task.args))
        except answer_gate.InvalidAnswer as error:
            return answer_gate.refusal("attempt_monitor", question.node, error)

    def _read_logs(self, question: Asked, status: dict[str, Any]) -> Result | None:
        """Return what the ranks of an attempt that completed logged, None where a module reads it.

        After another end the module does, since the node may still gather what explains it.
        """
        held = _HELD.get(question)
        if held is None or status["state"] != AttemptState.COMPLETED:
            return None
        try:
            answer = held.ask(status_reader.LOGS, LOOK_SECONDS)
            known = {"node": question.node}
            logs = answer_gate.validate("rank_logs_info", answer["logs"], known)
        except held_program.HeldError:
            _HELD.pop(question).close()  # else it would go on reading beside the module
            return None
        except (answer_gate.InvalidAnswer, LookupError, TypeError):
            return None
        # Of a failure or a task that was left out, the module says more.
        return logs if logs.keys() >= {"ranks", "files"} else None

    def _may_hold(self, question: Asked) -> bool:
        """Return whether a connection for further looks may be opened: plain SSH leads there."""
        may_try = question not in _HELD and _BREAKS.get(question, 0) < MOST_BREAKS
        return may_try and not self._task.check_mode and self._is_ssh()

    def _hold(self, question: Asked) -> None:
        """Open the connection for the next looks."""
        spec = {
            "base": str(self._task.args.get("base", ".trainyard")),
            "run_id": question.run,
            "number": question.number,
            "node": question.node,
        }
        try:
            argv = log_receiver.ssh_argv(self._connection, self._python(question), "status")
            _HELD[question] = held_program.HeldProgram(argv, READER, spec)
        except (held_program.HeldError, OSError):
            _BREAKS[question] = _BREAKS.get(question, 0) + 1

    def _python(self, question: Asked) -> str:
        """Return the node's Python."""
        return node_program.find_python(self._vars, _PYTHONS.get(question))

    def _is_ssh(self) -> bool:
        """Return whether Ansible's own login reaches the node as its training user."""
        return node_program.is_ssh(self._connection)

    def _waited(self) -> float:
        """Return the seconds that a node waits before it looks at an attempt that goes on."""
        if not (self._task.args.get("run_id") and self._task.args.get("number")):
            return 0.0
        return float(self._task.args.get("wait") or 0)

    def _keep_gang(self, question: Asked, status: dict[str, Any]) -> bool | None:
        """Note a failure, or stop the attempt where another node failed a while ago.

        Return whether it was stopped, None where nothing was to be stopped.
        """
        folder: str = C.DEFAULT_LOCAL_TMP  # type: ignore[attr-defined]
        marker = os.path.join(folder, f"failed-{question.run}-{question.number}")
        if status["ended"]:
            if status["state"] in ("failed", "lost"):
                _note(marker, question.node)
            return None
        if not _older(marker, MESH_SECONDS) or self._task.check_mode:
            return None
        with open(marker, encoding="utf-8") as handle:
            culprit = handle.read()
        arguments = {
            "state": "stopped",
            "run_id": question.run,
            "number": question.number,
            "node": question.node,
            "base": self._task.args.get("base", ".trainyard"),
            "reason": "peer",
            "by": f"the controller, because {culprit} failed",
        }
        answer = self._execute_module(
            module_name="trainyard.cluster.attempt",
            module_args=arguments,
            task_vars=self._vars,
        )
        return not answer.get("failed")

    def _warn_of_stream(self, question: Asked, stream: dict[str, Any] | None) -> None:
        """Warn once of a node whose logs do not arrive.

        Ansible keeps a task's warnings for its result, and passes over those of an `until` loop's
        earlier results. So this one is shown at once.
        """
        if not stream or not stream.get("problem") or question.node in _WARNED:
            return
        _WARNED.add(question.node)
        problem = stream["problem"]
        text = (
            f"the logs of {question.node} are not copied for now: {problem}; it is tried again, and"
            " they are collected at the end"
        )
        if stream.get("cut"):
            text = (
                f"the logs of {question.node} are not copied any more: {problem}; the rest stays on"
                " the node"
            )
        colour = C.COLOR_WARN  # type: ignore[attr-defined]
        self._display.display(printable(f"[WARNING]: {text}"), color=colour, stderr=True)

    def _asked(self) -> Asked:
        """Return the run, the attempt and the node that the task names.

        What a node answers never takes their place.
        """
        args = plain(self._task.args)
        run, node = str(args.get("run_id") or ""), str(args.get("node") or "")
        number = int(args.get("number") or 0)
        if (run and not RUN_ID.match(run)) or not NAME.match(node) or number not in NUMBERS:
            text = f"run_id, number or node cannot be one: {run!r}, {number!r}, {node!r}"
            raise AnsibleActionFail(printable(text, limit=300))
        return Asked(run, number, node)

    def _stream(self, key: Asked, ended: bool) -> dict[str, Any] | None:
        """Stream the node's logs to the controller while the attempt runs.

        Return {bytes, restarts, problem, events}, or None without a stream.
        """
        try:
            if key not in _STREAMS and not ended and self._may_stream():
                _STREAMS[key] = self._begin(*key, quota.Quota.of_host(self._vars, key.node))
            elif key in _STREAMS and ended:
                _STREAMS[key].finish(REST_SECONDS)
        except log_receiver.Busy:
            return None  # asked again at the next look: the process that brings them may end
        except Exception as error:  # no fault of the stream may end the follow
            return {"bytes": 0, "restarts": 0, "problem": printable(str(error)), "events": []}
        if key in _STREAMS:
            return _STREAMS[key].state()
        return None

    def _may_stream(self) -> bool:
        if not self._task.args.get("logs_dir") or self._task.check_mode:
            return False
        return self._is_ssh()

    def _begin(self, run: str, number: int, node: str, bounds: quota.Quota) -> log_stream.Stream:
        attempt = os.path.join("runs", run, f"attempt-{number}")
        spec = {
            "attempt_dir": os.path.join(self._task.args.get("base", ".trainyard"), attempt),
            "follow": True,
        }
        logs_dir = os.path.expanduser(self._task.args["logs_dir"])
        home = os.path.join(logs_dir, run, f"attempt-{number}")
        if os.path.islink(home) or os.path.islink(os.path.dirname(home)):
            raise OSError(f"{home} is a link, and not a directory of a run")
        python = self._python(Asked(run, number, node))
        argv = log_receiver.ssh_argv(self._connection, python, log_receiver.VERB)
        stream = log_stream.Stream(argv, spec, home, node, bounds)
        stream.start()
        return stream


def _refusal(question: Asked, problem: str) -> Result:
    """Return the failed result for an answer about something else."""
    text = f"{question.node} gave an answer about an attempt that is not valid: {problem}"
    return {
        "failed": True,
        "changed": False,
        "code": "answer.invalid",
        "msg": printable(text, limit=500),
    }


def _differs(status: Any, question: Asked) -> str:
    """Return why a status is not about what was asked, or ''."""
    if not isinstance(status, dict):
        return "it is not a mapping"
    if not isinstance(status.get("found"), bool) or not isinstance(status.get("ended"), bool):
        return "found and ended are missing"
    problem = _run_problem(status.get("run"), question.run)
    if problem or not status["found"]:
        return problem
    number = status.get("attempt")
    if status.get("run") is None or not _is_number(number):
        return "run or attempt is missing"
    if question.number and number != question.number:
        return f"it is about attempt {number}"
    return ""


def _run_problem(run: Any, question: str) -> str:
    """Return why a run is not the one that was asked for, or ''."""
    if run is None:
        return ""
    if not isinstance(run, str) or not RUN_ID.match(run):
        return "run is not the id of a run"
    if question and run != question:
        return f"it is about the run {run}"
    return ""


def _is_number(value: Any) -> bool:
    """Return true for the number of an attempt."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < len(NUMBERS)


def _end_with_parent() -> None:
    """End a worker whose ansible-playbook was killed.

    It would sleep for ever, since Ansible gives every worker a session of its own.
    """
    parent = _PARENTS.setdefault(os.getpid(), os.getppid())
    if parent != os.getppid():
        os._exit(1)


def _note(marker: str, node: str) -> None:
    if not os.path.exists(marker):
        with open(marker, "w", encoding="utf-8") as handle:
            handle.write(node)


def _older(marker: str, seconds: float) -> bool:
    try:
        return time.time() - os.stat(marker).st_mtime > seconds
    except OSError:
        return False
