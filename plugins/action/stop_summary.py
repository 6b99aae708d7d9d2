# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe a stop. Documented in library/stop_summary.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.stop_summary import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.stop_summary import (
    summarize_stop,
)


class ActionModule(ControllerAction):
    """Describe the nodes' results of a stop."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Return the lines and the verdict."""
        return {"changed": False, **summarize_stop(**arguments)}
