# SPDX-License-Identifier: GPL-3.0-or-later
"""Copy and follow the logs of a node. Documented in library/logs_follow.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.modules.logs_follow import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logs_action import NodeLogsAction
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    log_follower,
    log_receiver,
)

UNIT_SECONDS = 30


class ActionModule(NodeLogsAction):
    """Copy what there is of a node's logs, or follow them until the run has ended there."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def answer(self) -> Result:
        """Copy or follow the logs."""
        if self._given["follow"]:
            return self._follow_logs()
        return {"lines": 0, "problem": None, **self._copy_logs()}

    def _copy_logs(self) -> Result:
        """Fetch what there is of a run that goes on."""
        home, node = self._attempt(), self.task_vars["inventory_hostname"]
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

    def _follow_logs(self) -> Result:
        """Print this node's lines as they come, until the run has ended here."""
        home, node = self._attempt(), self.task_vars["inventory_hostname"]
        logs = self._select(home.planned()) or self._select(home.logs())
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

    def _sender(self, follow: bool) -> tuple[list[str], dict[str, Any]]:
        """Return (argv, spec) of the program that sends this node's logs."""
        run, number = self._choice["run"], self._choice["number"]
        spec = {"attempt_dir": f"{self._base()}/runs/{run}/attempt-{number}", "follow": follow}
        interpreter = plain(self.task_vars.get("ansible_python_interpreter")) or "python3"
        return log_receiver.ssh_argv(self._connection, interpreter), spec

    def _over(self) -> bool | None:
        """Return whether the run has ended on this node, None where it does not answer."""
        try:
            return self._status(self._choice["run"], self._choice["number"])["ended"]
        except AnsibleConnectionFailure:
            return None


def _end_with_parent() -> Callable[[], None]:
    """Return a function that ends this worker where its ansible-playbook was killed.

    It would follow for ever, in a session of its own.
    """
    parent = os.getppid()

    def alive() -> None:
        if os.getppid() != parent:
            os._exit(1)

    return alive
