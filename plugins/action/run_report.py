# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report of a run. Documented in library/run_report.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.modules.run_report import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import load
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report.report_page import (
    write_page,
)


class ActionModule(ControllerAction):
    """Read runs on the controller and write one HTML file."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Write the page, and warn of what could not be read."""
        try:
            page = write_page(**arguments, write=not self.check_mode)
        except load.ReportError as error:
            self.fail(f"no report: {printable(str(error))}")
        except Exception as error:  # a record of an unknown shape; no trace of what it holds
            self.fail(f"no report: {type(error).__name__}: {printable(str(error))}")
        for note in page["notes"]:
            self.warn(f"the report is not complete: {note}")
        return page
