# SPDX-License-Identifier: GPL-3.0-or-later
"""Write down on which hosts each play of a command executes which action, so that a test can
compare two commands.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: lying_witness
type: notification
short_description: Writes down which host executes what
description: One JSON list a task and host, [play, host, action, host that it is delegated to], in $LYING/plays.
requirements: [enabled by the tests of the lying node]
"""

import json
import os

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    """Append what every host executes."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "lying_witness"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._play = ""

    def v2_playbook_on_play_start(self, play):
        self._play = play.get_name()

    def v2_runner_on_start(self, host, task):
        with open(os.path.join(os.environ["LYING"], "plays"), "a", encoding="utf-8") as handle:
            handle.write(
                json.dumps([str(self._play), host.get_name(), task.action, str(task.delegate_to)])
                + "\n"
            )
