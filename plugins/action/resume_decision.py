# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide whether a run can be resumed. Documented in library/resume_decision.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import resume_decision
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
)


class ActionModule(ControllerAction):
    """Compare the controller's record of a run with what its nodes answered."""

    ARGUMENTS = {
        "runs_dir": {"type": "path", "required": True},
        "run_id": {"type": "str", "required": True},
        "answers": {"type": "dict", "required": True},
        # its environment may hold secrets
        "job": {"type": "list", "elements": "str", "default": [], "no_log": True},
        "after": {"type": "int", "default": 0},
    }
    FAILURES = (resume_decision.ResumePostponed, OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return the attempt that is to be started or followed."""
        run_id = arguments["run_id"]
        try:
            if not RUN_ID.match(run_id):
                raise resume_decision.ResumeRefused(
                    "attempt.bad_run_id", f"{run_id!r} is not a run id"
                )
            home = resume_decision.at_home(arguments["runs_dir"], run_id)
            settled = resume_decision.settle(run_id, home, arguments["answers"], arguments["after"])
            for note in settled.pop("notes"):
                self.warn(printable(note))
            job = resume_decision.job_of(home, arguments["job"])
        except resume_decision.ResumeRefused as error:
            self.fail(self.describe(error), refused=True, code=error.code)
        return {"changed": False, "job": job, **settled}

    def describe(self, error: Exception) -> str:
        """Return the message as one line."""
        return printable(str(error))
