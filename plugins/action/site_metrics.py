# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the metrics of a look at a site. Documented in library/site_metrics.py."""

from __future__ import annotations

import time

from ansible_collections.trainyard.cluster.plugins.modules.site_metrics import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.monitor import site_metrics


class ActionModule(ControllerAction):
    """Write files of the collector's directory from the answers of a site's nodes."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Write the files."""
        results = {node: arguments["results"].get(node) or {} for node in arguments["nodes"]}
        return site_metrics.export_site(
            arguments["site"],
            results,
            arguments["runs_dir"],
            arguments["directory"] or "",
            time.time(),
        )
