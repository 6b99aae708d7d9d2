# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the options of logs.yml with the site. Documented in library/logs_question.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.trainyard.cluster.plugins.modules.logs_question import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logs_action import LogsAction
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import archive


class ActionModule(LogsAction):
    """Refuse what has no answer, before a node is contacted."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    UNTOUCHED = ", nothing was touched"

    def answer(self) -> Result:
        """Return the run that is named, and the nodes to ask."""
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
        by_number = all(isinstance(rank, int) for rank in self._options["ranks"] or ())
        if not home.over and not by_number:
            return None
        return home.logs() + home.planned()
