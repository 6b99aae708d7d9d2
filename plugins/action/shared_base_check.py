# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse a shared product directory. Documented in library/shared_base_check.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import placement
from ansible_collections.trainyard.cluster.plugins.modules.shared_base_check import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)


class ActionModule(ControllerAction):
    """Compare the product directories of the nodes."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Fail where two nodes have one product directory."""
        entries = placement.judge_bases(arguments["facts"])
        if entries:
            texts = (f"{item['text']} -> {item['remedy']}" for item in entries)
            self.fail(printable("; ".join(texts), newlines=True))
        return {"changed": False}
