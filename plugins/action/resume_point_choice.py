# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the resume point of a run. Documented in library/resume_point_choice.py."""

from __future__ import annotations

import os

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    finder,
    model_collector,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import unseen_checkpoints
from ansible_collections.trainyard.cluster.plugins.modules.resume_point_choice import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.checkpoints import (
    resume_point_choice,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)


class ActionModule(ControllerAction):
    """Compare the checkpoints of all machines."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return the best checkpoint, and why a restart should wait."""
        attempt_dir.check_run_id(arguments["run_id"])
        run_dir = os.path.join(arguments["runs_dir"], arguments["run_id"])
        local_points = finder.find_in_run(run_dir, arguments["rule"], on_controller=True)
        points = {finder.CONTROLLER: printable_data(local_points), **arguments["found"]}
        point, skipped = resume_point_choice.choose(points)
        if point:
            attempt = os.path.join(run_dir, f"attempt-{point['attempt']}")
            point = dict(point, home=os.path.join(attempt, model_collector.PLACE))
        holders = unseen_checkpoints.find_holders(run_dir, arguments["silent"], point)
        return {
            "changed": False,
            "point": point or {},
            "waits": printable(unseen_checkpoints.describe_wait(holders, arguments["tries"])),
            "incomplete": skipped,  # (`skipped` would mean to Ansible that the task was left out)
            "lines": [
                printable(line) for line in resume_point_choice.describe_choice(point, skipped)
            ],
        }
