# SPDX-License-Identifier: GPL-3.0-or-later
"""Run attempt_status on a node, and be the second line of the gang: see library/attempt_status.py
for the documentation.

The nodes stop each other over the mesh. Where that does not arrive (the mesh is cut, a node is too
busy), the controller that follows stops what still runs. An `until` loop knows its own host only,
so the hosts' workers tell each other through a directory of this process. Besides, a thread of the
worker brings the node's logs home; all looks of one `until` loop are made by one worker.
"""

from __future__ import annotations

import collections
import os
import time

from ansible import constants as C
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.module_utils.config.site_fields import NAME
from ansible_collections.trainyard.cluster.plugins.module_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.module_utils.logsync import (
    log_receiver,
    log_stream,
)

# What the task asks about: the run's id or '', the attempt's number or 0, the node's name in the
# inventory.
Asked = collections.namedtuple("Asked", "run number node")

# How long the mesh has before the controller steps in, in seconds.
MESH_SECONDS = 6
# How long an ended attempt waits for the rest of its logs here; collect brings what is still
# missing.
REST_SECONDS = 5
_PARENTS = {}
_STREAMS = {}
_TOLD = set()


class ActionModule(answer_gate.Gated, ActionBase):
    """One look at a node; where another node of the run has failed a while ago, the attempt is
    stopped here, too.
    """

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _end_with_parent()
        self._vars = task_vars
        gang = self._task.args.get("gang", False)
        result.update(
            self._execute_module(
                module_name="trainyard.cluster.attempt_status", task_vars=task_vars
            )
        )
        status, asked = result.get("status"), self._asked()
        if result.get("failed") or status is None:
            return result
        problem = _differs(status, asked)
        if problem:
            text = f"{asked.node} gave an answer about an attempt that is not valid: {problem}"
            return {
                "failed": True,
                "changed": False,
                "code": "answer.invalid",
                "msg": printable(text, limit=500),
            }
        # A node that was renamed since answers with the name in its plan. Files and messages bear
        # the inventory's.
        status["node"] = asked.node
        if not gang or not status["found"]:
            return result
        if not (asked.run and asked.number):
            raise AnsibleActionFail(
                "gang needs the run and the attempt that are followed (run_id, number)"
            )
        marker = os.path.join(C.DEFAULT_LOCAL_TMP, "failed-%s-%d" % (asked.run, asked.number))
        if status["ended"] and status["state"] in ("failed", "lost"):
            _note(marker, asked.node)
        elif not status["ended"] and _older(marker, MESH_SECONDS) and not self._task.check_mode:
            with open(marker, encoding="utf-8") as handle:
                culprit = handle.read()
            arguments = {
                "state": "stopped",
                "run_id": asked.run,
                "number": asked.number,
                "node": asked.node,
                "base": self._task.args.get("base", ".trainyard"),
                "reason": "peer",
                "by": f"the controller, because {culprit} failed",
            }
            stopped = self._execute_module(
                module_name="trainyard.cluster.attempt", module_args=arguments, task_vars=task_vars
            )
            result["stopped_by_controller"] = not stopped.get("failed")
        status["stream"] = self._stream(asked, status["ended"])
        if (status["stream"] or {}).get("problem") and asked.node not in _TOLD:
            _TOLD.add(asked.node)
            text = (
                "the logs of %s do not come home for now: %s; it is tried again, and they are"
                " collected at the end"
            )
            if status["stream"].get("cut"):
                text = "the logs of %s do not come home any more: %s; the rest stays on the node"
            self._display.warning(text % (asked.node, status["stream"]["problem"]))
        return result

    def _asked(self):
        """Return the run, the attempt and the node that the task names; what a node answers never
        takes their place.
        """
        args = plain(self._task.args)
        run, node, number = (
            str(args.get("run_id") or ""),
            str(args.get("node") or ""),
            int(args.get("number") or 0),
        )
        if (run and not RUN_ID.match(run)) or not NAME.match(node) or not 0 <= number < 10**6:
            raise AnsibleActionFail(
                printable(
                    f"run_id, number or node cannot be one: {run!r}, {number!r}, {node!r}",
                    limit=300,
                )
            )
        return Asked(run, number, node)

    def _stream(self, key, ended):
        """Have the node's logs come home while the attempt runs; return {bytes, restarts, problem,
        events}, or None without a stream.
        """
        try:
            if key not in _STREAMS and not ended and self._may_stream():
                _STREAMS[key] = self._begin(*key, quota.Quota.of_host(self._vars, key.node))
            elif key in _STREAMS and ended:
                _STREAMS[key].finish(REST_SECONDS)
        except log_receiver.Busy:
            return None  # asked again at the next look: whoever brings them may end
        except Exception as error:  # no fault of the stream may end the follow
            return {"bytes": 0, "restarts": 0, "problem": printable(str(error)), "events": []}
        return _STREAMS[key].state() if key in _STREAMS else None

    def _may_stream(self):
        here = self._task.args.get("logs_dir") and not self._task.check_mode
        return (
            here
            and getattr(self._connection, "transport", None) == "ssh"
            and self._connection.become is None
        )

    def _begin(self, run, number, node, bounds):
        attempt = os.path.join("runs", run, "attempt-%d" % number)
        interpreter = (self._used_interpreter or "python3").lstrip("#!").split()[0]
        spec = {
            "attempt_dir": os.path.join(self._task.args.get("base", ".trainyard"), attempt),
            "follow": True,
        }
        home = os.path.join(
            os.path.expanduser(self._task.args["logs_dir"]), run, "attempt-%d" % number
        )
        if os.path.islink(home) or os.path.islink(os.path.dirname(home)):
            raise OSError(f"{home} is a link, and not a directory of a run")
        stream = log_stream.Stream(
            log_receiver.ssh_argv(self._connection, interpreter), spec, home, node, bounds
        )
        stream.start()
        return stream


def _differs(status, asked):
    """Say why a status is not about what was asked, or return ''."""
    if (
        not isinstance(status, dict)
        or not isinstance(status.get("found"), bool)
        or not isinstance(status.get("ended"), bool)
    ):
        return "found and ended are missing"
    said = status.get("run")
    if said is not None and not (isinstance(said, str) and RUN_ID.match(said)):
        return "run is not the id of a run"
    if said is not None and asked.run and said != asked.run:
        return f"it is about the run {said}"
    if not status["found"]:
        return ""
    number = status.get("attempt")
    if (
        said is None
        or isinstance(number, bool)
        or not isinstance(number, int)
        or not 1 <= number < 10**6
    ):
        return "run or attempt is missing"
    return "it is about attempt %d" % number if asked.number and number != asked.number else ""


def _end_with_parent():
    """End a worker whose ansible-playbook was killed: it would sleep for ever, since Ansible gives
    every worker a session of its own.
    """
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
