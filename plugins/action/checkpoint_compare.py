# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a checkpoint's copy. Documented in library/checkpoint_compare.py."""

from __future__ import annotations

import os

from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import model_collector
from ansible_collections.trainyard.cluster.plugins.modules.checkpoint_compare import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.checkpoints import checkpoint_copy
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)


class ActionModule(ControllerAction):
    """Compare the copy on the controller with the node's files."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (model_collector.CheckpointError, OSError)

    def execute(self, arguments: Arguments) -> Result:
        """Return what the controller lacks."""
        place = os.path.join(arguments["path"], model_collector.PLACE)
        lacking = checkpoint_copy.compare_copy(place, arguments["files"])
        sizes = {name: size for name, (_kind, size, _sha256) in arguments["files"].items()}
        return {"changed": False, "lacking": lacking, "sizes": sizes}
