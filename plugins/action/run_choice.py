# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the run of a command. Documented in library/run_choice.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_choice
from ansible_collections.trainyard.cluster.plugins.modules.run_choice import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import (
    attempt_in_turn,
    stop_target,
)


class ActionModule(ControllerAction):
    """Compare the nodes' answers with the controller's record."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return the run, and warn of each node whose answer differs."""
        runs_dir, members = arguments["runs_dir"], arguments["members"]
        statuses = {
            node: answer.get("status")
            for node, answer in arguments["found"].items()
            if isinstance(answer, dict)
        }
        if arguments["run_id"]:
            attempt_dir.check_run_id(arguments["run_id"])
        answers = {node: status for node, status in statuses.items() if isinstance(status, dict)}
        choice = run_choice.choose(runs_dir, members, statuses, arguments["run_id"]) or {}
        if arguments["in_turn"] and choice:
            choice = attempt_in_turn.choose(runs_dir, members, choice, answers, arguments["after"])
        owners = run_choice.running_attempts(runs_dir, members, statuses)
        target = stop_target.choose_stop_target(
            arguments["run_id"], members, arguments["record"], answers.values(), choice, owners
        )
        for note in choice.get("notes", ()):
            self.warn(printable(note))
        return {
            "changed": False,
            "choice": choice,
            "known_runs": run_choice.known_runs(statuses),
            "holding": owners,
            "answering": list(answers),
            "traces": stop_target.has_traces(answers.values()),
            "stop": target._asdict(),
        }
