# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile the files of a mesh. Documented in library/ssh_mesh_config.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.ssh_mesh_config import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh.mesh_compilation import (
    MeshRefused,
    compile_mesh,
)


class ActionModule(ControllerAction):
    """Compute on the controller what every node's mesh consists of."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (MeshRefused,)

    def execute(self, arguments: Arguments) -> Result:
        """Return the texts, or refuse with every problem."""
        return {"changed": False, **compile_mesh(arguments)}

    def describe(self, error: Exception) -> str:
        """Return the message as it is."""
        return str(error)
