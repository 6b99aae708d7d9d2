# SPDX-License-Identifier: GPL-3.0-or-later
"""Run attempt on a node, with the archive of its programs. Documented in library/attempt.py."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import zipapp
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import agent_action


class ActionModule(agent_action.AgentAction):
    """Result of the module."""

    STATES = ("started", "standby")

    def more_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the replicator and the supervisor for the nodes that may need them."""
        programs = {}
        if boolean(arguments.get("keep_replica", False)) or arguments.get("supervise"):
            programs["replicator"] = zipapp.encoded("recovery.checkpoint_replicator")
        if arguments.get("supervise"):
            programs["supervisor"] = zipapp.encoded("supervision.node_supervisor")
        return programs
