# SPDX-License-Identifier: GPL-3.0-or-later
"""Run network_check on a node, with its listener. Documented in library/network_check.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import agent_action


class ActionModule(agent_action.AgentAction):
    """Result of the module."""

    STATES = ("listening",)
