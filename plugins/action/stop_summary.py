# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe a stop. Documented in library/stop_summary.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.stop_summary import (
    summarize_stop,
)


class ActionModule(ControllerAction):
    """Describe the nodes' results of a stop."""

    ARGUMENTS = {
        "results": {"type": "dict", "required": True},
        "found": {"type": "dict", "default": {}},
        "run_id": {"type": "str", "default": ""},
        "members": {"type": "list", "elements": "str", "default": []},
    }

    def execute(self, arguments: Arguments) -> Result:
        """Return the lines and the verdict."""
        return {"changed": False, **summarize_stop(**arguments)}
