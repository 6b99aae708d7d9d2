# SPDX-License-Identifier: Apache-2.0
"""Watch of the lease under which a supervised attempt trains, for the guard.

The node's supervisor ends an attempt whose lease is over. Where the supervisor cannot come back
(its record on the disk is damaged, its program is gone), nobody else on this node would, while the
other nodes go on without it (docs/runbooks/detached.md).
"""

from __future__ import annotations

import os
import time

from .attempt_files import read_mapping

NAME = "lease.json"  # in the supervisor's directory (attempts/supervisor_order.py)

# Seconds after a lease's end in which the supervisor itself ends the attempt, and so less than KILL
# in supervision/supervisor.py.
MARGIN_SECONDS = 2.0
SOURCE = "the nodes of the run"  # what stop.json has as `from` where the lease is over


class LeaseWatch:
    """What became of the lease of one attempt on this node.

    record: its attempt.json.
    """

    def __init__(self, attempt, node, record):
        self.folder = os.path.join(os.path.dirname(attempt), "supervisor", node)
        self.number, self.boot = record["attempt"], record.get("boot")

    def is_over(self):
        """Return whether the lease is over, and the supervisor has not ended the attempt.

        A lease of another attempt or of another boot says nothing, nor does none: the supervisor
        may be on its way, the run may have none, or the disk is full.
        """
        lease = read_mapping(self.folder, NAME)
        if (lease.get("attempt"), lease.get("boot")) != (self.number, self.boot):
            return False
        ends = [lease.get("until"), lease.get("granted")]
        if not all(isinstance(end, (int, float)) for end in ends):
            return False
        return time.clock_gettime(time.CLOCK_BOOTTIME) > max(ends) + MARGIN_SECONDS
