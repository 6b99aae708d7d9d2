# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the nodes of the next attempt. Documented in library/node_replacement.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.node_replacement import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery.node_choice import (
    choose_nodes,
    note_failed_nodes,
)


class ActionModule(ControllerAction):
    """Read and write the controller's memory of nodes that failed."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    REQUIRED_IF = [("state", "chosen", ("site", "job"))]
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Note the nodes that a verdict names, or choose those of the next attempt."""
        write = not self.check_mode
        if arguments["state"] == "noted":
            return {"changed": False, **note_failed_nodes(arguments, write, self.warn)}
        return {"changed": False, **choose_nodes(arguments, write)}
