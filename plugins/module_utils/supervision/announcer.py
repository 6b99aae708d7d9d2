# SPDX-License-Identifier: Apache-2.0
"""Messages from a detached run's nodes, for the receivers of the site that want them from there.

The leader that decides something tells it, in a process of its own, so that no receiver delays the
run. A message is tried four times. It is lost where that node ends meanwhile, or where the leader
changes at that moment, so that none comes twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time

from ..attempts import supervisor_order as orders
from ..base.files import read_mapping
from ..base.sanitize import Secrets, printable
from ..notify import message as notify

TELL = "tell"  # the program's argument with which it sends one message
PAUSES = (2, 10, 30)  # seconds before each further try
MOST_SECONDS = 70.0  # of all tries
OUTCOMES = ("completed", "failed", "stopped", "lost")


class Announcer:
    """The processes that tell what this node has decided as the leader."""

    def __init__(self, place, order):
        """place: the supervisor's directory. order: the Order."""
        self.place, self.order, self.processes = place, order, []

    def tell(self, decisions, members):
        """Tell what follows from decisions of this node (Supervisor.take_decisions).

        members: the nodes of the newest attempt.
        """
        for value in decisions:
            for event in self._events_of(value, members):
                for channel in self.order.notify:
                    if event["event"] in channel["on"]:
                        self._send(channel, event)

    def is_idle(self):
        """Return whether no message is on its way, and print why others did not arrive."""
        left = []
        for channel, process in self.processes:
            if process.poll() is None:
                left.append((channel, process))
                continue
            problem = _problem_of(process)
            if problem:
                _print_problem(channel, problem)
        self.processes = left
        return not left

    def _events_of(self, value, members):
        """Yield the events of a decision."""
        if value["kind"] == "plan":
            kind = "started"
            if value["attempt"] > 1:
                kind = "restarted"
            yield self._event(kind, value["attempt"], members)
        if value["kind"] == "verdict":
            verdict = value["verdict"]
            text, code = str(verdict.get("text") or ""), str(verdict.get("cause") or "")
            if code == "hang":
                yield self._event("hung", value["attempt"], members, text, code)
            outcome = verdict.get("outcome")
            if outcome not in OUTCOMES:
                outcome = "unknown"
            yield self._event(outcome, value["attempt"], members, text, code)

    def _event(self, kind, attempt, members, text="", code=""):
        job = read_mapping(os.path.join(self.place, orders.JOB))
        return {
            "event": kind,
            "run": self.order.run,
            "attempt": attempt,
            "job": printable(str(job.get("name") or ""), limit=200),
            "site": self.order.site,
            "nodes": list(members or self.order.nodes),
            "code": printable(code, limit=100),
            "text": printable(text, limit=1000),
            "time": time.time(),
        }

    def _send(self, channel, event):
        """Start the process that sends an event. Addresses go by its standard input."""
        content = dict(notify.compose(channel, event, time.time()), pauses=PAUSES)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", os.path.join(self.place, orders.PROGRAM), TELL],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            process.stdin.write(json.dumps(content).encode())
            process.stdin.close()
        except OSError as error:  # no process or no memory is left: the run is kept all the same
            _print_problem(channel, str(error))
            return
        self.processes.append((channel, process))


def _problem_of(process):
    """Return why a message did not arrive, '' where it did. process: one that has ended."""
    with process.stdout:
        output = process.stdout.read()
    try:
        return str(json.loads(output)["problem"])
    except (KeyError, TypeError, ValueError):
        return f"the sender ended with exit code {process.returncode}"


def _print_problem(channel, problem):
    """Print why a receiver was not told, without the site's secrets that it may repeat."""
    values = tuple(value for value in (channel["url"], channel["secret"]) if value)
    text = printable(problem, *Secrets((), values), limit=300)
    with contextlib.suppress(OSError):  # a full disk
        print(f"trainyard_notify[{channel['index']}] was not told: {text}", flush=True)
