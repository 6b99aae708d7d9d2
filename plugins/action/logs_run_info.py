# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a node for a run. Documented in library/logs_run_info.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.logs_run_info import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logs_action import NodeLogsAction


class ActionModule(NodeLogsAction):
    """Ask the node for the run that is named, or for the one that owns it."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def answer(self) -> Result:
        """Return the node's status."""
        return {"status": self._status(self._given["run"], 0)}
