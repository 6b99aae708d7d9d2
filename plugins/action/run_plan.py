# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep this controller's plan and job of a run, or take another's from the nodes.

See library/run_plan.py for the documentation.
"""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.run_plan import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import plan_directory


class ActionModule(ControllerAction):
    """Read the schemas and the suites' tables, which do not travel with a module."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError,)

    def execute(self, arguments: Arguments) -> Result:
        """Return what is missing here, after taking what there is for `taken`."""
        attempt, changed = arguments["attempt_dir"], False
        if arguments["state"] == "looked" and not self.check_mode:
            changed = plan_directory.make_private(attempt)
        elif not self.check_mode:
            digests = plan_directory.read_digests(arguments["answers"], attempt)
            changed, problems = plan_directory.take(attempt, digests, arguments["site"])
            for text in problems:
                self.warn(text)
        return {"changed": changed, "lacking": plan_directory.missing_files(attempt)}
