# SPDX-License-Identifier: GPL-3.0-or-later
"""Run attempt_status on a node, and be the second line of the gang: see library/attempt_status.py for the documentation.

The nodes stop each other over the mesh. Where that does not arrive (the mesh is cut, a node is too busy), the controller that follows stops
what still runs. An `until` loop knows its own host only, so the hosts' workers tell each other through a directory of this process.
Besides, a thread of the worker brings the node's logs home; all looks of one `until` loop are made by one worker.
"""

from __future__ import annotations

import importlib
import os
import time

import ansible.module_utils
from ansible import constants as C
from ansible.plugins.action import ActionBase

# ansible.cfg's module_utils is for modules; a plugin has to find the product's package by itself.
_CORE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "module_utils")
if _CORE not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_CORE)
answer_gate = importlib.import_module("ansible.module_utils.trainyard.answer_gate")
receiving = importlib.import_module("ansible.module_utils.trainyard.receiving")
streaming = importlib.import_module("ansible.module_utils.trainyard.streaming")
printable = importlib.import_module("ansible.module_utils.trainyard.display").printable

# How long the mesh has before the controller steps in, in seconds.
MESH_SECONDS = 6
# How long an ended attempt waits for the rest of its logs here; collect brings what is still missing.
REST_SECONDS = 5
_PARENTS = {}
_STREAMS = {}
_TOLD = set()


class ActionModule(answer_gate.Gated, ActionBase):
    """One look at a node; where another node of the run has failed a while ago, the attempt is stopped here, too."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _end_with_parent()
        gang = self._task.args.get("gang", False)
        result.update(self._execute_module(module_name="attempt_status", task_vars=task_vars))
        status = result.get("status") or {}
        if not gang or not status.get("found"):
            return result
        marker = os.path.join(C.DEFAULT_LOCAL_TMP, "failed-%s-%d" % (status["run"], status["attempt"]))
        if status["ended"] and status["state"] in ("failed", "lost"):
            _note(marker, task_vars["inventory_hostname"])
        elif not status["ended"] and _older(marker, MESH_SECONDS) and not self._task.check_mode:
            with open(marker, encoding="utf-8") as handle:
                culprit = handle.read()
            arguments = {
                "state": "stopped",
                "run_id": status["run"],
                "number": status["attempt"],
                "node": status["node"],
                "base": self._task.args.get("base", ".trainyard"),
                "reason": "peer",
                "by": "the controller, because %s failed" % culprit,
            }
            stopped = self._execute_module(module_name="attempt", module_args=arguments, task_vars=task_vars)
            result["stopped_by_controller"] = not stopped.get("failed")
        status["stream"] = self._stream(status)
        if (status["stream"] or {}).get("problem") and status["node"] not in _TOLD:
            _TOLD.add(status["node"])
            text = "the logs of %s do not come home for now: %s; it is tried again, and they are collected at the end"
            self._display.warning(text % (status["node"], status["stream"]["problem"]))
        return result

    def _stream(self, status):
        """Have the node's logs come home while the attempt runs; return {bytes, restarts, problem, events}, or None without a stream."""
        key = (status["run"], status["attempt"], status["node"])
        try:
            if key not in _STREAMS and not status["ended"] and self._may_stream():
                _STREAMS[key] = self._begin(*key)
            elif key in _STREAMS and status["ended"]:
                _STREAMS[key].finish(REST_SECONDS)
        except receiving.Busy:
            return None  # asked again at the next look: whoever brings them may end
        except Exception as error:  # no fault of the stream may end the follow
            return {"bytes": 0, "restarts": 0, "problem": printable(str(error)), "events": []}
        return _STREAMS[key].state() if key in _STREAMS else None

    def _may_stream(self):
        here = self._task.args.get("logs_dir") and not self._task.check_mode
        return here and getattr(self._connection, "transport", None) == "ssh" and self._connection.become is None

    def _begin(self, run, number, node):
        attempt = os.path.join("runs", run, "attempt-%d" % number)
        interpreter = (self._used_interpreter or "python3").lstrip("#!").split()[0]
        spec = {"attempt_dir": os.path.join(self._task.args.get("base", ".trainyard"), attempt), "follow": True}
        home = os.path.join(os.path.expanduser(self._task.args["logs_dir"]), run, "attempt-%d" % number)
        stream = streaming.Stream(receiving.ssh_argv(self._connection, interpreter), spec, home, node)
        stream.start()
        return stream


def _end_with_parent():
    """End a worker whose ansible-playbook was killed: it would sleep for ever, since Ansible gives every worker a session of its own."""
    parent = _PARENTS.setdefault(os.getpid(), os.getppid())
    if parent != os.getppid():
        os._exit(1)


def _note(marker, node):
    if not os.path.exists(marker):
        with open(marker, "w", encoding="utf-8") as handle:
            handle.write(node)


def _older(marker, seconds):
    try:
        return time.time() - os.stat(marker).st_mtime > seconds
    except OSError:
        return False
