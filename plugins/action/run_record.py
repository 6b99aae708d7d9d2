# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the controller's record of a run. Documented in library/run_record.py."""

from __future__ import annotations

import secrets
import string

from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import record_attempt

# The letters of a start's token.
TOKEN = string.ascii_lowercase + string.digits
WRITERS = {
    "started": record_attempt.started,
    "ended": record_attempt.ended,
    "refused": record_attempt.refused,
}


class ActionModule(ControllerAction):
    """Write what happened to an attempt into the run's directory."""

    ARGUMENTS = {
        "state": {"type": "str", "choices": ["started", "ended", "refused"], "required": True},
        "runs_dir": {"type": "path", "required": True},
        "run_id": {"type": "str", "required": True},
        "number": {"type": "int", "default": 1},
        "job": {"type": "dict"},
        "plan": {"type": "str"},
        "plan_sha256": {"type": "str"},
        "code": {"type": "dict", "default": {}},
        "code_diff": {"type": "str", "default": ""},
        "resume": {"type": "dict", "default": {}},
        "why": {"type": "str", "default": ""},
        "followed": {"type": "bool", "default": True},
        "nodes": {"type": "list", "elements": "dict", "default": []},
        "checkpoint": {"type": "dict", "default": {}},
    }
    REQUIRED_IF = [("state", "started", ("job", "plan", "plan_sha256"))]
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return what the record says of the attempt."""
        try:
            result = WRITERS[arguments["state"]](arguments, self.check_mode)
        except FileExistsError:
            self.fail(record_attempt.taken(arguments), taken=True)
        if arguments["state"] == "started":
            # It tells this command's attempt from that of another command.
            result = {**result, "start": "".join(secrets.choice(TOKEN) for _ in range(24))}
        return {"changed": True, **result}
