# SPDX-License-Identifier: Apache-2.0
"""Heartbeat of an attempt on this node: a JSON line every two seconds.

The gate runs it for the guard of the neighbour, which keeps the connection. A line is
{"state", "holds", "ended": null or {"ok", "by", "reason"}}.
"""

from __future__ import annotations

import json
import os
import subprocess
import time

from . import systemd
from .attempt_files import read_mapping
from .rank_watch import stat_fields

SECONDS = 2.0
# Seconds for which it goes on after the attempt's end. The neighbour does not listen much longer.
AFTER = 60.0
ACTIVE = ("active", "activating", "deactivating", "reloading")


def launcher_code(attempt):
    """Return the launcher's exit code, None before its end."""
    path = os.path.join(attempt, "ranks.jsonl")
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            lines = handle.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if '"launcher_end"' in line:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                return None
            # A training can write the file, so a line may be any JSON.
            if isinstance(event, dict):
                return event.get("exit_code")
            return None
    return None


class Unit:
    """The attempt's unit and its latest state.

    systemd is called at first, for so many seconds, and again when the unit's process has gone: a
    look at /proc costs a tenth.
    """

    def __init__(self, name, seconds=20):
        self.name, self.seconds, self.main, self.active_state = name, seconds, None, "inactive"

    @staticmethod
    def start_time(pid):
        """Return a process's start time, None where it is gone or a zombie."""
        fields = stat_fields(pid)
        if not fields or fields[0] in (b"Z", b"X"):
            return None
        return fields[19]

    def state(self):
        """Return its ActiveState, `unknown` where systemd does not answer."""
        if self.main and self.start_time(self.main[0]) == self.main[1]:
            return self.active_state
        self.main = None
        argv = [
            "systemctl",
            "--user",
            "show",
            "--property=ActiveState",
            "--property=MainPID",
            self.name,
        ]
        environment = systemd.manager_environment(LC_ALL="C")
        try:
            done = subprocess.run(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=self.seconds,
            )
        except (OSError, subprocess.TimeoutExpired):
            return "unknown"
        properties = dict(
            line.split("=", 1)
            for line in done.stdout.decode("utf-8", "replace").splitlines()
            if "=" in line
        )
        pid = int(properties.get("MainPID") or 0)
        self.active_state = properties.get("ActiveState") or "unknown"
        started = pid and self.start_time(pid)
        if started and self.active_state == "active":
            self.main = (pid, started)
        return self.active_state


def may_run(state):
    """Return whether a unit in this state may have processes."""
    return state in ACTIVE or state == "unknown"


def look(attempt, unit):
    """Return the attempt's state as {state, holds, ended}.

    holds: its unit is there, or the state is not known. ended: {ok, by, reason} or None.
    """
    state = unit.state()
    if may_run(state):
        return {"state": state, "holds": True, "ended": None}
    ended = None
    ending, stop = (read_mapping(attempt, name) for name in ("exit.json", "stop.json"))
    if ending or stop:
        ok = (
            ending.get("service_result") == "success"
            and not ending.get("stopped_by")
            and launcher_code(attempt) == 0
        )
        ended = {"ok": ok, "by": stop.get("by"), "reason": stop.get("reason")}
    return {"state": state, "holds": False, "ended": ended}


def main(attempt, name):
    """Print a line every SECONDS until the attempt has been over for AFTER seconds.

    A reader that has gone ends it as well (BrokenPipeError).
    """
    unit, ended_at = Unit(name), None
    while ended_at is None or time.monotonic() - ended_at < AFTER:
        beat = look(attempt, unit)
        print(json.dumps(beat), flush=True)
        if beat["ended"] and ended_at is None:
            ended_at = time.monotonic()
        time.sleep(SECONDS)
