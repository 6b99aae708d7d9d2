# SPDX-License-Identifier: GPL-3.0-or-later
"""Prune the runs of the controller. Documented in library/prune_controller.py."""

from __future__ import annotations

import functools

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable_data
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import prune_scan
from ansible_collections.trainyard.cluster.plugins.modules.prune_controller import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import controller_runs


class ActionModule(ControllerAction):
    """Describe or remove runs in the controller's directory of runs."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return the result of the state."""
        runs_dir, names = arguments["runs_dir"], arguments["names"]
        describe = functools.partial(controller_runs.describe_run, runs_dir)
        held = functools.partial(controller_runs.held_runs, runs_dir)
        if arguments["state"] == "looked":
            in_use = held()
            found = prune_scan.look(runs_dir, lambda name: describe(name, in_use))
            return {"changed": False, "look": printable_data(found)}
        if self.check_mode:
            return {"changed": bool(names), "removed": [], "freed": 0, "problems": []}
        removal = prune_scan.remove(runs_dir, names, lambda name: describe(name, {}), held)
        return dict(printable_data(removal), changed=bool(removal["removed"]))
