# SPDX-License-Identifier: GPL-3.0-or-later
"""Run attempt_status on a node, and be the second line of the gang: see library/attempt_status.py for the documentation.

The nodes stop each other over the mesh. Where that does not arrive (the mesh is cut, a node is too busy), the controller that follows stops
what still runs. An `until` loop knows its own host only, so the hosts' workers tell each other through a directory of this process.
"""

from __future__ import annotations

import os
import time

from ansible import constants as C
from ansible.plugins.action import ActionBase

# How long the mesh has before the controller steps in, in seconds.
MESH_SECONDS = 6
_PARENTS = {}


class ActionModule(ActionBase):
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
        return result


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
