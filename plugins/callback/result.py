# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of a playbook as JSON, for programs."""

from __future__ import annotations

DOCUMENTATION = r"""
name: result
type: aggregate
short_description: Writes how a run ended, or why nothing was started, as JSON
description:
  - Writes one JSON object to the file that C(TRAINYARD_RESULT) names. It does so at the end of the
    playbook, and when the playbook is interrupted. Without the variable it writes nothing.
  - The command C(trainyard) reads it for its exit code and for C(--json).
  - With C(TRAINYARD_DETACH=1) it leaves a training alone after its first step, as Ctrl-C does.
  - The fields are in docs/runbooks/command.md.
options:
  path:
    description: File to write. Its directory must exist.
    type: path
    env:
      - name: TRAINYARD_RESULT
  detach:
    description: Leave the run alone as soon as a rank has printed a step.
    type: bool
    default: false
    env:
      - name: TRAINYARD_DETACH
requirements: [enabled in ansible.cfg with callbacks_enabled]
"""

import os

from ansible.plugins.callback import CallbackBase
from ansible_collections.trainyard.cluster.plugins.module_utils.base import files
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import interruption
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import (
    result_model,
    this_command,
)


class CallbackModule(CallbackBase):
    """Collect what a program wants to know of the tasks' results, and write it at the end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "trainyard.cluster.result"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._result, self._pid = result_model.PlaybookResult(), os.getpid()
        interruption.at_end(self._interrupted)

    def v2_runner_on_ok(self, result):
        self._result.add(*self._of(result))

    def v2_runner_retry(self, result):
        module, host, data = self._of(result)
        self._result.add(module, host, data)
        if module == "attempt_monitor" and self.get_option("detach") and self._result.has_step():
            self._result.detached = "first_step"
            # The same way as Ctrl-C: the live view prints how to come back.
            interruption.interrupt()

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not ignore_errors:
            self._result.add_failure(*self._of(result))

    def v2_runner_on_unreachable(self, result):
        self._result.unreachable.add(result.host.get_name())

    @staticmethod
    def _of(result):
        """Return (module, host, data) of a task's result."""
        module = result.task.action.split(".")[-1]
        return module, result.host.get_name(), plain(dict(result.result))

    def v2_playbook_on_stats(self, stats):
        self._result.ended = True
        self._write()

    def _interrupted(self):
        """Write what is known when this process ends before the playbook's end."""
        if os.getpid() == self._pid and not self._result.ended:
            self._result.detached = self._result.detached or "interrupted"
            self._write()

    def _write(self):
        path = self.get_option("path")
        if path:
            files.write_json(path, self._result.as_json(this_command.command_line()))
