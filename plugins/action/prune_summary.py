# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe a removal. Documented in library/prune_summary.py."""

from __future__ import annotations

import time

from ansible_collections.trainyard.cluster.plugins.modules.prune_summary import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import pruning


class ActionModule(ControllerAction):
    """Describe what was removed at all places, or would be."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return the lines and the verdict."""
        return {"changed": False, **pruning.summarize_removal(arguments, time.time())}
