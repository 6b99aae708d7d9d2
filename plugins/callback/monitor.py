# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics and notifications while a run is followed."""

from __future__ import annotations

DOCUMENTATION = r"""
name: monitor
type: aggregate
short_description: Writes metrics and sends notifications while a run is followed
description:
  - Writes a run's metrics every few seconds (docs/runbooks/metrics.md), into the run's directory
    and into C(trainyard_metrics_dir).
  - Tells the receivers of C(trainyard_notify) when a run starts, hangs or ends
    (docs/runbooks/notify.md).
  - Nothing that goes wrong here ends or delays a run. It is a warning, once.
requirements: [enabled in ansible.cfg with callbacks_enabled]
"""

import os

from ansible.plugins.callback import CallbackBase
from ansible.template import Templar
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base import sanitize
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import terminal
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base.project import project_dir

_VARIABLES = ("trainyard_site", "trainyard_runs_dir", "trainyard_metrics_dir", "trainyard_notify")


class CallbackModule(CallbackBase):
    """Callback that passes the answers about a followed run on."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "trainyard.cluster.monitor"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._play, self._follower, self._warned = None, None, set()
        self._secrets = sanitize.Secrets((), ())

    def v2_playbook_on_play_start(self, play):
        self._play = play

    def v2_runner_retry(self, result):
        self._attempt(self._see, result)

    def v2_runner_on_ok(self, result):
        self._attempt(self._see, result)

    def v2_runner_on_unreachable(self, result):
        if self._follower and result.task.action.split(".")[-1] == "attempt_monitor":
            self._follower.lose(result.host.get_name())

    def v2_playbook_on_task_start(self, task, is_conditional):
        if self._follower:
            self._attempt(self._warn_of_notifications, False)

    def v2_playbook_on_stats(self, stats):
        if self._follower:
            self._attempt(self._warn_of_notifications, True)

    def _attempt(self, function, argument):
        """Call a function, and turn all that goes wrong into a warning."""
        try:
            function(argument)
        except OSError as error:
            self._warn("files", f"the metrics of this run are not written for now: {error}")
        except Exception as error:  # no fault of a message or a figure may end the follow
            self._warn("other", f"metrics or notifications: {type(error).__name__}: {error}")

    def _see(self, result):
        """Pass an answer on, if it is about a run that is followed."""
        module = result.task.action.split(".")[-1]
        if module == "plan" and isinstance(result.result.get("plan"), dict):
            self._secrets = sanitize.secrets_of(plain(result.result["plan"]))
        elif module == "attempt_monitor" and result.task.args.get("gang"):
            status = result.result.get("status")
            if isinstance(status, dict) and not status.get("undone"):
                self._open()
                self._follower.add(result.host.get_name(), status)
                self._warn_of_notifications(False)
        elif module == "run_record" and self._follower:
            record = plain(dict(result.result))
            if "verdict" in record and RUN_ID.match(str(record.get("run"))):
                self._follower.end(record)
                self._warn_of_notifications(False)

    def _open(self):
        """Read the site's settings at the first answer about a run."""
        if self._follower is None:
            # The way to a start needs none of these, and prometheus_client takes its time.
            from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import (
                notify_fields,
            )
            from ansible_collections.trainyard.cluster.plugins.plugin_utils.monitor import follower

            settings = self._read_site()
            runs_dir = os.path.expanduser(settings["trainyard_runs_dir"] or "runs")
            terminal.hide(notify_fields.secret_texts(settings["trainyard_notify"]))
            problems = []
            channels = notify_fields.read_channels(settings["trainyard_notify"], problems)
            self._follower = follower.Follower(
                str(settings["trainyard_site"] or "site"),
                os.path.join(project_dir(), runs_dir),
                os.path.expanduser(settings["trainyard_metrics_dir"] or ""),
                channels,
            )
            for problem in problems:
                self._warn(str(problem), f"nobody is told: {problem}")
        self._follower.watch.secrets = self._secrets

    def _read_site(self):
        """Return the site's variables, from a node's, since localhost may lack them."""
        manager = self._play.get_variable_manager()
        inventory = manager._inventory
        hosts = inventory.get_hosts("trainers") or inventory.get_hosts("localhost")
        variables = manager.get_vars(play=self._play, host=hosts[0])
        templar = Templar(loader=manager._loader, variables=variables)
        values = {
            name: plain(templar.template(variables[name]))
            for name in _VARIABLES
            if name in variables
        }
        return {name: values.get(name) for name in _VARIABLES}

    def _warn_of_notifications(self, wait):
        for text in self._follower.notifier.problems(wait):
            self._warn(text, text)

    def _warn(self, kind, text):
        if kind not in self._warned:
            self._warned.add(kind)
            self._display.warning(terminal.clean(text))
