# SPDX-License-Identifier: GPL-3.0-or-later
"""List all runs of a site. Documented in library/run_list.py."""

from __future__ import annotations

import time

from ansible_collections.trainyard.cluster.plugins.modules.run_list import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import index_page
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import run_table


class ActionModule(ControllerAction):
    """Merge the nodes' answers with the controller's records."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError,)

    def execute(self, arguments: Arguments) -> Result:
        """Return the table, and write the page."""
        now, answers, silent = time.time(), arguments["answers"], arguments["silent"]
        records = index_page.read_records(arguments["runs_dir"])
        rows = run_table.merge(answers, records, silent)
        shown = run_table.select(rows, arguments["most"])
        # Not on the page, which is about runs that have started.
        listed = [*run_table.waiting_rows(answers), *shown]
        hidden = sum(answer.get("left_out") or 0 for answer in answers.values())
        left_out = max(len(rows) - len(shown), hidden)
        page = index_page.write(
            arguments["runs_dir"],
            arguments["site"],
            rows,
            arguments["assets"],
            now,
            not self.check_mode,
        )
        return {
            "changed": False,
            "runs": run_table.as_json(listed),
            "index": page,
            "lines": run_table.lines(listed, left_out, silent, now),
        }
