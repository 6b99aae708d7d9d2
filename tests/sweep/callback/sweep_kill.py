# SPDX-License-Identifier: GPL-3.0-or-later
"""Kill the own ansible-playbook with SIGKILL when its n-th task starts, or some time after; for
tests/sweep/sweep.py and nothing else.

SWEEP_AT: n, from 1; without it nothing is killed. SWEEP_AFTER: seconds after the task's start.
SWEEP_LOG: a file that gets a line a task.
"""

from __future__ import annotations

import os
import signal
import threading

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: sweep_kill
type: aggregate
short_description: kills its own ansible-playbook at a task, for a test
description: See tests/sweep/sweep.py.
requirements: []
"""


class CallbackModule(CallbackBase):
    """Counts the tasks of all plays in the order in which they start."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "sweep_kill"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self.number = 0

    def v2_playbook_on_task_start(self, task, is_conditional):
        self.number += 1
        if os.environ.get("SWEEP_LOG"):
            with open(os.environ["SWEEP_LOG"], "a", encoding="utf-8") as handle:
                handle.write("%d\t%s\n" % (self.number, task.get_name().strip()))
        if self.number == int(os.environ.get("SWEEP_AT") or 0):
            seconds = float(os.environ.get("SWEEP_AFTER") or 0)
            if not seconds:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
