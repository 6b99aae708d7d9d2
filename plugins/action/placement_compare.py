# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the nodes to name files. Documented in library/placement_compare.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import placement
from ansible_collections.trainyard.cluster.plugins.modules.placement_compare import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)


class ActionModule(ControllerAction):
    """Compare what lies on the nodes already."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Return the nodes, and the parts of each place."""
        return {"changed": False, **placement.find_differing_nodes(arguments["facts"])}
