# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a run's figures for Prometheus. Documented in library/run_metrics.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.modules.run_metrics import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report.metrics_file import (
    MetricsError,
    write_metrics,
)


class ActionModule(ControllerAction):
    """Read the run's record on the controller and write metrics.prom."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    FAILURES = (MetricsError,)

    def execute(self, arguments: Arguments) -> Result:
        """Write the files."""
        return write_metrics(**arguments, write=not self.check_mode, warn=self.warn)
