# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect an environment's wheels. Documented in library/wheelhouse.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
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
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import describe

MESSAGE_CHARACTERS = 8000


class ActionModule(ControllerAction):
    """Fetch wheels with the pip beside Ansible's own Python, into the controller's cache."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (python_env.EnvironmentRefused, wheelhouse.WheelhouseError)

    def execute(self, arguments: Arguments) -> Result:
        """Return what the nodes lack, where its wheels are, and their tree."""
        try:
            result: Result = wheel_collector.collect_wheels(arguments, not self.check_mode)
            if result["path"] and not self.check_mode:
                result["tree"] = self._describe_tree(arguments, result["path"])
        except (OSError, manifest.ManifestError) as error:
            self.fail(f"the controller's cache {arguments['cache_dir']}: {error}")
        return result

    def _describe_tree(self, arguments: Arguments, path: str) -> Result:
        """Return the wheels as a tree, which goes to the nodes as code and data do."""
        cache_dir, asked = arguments["cache_dir"], arguments["environment"]
        entries = manifest.scan(path, None, describe.scan_cache(cache_dir, path))
        name = f"{asked['package']}=={asked['version']}"
        return dict(describe.keep_manifest("wheels", name, path, entries, cache_dir))

    def describe(self, error: Exception) -> str:
        """Return the message with every problem."""
        return printable(str(error), limit=MESSAGE_CHARACTERS, newlines=True)
