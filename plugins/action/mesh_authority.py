# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the site's certificate authority. Documented in library/mesh_authority.py."""

from __future__ import annotations

import getpass
import os
import socket

from ansible_collections.trainyard.cluster.plugins.modules.mesh_authority import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh import (
    authority,
    site_authority,
)


class ActionModule(ControllerAction):
    """Make, change or remove the authority's directory on the controller."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (authority.AuthorityError, OSError)

    def execute(self, arguments: Arguments) -> Result:
        """Do what the state says."""
        write, by = not self.check_mode, f"{getpass.getuser()}@{socket.gethostname()}"
        if arguments["state"] == "present":
            return site_authority.keep_authority(arguments, write, by)
        if arguments["state"] == "noted":
            return site_authority.take_nodes(arguments, write, by)
        if write:
            return {"changed": authority.remove_authority(arguments["directory"])}
        return {"changed": os.path.isdir(arguments["directory"])}

    def describe(self, error: Exception) -> str:
        """Return the message as it is."""
        return str(error)
