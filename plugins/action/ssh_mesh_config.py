# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile the files of a mesh. Documented in library/ssh_mesh_config.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh.mesh_compilation import (
    MeshRefused,
    compile_mesh,
)


class ActionModule(ControllerAction):
    """Compute on the controller what every node's mesh consists of."""

    ARGUMENTS = {
        "nodes": {"type": "list", "elements": "dict", "required": True},
        "names": {"type": "list", "elements": "str", "required": True},
        "inventory": {"type": "dict", "required": True},
        "known_hosts": {"type": "list", "elements": "path", "default": []},
        "gate": {"type": "str", "default": ""},
        "states": {"type": "list", "elements": "dict", "default": []},
        "site": {"type": "str", "required": True},
        "ca_public_key": {"type": "str", "default": "", "no_log": False},
        "directory": {"type": "str", "default": primitives.DIRECTORY},
        "extra_from": {"type": "list", "elements": "str", "default": []},
        "shared_home": {"type": "bool", "default": False},
        "validity": {"type": "str", "default": "+7d"},
        "renew_before": {"type": "str", "default": "+1d"},
    }
    FAILURES = (MeshRefused,)

    def execute(self, arguments: Arguments) -> Result:
        """Return the texts, or refuse with every problem."""
        return {"changed": False, **compile_mesh(arguments)}

    def describe(self, error: Exception) -> str:
        """Return the message as it is."""
        return str(error)
