# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the record of a run. Documented in library/run_info.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.pending_runs import (
    pending_runs,
)


class ActionModule(ControllerAction):
    """Read the controller's record of runs."""

    ARGUMENTS = {
        "runs_dir": {"type": "path", "required": True},
        "run_id": {"type": "str", "default": ""},
        "site": {"type": "str"},
    }
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return what the record knows."""
        return {"changed": False, **pending_runs(**arguments)}
