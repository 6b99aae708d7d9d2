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
    "started": record_attempt.record_start,
    "ended": record_attempt.record_end,
    "refused": record_attempt.record_refusal,
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
            message = record_attempt.describe_conflict(arguments)
            code = "attempt.begun_elsewhere"
            self.fail(message, taken=True, code=code)
