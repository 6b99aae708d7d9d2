# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter verification_times: how long a full verification takes. See verification_times.yml."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import placement


def verification_times(facts, node, trees):
    """Return the lines. facts: of the node's probe. node: its name. trees: as job_inputs gives."""
    return placement.estimate_verification(plain(node), plain(facts), plain(trees))


class FilterModule:
    """The filter of this file."""

    def filters(self):
        """Return {name: function}."""
        return {"verification_times": verification_times}
