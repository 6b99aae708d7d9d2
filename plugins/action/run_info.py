# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the record of a run. Documented in library/run_info.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.run_info import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.pending_runs import (
    pending_runs,
)


class ActionModule(ControllerAction):
    """Read the controller's record of runs."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return what the record knows."""
        return {"changed": False, **pending_runs(**arguments)}
