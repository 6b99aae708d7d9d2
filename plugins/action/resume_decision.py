# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide whether a run can be resumed. Documented in library/resume_decision.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import resume_decision
from ansible_collections.trainyard.cluster.plugins.modules.resume_decision import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import attempted_code


class ActionModule(ControllerAction):
    """Compare the controller's record of a run with what its nodes answered."""

    ARGUMENTS = arguments_of(DOCUMENTATION, secrets=("job",))
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return the attempt that is to be started or followed."""
        run_id = arguments["run_id"]
        try:
            attempt_dir.check_run_id(run_id)
            controller = resume_decision.read_controller_state(arguments["runs_dir"], run_id)
            decision = resume_decision.decide(
                run_id, controller, arguments["answers"], arguments["after"]
            )
            for note in decision.pop("notes"):
                self.warn(printable(note))
            job = resume_decision.choose_job(controller, arguments["job"])
            code = attempted_code.read(arguments["runs_dir"], run_id)
        except (attempt_dir.AttemptError, resume_decision.ResumeRefused) as error:
            self.fail(self.describe(error), refused=True, code=error.code)
        return {"changed": False, "job": job, "code": code, **decision}

    def describe(self, error: Exception) -> str:
        """Return the message as one line."""
        return printable(str(error))
