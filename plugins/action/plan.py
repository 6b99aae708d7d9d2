# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile the plan of a job. Documented in library/plan.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.modules.plan import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import node_groups
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start.job_plan import plan_job


class ActionModule(ControllerAction):
    """Compute the plan on the controller from the nodes' answers."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Return the plan, or fail with everything that is in the way of a start."""
        result = plan_job(arguments)
        result["node_groups"] = node_groups.list_groups(result)
        stops, refused = findings.stops(result["findings"]), result.pop("refused", False)
        # --check goes on to show the plan with what is in its way, where there is a plan.
        shown = arguments["report"] or (self.check_mode and "plan" in result)
        if stops and not shown:
            lines = (f"  {line}" for line in result["lines"])
            message = "\n".join(["nothing was started:", *lines])
            codes = sorted({findings.code_of(item) for item in stops})
            self.fail(message, stops=findings.short(stops), refused=refused, codes=codes)
        return result
