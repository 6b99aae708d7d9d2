# SPDX-License-Identifier: GPL-3.0-or-later
"""Verify and index the logs of a run. Documented in library/log_index.py."""

from __future__ import annotations

import errno
import os

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.modules.log_index import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config.quota import Quota
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import collector
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync.log_index import (
    describe_left,
    describe_mismatches,
    list_problems,
)

# The controller's disk is full, or its user's quota is.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class ActionModule(ControllerAction):
    """Compare what is on the controller with what the nodes reported."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Return what is missing, or take in what was fetched."""
        run_dir = arguments["run_dir"]
        nodes = collector.make_entries(arguments["results"], arguments["running"])
        refused: dict[str, str] = {}
        if not arguments["strict"]:
            nodes, refused = collector.split_entries(nodes)
        for node, why in refused.items():
            self.warn(
                f"{printable(node)}: its logs stay there, because its answer is not valid: {why}"
            )
        try:
            if arguments["state"] == "missing":
                found = self._find_missing(run_dir, nodes, arguments["bytes"], arguments["files"])
                return {"changed": False, "refused": refused, "problems": [], **found}
            if not os.path.isdir(run_dir):
                self.fail(
                    f"{run_dir} is no directory; collect makes it before the logs are brought"
                )
            result = collector.install_files(
                run_dir, nodes, not self.check_mode, left=arguments["left"]
            )
        except (collector.RequestError, OSError, ValueError) as error:
            if arguments["strict"] or getattr(error, "errno", None) not in NO_ROOM:
                self.fail(f"{run_dir}: {error}")
            return self._without_room(arguments, refused, str(error))
        problems = list_problems(result["mismatches"], refused)
        result = dict(result, refused=refused, problems=problems)
        self._report(result, arguments["strict"])
        return dict(result, ranks_file=os.path.join(run_dir, "ranks.json"))

    def _without_room(self, arguments: Arguments, refused: dict[str, str], reason: str) -> Result:
        """Return the result where the controller's disk is full.

        The verdict needs no log here, so the collection goes on without them.
        """
        problem = (
            f"the logs are not on the controller: {printable(reason)}; they stay on the nodes: make"
            " room"
        )
        self.warn(problem)
        result: Result = {"changed": False, "refused": refused, "problems": [problem]}
        if arguments["state"] == "missing":
            return {**result, "missing": {}, "left": {}}
        path = os.path.join(arguments["run_dir"], "ranks.json")
        empty: Result = {"files": [], "replaced": [], "mismatches": [], "index": {}}
        return {**result, **empty, "ranks_file": path}

    def _find_missing(self, run_dir: str, nodes: list[Result], bound: str, files: int) -> Result:
        """Return what is missing, and warn of what a bound leaves on its node."""
        missing, left = collector.find_missing(
            run_dir, nodes, Quota(bound, files, 0), not self.check_mode
        )
        for node, sizes in left.items():
            if sizes:
                self.warn(describe_left(node, sizes, bound, files))
        return {"missing": missing, "left": left}

    def _report(self, result: Result, strict: bool) -> None:
        """Warn of files that were replaced. Fail, or warn, where files do not match."""
        for item in result["replaced"]:
            self.warn(
                f"{item['node']}: {item['file']} was truncated or replaced; what was brought before"
                f" is kept as {item['kept']}"
            )
        if result["mismatches"]:
            text = describe_mismatches(result["mismatches"])
            if strict:
                self.fail(text, **result)
            self.warn(text)
