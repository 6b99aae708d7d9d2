# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter history_lines: the history of a run in lines for people. See history_lines.yml."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.history_text import (
    describe_history,
)


def history_lines(looks):
    """Return the lines. looks: what the module run_history_info returned on each node."""
    return describe_history(plain(looks))


class FilterModule:
    """The filter of this file."""

    def filters(self):
        """Return {name: function}."""
        return {"history_lines": history_lines}
