# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the runs that a rule removes. Documented in library/prune_choice.py."""

from __future__ import annotations

import time

from ansible_collections.trainyard.cluster.plugins.modules.prune_choice import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import pruning


class ActionModule(ControllerAction):
    """Apply a rule to the runs of all places."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Return what may be removed at each place."""
        return {"changed": False, **pruning.choose_runs(arguments, time.time())}
