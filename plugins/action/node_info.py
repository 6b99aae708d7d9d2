# SPDX-License-Identifier: GPL-3.0-or-later
"""Run node_info on a node. Documented in library/node_info.py.

Note the controller's time before and after, and what the login shell prints over the connection of
rsync: only the controller can.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import connection_failure
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import Result
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import login_output


class ActionModule(answer_gate.Gated, ActionBase):
    """Result of the module, with facts.sent and facts.received (unix seconds), and facts.login.

    All its facts were read between these two times. facts.login: what the login shell prints.
    """

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Result:
        """Return the module's result with the two times."""
        result: Result = super().run(tmp, task_vars)
        sent = time.time()
        result.update(
            self._execute_module(module_name="trainyard.cluster.node_info", task_vars=task_vars)
        )
        if connection_failure.is_without_result(result):
            result["msg"] = connection_failure.words_of(result)
        if "facts" in result:
            result["facts"].update(sent=sent, received=time.time())
            result["facts"]["login"] = login_output.read(self._connection)
        return result
