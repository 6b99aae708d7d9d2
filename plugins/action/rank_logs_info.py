# SPDX-License-Identifier: GPL-3.0-or-later
"""Run rank_logs_info on a node that has not answered yet. Documented in library/rank_logs_info.py.

A node that is followed answers with the end of its attempt (attempt_monitor). A module would take a
second for the same.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import Result
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate


class ActionModule(answer_gate.Gated, ActionBase):
    """The known answer, or the result of the module."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Result:
        """Return what the node answered."""
        result: Result = super().run(tmp, task_vars)
        arguments = plain(self._task.args)
        known = arguments.pop("known", None)
        if known:
            result.update(known["answer"], changed=False)
            # As if the node had answered now: its clock is compared with the other nodes'.
            result["now"] += time.time() - known["received"]
            return result
        result.update(
            self._execute_module(
                module_name="trainyard.cluster.rank_logs_info",
                module_args=arguments,
                task_vars=task_vars,
            )
        )
        return result
