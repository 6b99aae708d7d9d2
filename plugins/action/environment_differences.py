# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the nodes' packages. Documented in library/environment_differences.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.environment_differences import (
    DOCUMENTATION,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.environments import (
    environment_difference,
)


class ActionModule(ControllerAction):
    """Compare the markers of one environment on all nodes."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (environment_difference.EnvironmentsDiffer,)

    def execute(self, arguments: Arguments) -> Result:
        """Return what all nodes have.

        In check mode, that of the nodes that have the environment.
        """
        common = environment_difference.compare_environments(**arguments, may_lack=self.check_mode)
        return {"changed": False, **common}

    def describe(self, error: Exception) -> str:
        """Return the message as it is."""
        return str(error)
