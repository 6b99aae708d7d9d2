# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the nodes of the next attempt. Documented in library/node_replacement.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery.node_choice import (
    choose_nodes,
    note_failed_nodes,
)


class ActionModule(ControllerAction):
    """Read and write the controller's memory of nodes that failed."""

    ARGUMENTS = {
        "state": {"type": "str", "choices": ["noted", "chosen"], "required": True},
        "run_id": {"type": "str", "default": ""},
        "state_dir": {"type": "path", "required": True},
        "verdict": {"type": "dict", "default": {}},
        "ended": {"type": "float", "default": 0},
        "nodes": {"type": "list", "elements": "str", "default": []},
        "places": {"type": "list", "elements": "str", "default": []},
        "site": {"type": "dict"},
        "job": {"type": "dict"},
        "looks": {"type": "dict", "default": {}},
        "cooldown_minutes": {"type": "float", "default": 30},
    }
    REQUIRED_IF = [("state", "chosen", ("site", "job"))]
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Note the nodes that a verdict names, or choose those of the next attempt."""
        write = not self.check_mode
        if arguments["state"] == "noted":
            return {"changed": False, **note_failed_nodes(arguments, write, self.warn)}
        return {"changed": False, **choose_nodes(arguments, write)}
