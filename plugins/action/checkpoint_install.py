# SPDX-License-Identifier: GPL-3.0-or-later
"""Install a checkpoint's copy. Documented in library/checkpoint_install.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import model_collector
from ansible_collections.trainyard.cluster.plugins.modules.checkpoint_install import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.checkpoints import checkpoint_copy
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)


class ActionModule(ControllerAction):
    """Move a copy that is whole into its place."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (model_collector.CheckpointError, OSError)

    def execute(self, arguments: Arguments) -> Result:
        """Install the copy, all files or none."""
        path, files = arguments["path"], arguments["files"]
        return {"changed": checkpoint_copy.install_copy(path, files, not self.check_mode)}
