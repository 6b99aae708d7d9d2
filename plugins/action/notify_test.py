# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a test event to the receivers of a site. Documented in library/notify_test.py."""

from __future__ import annotations

import time

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.notify.message import Event
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import terminal
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base.yaml_source import Problem
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import notify_fields
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.monitor import notifier


class ActionModule(ControllerAction):
    """Tell every receiver, and wait for the answers."""

    def execute(self, arguments: Arguments) -> Result:
        """Send the event."""
        first = (self.group("trainers") or ["localhost"])[0]
        value = self.host_value(first, notify_fields.KEY)
        terminal.hide(notify_fields.secret_texts(value))
        problems: list[Problem] = []
        channels = notify_fields.read_channels(value, problems)
        if problems:
            text = "; ".join(str(problem) for problem in problems)
            self.fail(printable(text), code=problems[0].code, told=[], problems=[])
        if not channels:
            text = f"{notify_fields.KEY} of the site is empty; docs/runbooks/notify.md has examples"
            self.fail(text, code="notify.no_receiver", told=[], problems=[])
        event = _test_event(str(self.host_value(first, "trainyard_site", "site")))
        told, refused = [], []
        for channel in channels:
            teller = notifier.Notifier(channels, "")
            teller.send([channel], event)
            texts = teller.problems(wait=True)
            refused += texts
            if not texts:
                told.append(notifier.describe(channel))
        if refused:
            self.fail("; ".join(refused), code="notify.not_told", told=told, problems=refused)
        return {"changed": False, "told": told, "problems": []}


def _test_event(site: str) -> Event:
    """Return an event that names no run."""
    return {
        "event": "test",
        "run": "none",
        "attempt": 0,
        "job": "test",
        "site": printable(site, limit=128),
        "nodes": [],
        "code": "",
        "text": "Trainyard can tell you about its runs",
        "time": time.time(),
    }
