# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the run of logs.yml. Documented in library/logs_choice.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.modules.logs_choice import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logs_action import LogsAction
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import archive


class ActionModule(LogsAction):
    """Choose the run by the nodes' answers or by the controller's record."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def answer(self) -> Result:
        """Return the run, the nodes whose logs are missing, and the nodes to follow."""
        # A node that --limit leaves out was not asked.
        answers = self._given["answers"].items()
        statuses = {name: answer.get("status") for name, answer in answers if answer}
        choice = archive.choose_run(self._runs_dir(), self._given["run"], statuses)
        for note in choice.pop("notes"):
            self._display.warning(printable(note))
        for name in choice["silent"]:
            self._display.warning(
                f"{name} does not answer: its logs are shown as far as they were copied before"
            )
        follow = []
        if self._options["follow"]:
            follow = choice["goes_on"]
        return dict(choice, follow=follow)
