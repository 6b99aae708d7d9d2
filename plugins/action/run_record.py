# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the controller's record of a run. Documented in library/run_record.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.run_record import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import record_attempt

WRITERS = {
    "started": record_attempt.started,
    "ended": record_attempt.ended,
    "refused": record_attempt.refused,
}


class ActionModule(ControllerAction):
    """Write what happened to an attempt into the run's directory."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    REQUIRED_IF = [("state", "started", ("job", "plan", "plan_sha256"))]
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return what the record says of the attempt."""
        try:
            return {"changed": True, **WRITERS[arguments["state"]](arguments, self.check_mode)}
        except FileExistsError:
            self.fail(record_attempt.taken(arguments), taken=True)
