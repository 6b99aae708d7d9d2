# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the runs of the controller. Documented in library/controller_runs_info.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable_data
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import prune_scan
from ansible_collections.trainyard.cluster.plugins.modules.controller_runs_info import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import controller_runs


class ActionModule(ControllerAction):
    """Describe the runs in the controller's directory of runs."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return the description of all runs."""
        runs_dir = arguments["runs_dir"]
        locked_runs = controller_runs.held_runs(runs_dir)
        look = prune_scan.scan_runs(
            runs_dir, lambda name: controller_runs.describe_run(runs_dir, name, locked_runs)
        )
        return {"changed": False, "look": printable_data(look)}
