# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the controller's record of a run. Documented in library/run_record.py."""

from __future__ import annotations

import secrets
import string

from ansible_collections.trainyard.cluster.plugins.modules.run_record import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import record_attempt

# The letters of a start's token.
TOKEN = string.ascii_lowercase + string.digits
WRITERS = {
    "started": record_attempt.record_start,
    "ended": record_attempt.record_end,
    "collected": record_attempt.record_model,
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
            result = WRITERS[arguments["state"]](arguments, self.check_mode)
        except FileExistsError:
            message = record_attempt.describe_conflict(arguments)
            code = "attempt.begun_elsewhere"
            self.fail(message, taken=True, code=code)
        if arguments["state"] == "started":
            # It tells this command's attempt from that of another command.
            result = {**result, "start": "".join(secrets.choice(TOKEN) for _ in range(24))}
        return {"changed": True, **result}
