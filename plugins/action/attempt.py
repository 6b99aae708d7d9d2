# SPDX-License-Identifier: GPL-3.0-or-later
"""Run attempt on a node, with the archive of its programs. Documented in library/attempt.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import agent_action


class ActionModule(agent_action.AgentAction):
    """Result of the module."""

    STATE = "started"
