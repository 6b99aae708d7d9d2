# SPDX-License-Identifier: Apache-2.0
"""Metrics and notifications of the run that a command follows."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import guard_findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.notify.message import (
    Channel,
    Event,
)

from ..config.notify_fields import EVENTS
from ..live.model import KEEP, Watch
from . import live_metrics
from .notifier import VERDICT_SECONDS, Notifier

# A command that comes to an older attempt does not tell of its start.
NEW_SECONDS = 300
# Outcomes that the nodes of a detached run may be too few to decide on.
NO_MAJORITY = ("lost", "unknown")


class Follower:
    """What the callback knows of the followed run.

    site: {name, runs_dir, metrics_dir, channels}.
    """

    def __init__(self, name: str, runs_dir: str, metrics_dir: str, channels: list[Channel]) -> None:
        self._site = name
        self.watch = Watch()
        self.notifier = Notifier(channels, runs_dir)
        self._metrics = live_metrics.RunMetrics(runs_dir, metrics_dir, name, follows=True)
        self._told: set[tuple[str, int, str]] = set()
        self._written = 0.0

    def add(self, name: str, status: Mapping[str, Any]) -> None:
        """Take a node's answer. Raises OSError where the metrics cannot be written."""
        status = plain({key: value for key, value in status.items() if key in KEEP})
        seconds, now = time.monotonic(), time.time()
        if not self.watch.add(name, status, seconds, now) or not status.get("found"):
            return
        self._tell_start(status)
        if live_metrics.is_hung(self.watch):
            self._tell_hang()
        if seconds - self._written >= live_metrics.WRITE_SECONDS:
            self._written = seconds
            self._metrics.write(self.watch, seconds, now)

    def lose(self, name: str) -> None:
        """Note that a node was not reachable."""
        self.watch.lose(name)

    def end(self, record: Mapping[str, Any]) -> None:
        """Tell the verdict on an attempt, and wait for it to arrive.

        record: the result of run_record.
        """
        verdict = record["verdict"]
        outcome = str(verdict.get("outcome"))
        if outcome not in EVENTS:
            outcome = "unknown"
        self._tell(
            outcome,
            str(record["run"]),
            int(record["attempt"]),
            str(verdict.get("text") or ""),
            str(verdict.get("cause") or ""),
        )
        self.notifier.settle(VERDICT_SECONDS)

    def _tell_start(self, status: Mapping[str, Any]) -> None:
        if status["ended"] or status["now"] - status["started"] > NEW_SECONDS:
            return
        event = "started"
        if status["attempt"] > 1:
            event = "restarted"
        self._tell(event, status["run"], status["attempt"])

    def _tell_hang(self) -> None:
        answers = {status["node"]: status for status in self.watch.known() if status.get("guard")}
        stall = guard_findings.first_stall(answers)
        if stall and self.watch.run:
            self._tell("hung", *self.watch.run, guard_findings.describe_hang(*stall), "hang")

    def _tell(self, event: str, run: str, attempt: int, text: str = "", code: str = "") -> None:
        if (run, attempt, event) in self._told:
            return
        self._told.add((run, attempt, event))
        known = self.watch.known()
        job, nodes = "", []
        if known:
            job, nodes = str(known[0].get("job")), list(known[0].get("nodes") or [])
        message: Event = {
            "event": event,
            "run": run,
            "attempt": attempt,
            "job": printable(job, *self.watch.secrets, limit=200),
            "site": self._site,
            "nodes": printable_data(nodes, *self.watch.secrets, limit=200),
            "code": printable(code, limit=100),
            "text": printable(text, *self.watch.secrets, limit=1000),
            "time": time.time(),
        }
        self.notifier.tell(message, from_nodes=event not in NO_MAJORITY and _do_nodes_tell(known))


def _do_nodes_tell(statuses: Collection[Mapping[str, Any]]) -> bool:
    """Return whether a run's nodes tell its events themselves, as all that answered say."""
    return bool(statuses) and all(status.get("supervised") for status in statuses)
