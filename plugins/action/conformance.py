# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the product with its contract in the controller's process.

See library/conformance.py for the documentation.
"""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import write_json
from ansible_collections.trainyard.cluster.plugins.modules.conformance import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base.project import project_dir
from ansible_collections.trainyard.cluster.plugins.plugin_utils.conformance import (
    runner,
    site_checks,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)


class ActionModule(ControllerAction):
    """Read a job with the tables and schemas beside the core, which no sent module could see."""

    _requires_connection = True

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Name the runs that stand for the machines, or check every line."""
        self._project = os.path.dirname(os.path.abspath(self.task_vars["playbook_dir"]))
        self._names = self.group("trainers")
        if not self._names:
            self.fail("the group trainers is missing or empty")
        self._site = str(self.host_value(self._names[0], "trainyard_site") or "site")
        runs_dir = str(self.host_value(self._names[0], "trainyard_runs_dir") or "runs")
        self._runs_dir = os.path.join(project_dir(), os.path.expanduser(runs_dir))
        if arguments["state"] == "witnesses":
            runs = site_checks.witnesses(self._runs_dir, self._site, self._names)
            return {"changed": False, "runs": runs}
        return self._check(arguments)

    def _check(self, arguments: Arguments) -> Result:
        """Return every line of the contract with its outcome, and write the report."""
        site = None
        if arguments["ask"]:
            answers = {name: self._answer(name, arguments) for name in self._names}
            site = site_checks.Site(self._names, answers, self._runs_dir, self._site)
        lines = runner.examine(self._project, site, self._run_module)
        report, verdict = os.path.join(self._runs_dir, "conform.json"), runner.verdict(lines)
        if not self.check_mode:
            os.makedirs(self._runs_dir, mode=0o700, exist_ok=True)
            write_json(report, {"version": 1, "verdict": verdict, "lines": lines})
        place = f"everything that was rendered and compared: {report}"
        return {
            "changed": False,
            "lines": lines,
            "verdict": verdict,
            "summary": [*runner.table(lines), "", place, verdict["text"]],
            "details": runner.details(lines),
            # The playbook shows the list. With -v Ansible would print the whole result besides.
            "_ansible_verbose_override": True,
        }

    def _answer(self, name: str, arguments: Arguments) -> Any:
        """Return what a node's tasks registered, as site_checks takes it."""
        registered = []
        for key in ("proof", "facts", "plans"):
            value = None
            if arguments[key]:
                value = self.host_value(name, arguments[key])
            registered.append(value)
        return site_checks.answer(*registered)

    def _run_module(self, name: str, arguments: dict[str, Any]) -> Result:
        return self._execute_module(
            module_name="trainyard.cluster." + name,
            module_args=arguments,
            task_vars=self.task_vars,
        )
