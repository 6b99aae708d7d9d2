# SPDX-License-Identifier: GPL-3.0-or-later
"""The terminal while a run is prepared, followed and ended: Ansible's own output, plus a live view and the verdict as the last line."""

from __future__ import annotations

DOCUMENTATION = r"""
name: trainyard
type: stdout
short_description: Ansible's default output with a live view of the training
description:
  - While an attempt is followed, shows one line for the run and one for each node; redrawn in place on a terminal, plain lines in a pipe.
  - After the recap it prints the run's summary; the last line is the verdict.
  - Ctrl-C leaves the run alone and prints how to come back to it and how to stop it.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
options:
  live:
    description: Redraw in place on a terminal; off means plain lines everywhere.
    type: bool
    default: true
    env:
      - name: TRAINYARD_LIVE
"""

import atexit
import importlib
import os
import shlex
import shutil
import sys
import time

import ansible.module_utils
from ansible import constants as C
from ansible import context
from ansible.plugins.callback.default import CallbackModule as Default

# ansible.cfg's module_utils is for modules; a plugin has to find the product's package by itself.
_CORE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "module_utils")
if _CORE not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_CORE)
live = importlib.import_module("ansible.module_utils.trainyard.live")
printable = importlib.import_module("ansible.module_utils.trainyard.display").printable
plain = importlib.import_module("ansible.module_utils.trainyard.plain").plain

QUIET_SECONDS = 30
# Modules whose arguments or results hold the plan, and in it the site's and the job's environment: -v and -vvv must not print a secret of it.
HOLD_SECRETS = ("attempt", "job_inputs", "plan", "proof", "read_job", "run_record")


class CallbackModule(Default):
    """Ansible's default callback, with three more things to say."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "trainyard"

    def __init__(self):
        super().__init__()
        self._statuses, self._said, self._drawn, self._summary = {}, {}, 0, []
        self._pid, self._following, self._headed = os.getpid(), None, set()
        atexit.register(self._detached)

    # --- live view

    def _in_place(self):
        return sys.stdout.isatty() and self._display.verbosity == 0 and self.get_option("live")

    def _show(self, status):
        name = status.get("node", "?")
        self._statuses[name] = status
        if status.get("found"):
            self._following = status["run"] if any(not s["ended"] for s in self._statuses.values()) else None
        if self._in_place():
            self._redraw()
        else:
            self._plain_line(name, status)

    def _redraw(self):
        width = max(40, shutil.get_terminal_size((100, 24)).columns - 1)
        order = next((s["nodes"] for s in self._statuses.values() if s.get("found")), sorted(self._statuses))
        statuses = [self._statuses[name] for name in order if name in self._statuses]
        lines = [live.head_line(statuses, width)] + [live.node_line(status, width) for status in statuses]
        up = "\x1b[%dA" % self._drawn if self._drawn else ""
        sys.stdout.write(up + "".join("\x1b[2K%s\n" % printable(line)[:width] for line in lines))
        sys.stdout.flush()
        self._drawn = len(lines)

    def _plain_line(self, name, status):
        if status.get("found") and status["run"] not in self._headed:
            self._headed.add(status["run"])
            self._display.display(printable("run %s, job %s, %d nodes" % (status["run"], status["job"], len(status["nodes"]))))
        key, now = live.change_key(status), time.monotonic()
        before, when = self._said.get(name, (None, 0.0))
        if key != before or now - when >= QUIET_SECONDS:
            self._said[name] = (key, now)
            self._display.display(printable(live.node_line(status, 200)))

    def _status_of(self, result):
        found = plain(result.result.get("status")) if result.task.action.split(".")[-1] == "attempt_status" else None
        return found if isinstance(found, dict) else None

    def v2_runner_retry(self, result):
        status = self._status_of(result)
        if status:
            self._show(status)
        else:
            super().v2_runner_retry(result)

    def v2_runner_on_ok(self, result):
        status = self._status_of(result)
        if status:
            self._show(dict({"node": result.host.get_name()}, **status))
            return
        if result.result.get("summary") and "verdict" in result.result:
            self._summary = [printable(line) for line in plain(result.result["summary"])]
            self._following = None
        if self._following in (result.result.get("stopped") or ()):
            self._following = None  # stop.yml has just ended it
        self._keep_table(result)
        self._spare_secrets(result)
        super().v2_runner_on_ok(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._keep_table(result)
        self._spare_secrets(result)
        super().v2_runner_on_failed(result, ignore_errors)

    def _spare_secrets(self, result):
        if result.task.action.split(".")[-1] in HOLD_SECRETS:
            result.result["_ansible_verbose_override"] = True
            result.result.pop("invocation", None)

    def _keep_table(self, result):
        """What check.yml has found is said once more at the very end, as it stands in the table."""
        if result.task.action.split(".")[-1] == "check_report" and isinstance(result.result.get("lines"), list):
            self._summary = [printable(line) for line in plain(result.result.pop("lines"))]

    def _task_start(self, task, prefix=None):
        self._drawn = 0  # what was drawn has scrolled away; never draw over other output
        super()._task_start(task, prefix=prefix)

    # --- the end

    def v2_playbook_on_no_hosts_matched(self):
        """A play without hosts is a step that is not needed; Ansible's 'skipping: no hosts matched' would only worry."""

    def v2_playbook_on_stats(self, stats):
        super().v2_playbook_on_stats(stats)
        for line in self._summary:
            self._display.display(line)

    def _detached(self):
        """After Ctrl-C (or any other end of this process) with the run still going: say how to come back."""
        if os.getpid() != self._pid or not self._following:
            return
        run = self._following
        given = [
            source for source in context.CLIARGS.get("inventory") or () if source not in [os.path.abspath(p) for p in C.DEFAULT_HOST_LIST]
        ]
        site = "".join("-i %s " % shlex.quote(source) for source in given)
        text = (
            "\nThe run %s goes on without this terminal."
            "\n  follow it again:  ansible-playbook %splaybooks/follow.yml -e run=%s"
            "\n  how it stands:    ansible-playbook %splaybooks/status.yml -e run=%s"
            "\n  stop it:          ansible-playbook %splaybooks/stop.yml -e run=%s\n"
        )
        sys.stdout.write(text % (run, site, run, site, run, site, run))
        sys.stdout.flush()
