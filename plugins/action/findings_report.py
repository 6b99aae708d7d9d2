# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the findings of a check. Documented in library/findings_report.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.modules.findings_report import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)


class ActionModule(ControllerAction):
    """Make one table of all findings, and fail where one of them is a stop."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Return the table with READY or NOT READY as its last line."""
        entries = arguments["findings"]
        lines = [printable(line) for line in findings.lines(entries)]
        stops = len(findings.stops(findings.merged(entries)))
        if stops:
            subject = f"{stops} findings keep"
            if stops == 1:
                subject = "1 finding keeps"
            head = f"NOT READY: {subject} this job from starting"
            codes = [findings.code_of(item) for item in findings.stops(entries)]
            self.fail(head, lines=[*lines, head], codes=sorted(set(codes)))
        return {
            "changed": False,
            "lines": [*lines, "READY: nothing keeps this job from starting"],
        }
