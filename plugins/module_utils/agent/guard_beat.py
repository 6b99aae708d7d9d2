# SPDX-License-Identifier: Apache-2.0
"""Say every two seconds how an attempt stands on this node, as one JSON line: what a node's
neighbour listens to.

The gate runs it for the neighbour's guard, which keeps the connection; it is complete in itself,
needs Python >= 3.8 and writes nothing.

    guard_beat.py ATTEMPT UNIT        {"state", "holds", "ended": null or {"ok", "by", "reason"}}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

SECONDS = 2.0
# How long it goes on after the attempt's end; nobody listens much longer.
AFTER = 60.0
ACTIVE = ("active", "activating", "deactivating", "reloading")


def load(attempt, name):
    """Return the mapping in a JSON file of the attempt's directory; {} where there is none."""
    try:
        with open(os.path.join(attempt, name), encoding="utf-8", errors="replace") as handle:
            found = json.load(handle)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def launcher_code(attempt):
    """Return the launcher's exit code, None where it has not ended by itself."""
    try:
        with open(
            os.path.join(attempt, "ranks.jsonl"), encoding="utf-8", errors="replace"
        ) as handle:
            lines = handle.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if '"launcher_end"' in line:
            try:
                return json.loads(line).get("exit_code")
            except (ValueError, RecursionError):
                return None
    return None


class Unit:
    """The attempt's unit. systemd is asked once and when its process has gone: it costs ten times
    as much as a look at /proc.
    """

    def __init__(self, name):
        self.name, self.main, self.said = name, None, "inactive"

    @staticmethod
    def born(pid):
        """Return when a process was started, None where it is gone or a zombie."""
        try:
            with open("/proc/%d/stat" % pid, "rb") as handle:
                fields = handle.read().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if fields[0] in (b"Z", b"X") else fields[19]

    def state(self):
        """Return systemd's ActiveState; `unknown` where the user's manager does not answer."""
        if self.main and self.born(self.main[0]) == self.main[1]:
            return self.said
        argv = [
            "systemctl",
            "--user",
            "show",
            "--property=ActiveState",
            "--property=MainPID",
            self.name,
        ]
        environment = dict(os.environ, XDG_RUNTIME_DIR="/run/user/%d" % os.getuid(), LC_ALL="C")
        try:
            done = subprocess.run(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=20,
            )
        except (OSError, subprocess.TimeoutExpired):
            return "unknown"
        told = dict(
            line.split("=", 1)
            for line in done.stdout.decode("utf-8", "replace").splitlines()
            if "=" in line
        )
        pid = int(told.get("MainPID") or 0)
        self.said = told.get("ActiveState") or "unknown"
        self.main = (pid, self.born(pid)) if pid and self.said == "active" else None
        return self.said


def look(attempt, unit):
    """Return how the attempt stands: {state, holds (its unit is there, or nobody can tell), ended}."""
    state, ended = unit.state(), None
    if state not in ACTIVE and state != "unknown":
        found, stop = load(attempt, "exit.json"), load(attempt, "stop.json")
        if found or stop:
            ok = (
                found.get("service_result") == "success"
                and not found.get("stopped_by")
                and launcher_code(attempt) == 0
            )
            ended = {"ok": ok, "by": stop.get("by"), "reason": stop.get("reason")}
    return {"state": state, "holds": state in ACTIVE or state == "unknown", "ended": ended}


def main(attempt, name):
    """Print a line every SECONDS until nobody listens or the attempt has been over for AFTER
    seconds.
    """
    unit, over = Unit(name), None
    while over is None or time.monotonic() - over < AFTER:
        found = look(attempt, unit)
        print(json.dumps(found), flush=True)
        over = over or (time.monotonic() if found["ended"] else None)
        time.sleep(SECONDS)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2])
    except BrokenPipeError:
        os._exit(0)
