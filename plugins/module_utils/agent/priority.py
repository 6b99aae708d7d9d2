# SPDX-License-Identifier: Apache-2.0
"""Priority of a program beside a training: it has the processors last."""

from __future__ import annotations

import contextlib
import os
import time

LOWEST = 19
# A kernel that groups processes by their sessions (sched_autogroup_enabled, sched(7)) divides the
# processors between the groups. There a process's own niceness counts only within its session.
GROUP = "/proc/self/autogroup"
# The kernel permits one such change of all users in 0.1 s, and refuses the others.
TRIES = 20


def lower():
    """Give this process, as a session of its own, and its children the lowest priority."""
    with contextlib.suppress(PermissionError):  # it leads a group of processes already
        os.setsid()
    os.nice(LOWEST)
    for _try in range(TRIES):
        try:
            with open(GROUP, "w", encoding="ascii") as handle:
                handle.write(str(LOWEST))
            return
        except BlockingIOError:
            time.sleep(0.11)
        except OSError:
            return
