# SPDX-License-Identifier: GPL-3.0-or-later
"""Base class of the action plugins whose module starts a program of agent.pyz on a node."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ..agent import zipapp
from . import answer_gate


class AgentAction(answer_gate.Gated, ActionBase):
    """Result of the module, which gets the archive as its argument `agent`.

    It travels with the task that starts the program, so that it costs no task of its own.
    """

    TRANSFERS_FILES = False
    # Values of the argument `state` that start a program.
    STATES: tuple[str, ...] = ()

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the module's result."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        result.update(self.answer(task_vars))
        return result

    def answer(self, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Return what the result has beside Ansible's own fields."""
        return self.ask(dict(self._task.args), task_vars)

    def ask(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Return what the module answers to these arguments."""
        if arguments.get("state") in self.STATES:
            arguments["agent"] = zipapp.encoded()
            arguments.update(self.more_arguments(arguments))
        answer: dict[str, Any] = self._execute_module(module_args=arguments, task_vars=task_vars)
        return answer

    def more_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return further arguments of a start."""
        return {}
