# SPDX-License-Identifier: GPL-3.0-or-later
"""Pin the host keys of nodes. Documented in library/ssh_host_keys.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.ssh_host_keys import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh.host_key_pins import (
    PinRefused,
    nodes_of,
    pin_keys,
)


class ActionModule(ControllerAction):
    """Scan the nodes from the controller and write the site's known_hosts."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (PinRefused,)

    def execute(self, arguments: Arguments) -> Result:
        """Pin the vouched keys, and return what is unknown."""
        nodes = nodes_of(arguments["hosts"], arguments["ports"], arguments["fingerprints"])
        places = (arguments["known_hosts"], arguments["also"])
        return pin_keys(nodes, *places, arguments["timeout"], not self.check_mode)

    def describe(self, error: Exception) -> str:
        """Return the message as it is. A node's own words do not stand in it."""
        return str(error)
