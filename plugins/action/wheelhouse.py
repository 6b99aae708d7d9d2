# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect an environment's wheels. Documented in library/wheelhouse.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import python_env
from ansible_collections.trainyard.cluster.plugins.modules.wheelhouse import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.environments import (
    wheel_collector,
    wheelhouse,
)

MESSAGE_CHARACTERS = 8000


class ActionModule(ControllerAction):
    """Fetch wheels with the pip beside Ansible's own Python, into the controller's cache."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (python_env.EnvironmentRefused, wheelhouse.WheelhouseError)

    def execute(self, arguments: Arguments) -> Result:
        """Return what the nodes lack and where its wheels are."""
        try:
            return wheel_collector.collect_wheels(arguments, not self.check_mode)
        except OSError as error:
            self.fail(f"the controller's cache {arguments['cache_dir']}: {error}")

    def describe(self, error: Exception) -> str:
        """Return the message with every problem."""
        return printable(str(error), limit=MESSAGE_CHARACTERS, newlines=True)
