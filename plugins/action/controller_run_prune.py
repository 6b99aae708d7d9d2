# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove runs from the controller. Documented in library/controller_run_prune.py."""

from __future__ import annotations

import functools

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable_data
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import prune_scan
from ansible_collections.trainyard.cluster.plugins.modules.controller_run_prune import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import controller_runs


class ActionModule(ControllerAction):
    """Remove runs from the controller's directory of runs."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return what was removed, and what stays."""
        runs_dir, names = arguments["runs_dir"], arguments["names"]
        if self.check_mode:
            return {"changed": bool(names), "removed": [], "freed": 0, "problems": []}
        removal = prune_scan.remove_runs(
            runs_dir,
            names,
            lambda name: controller_runs.describe_run(runs_dir, name, {}),
            functools.partial(controller_runs.held_runs, runs_dir),
        )
        return dict(printable_data(removal), changed=bool(removal["removed"]))
