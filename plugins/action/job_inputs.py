# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe a job's inputs on the controller. Documented in library/job_inputs.py."""

from __future__ import annotations

from ansible.module_utils.urls import open_url
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.modules.job_inputs import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import describe, sources


class ActionModule(ControllerAction):
    """Read code, data and weights on the controller, and keep their manifests in its cache."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    PATHS_AS_GIVEN = ("code",)
    FAILURES = (OSError,)

    def execute(self, arguments: Arguments) -> Result:
        """Return the description of the inputs."""
        try:
            described = describe.describe(arguments, self.check_mode, open_url)
        except sources.InputsRefused as error:
            self.fail(self.describe(error), codes=error.codes)
        for text in described.pop("doubts", []):
            self.warn(printable(text, limit=1000))
        return described
