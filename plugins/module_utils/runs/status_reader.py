# SPDX-License-Identifier: Apache-2.0
"""Looks at an attempt on this node, one for each line of standard input.

It travels to the node over standard input (agent/stdin_boot.py). A look by a module begins a
Python and compiles its sources each time, which takes 0.3 s of the training's processors. Standard
input goes on with lines of JSON: first {base, run_id, number, node}, then for each look the seconds
for which the end may be waited for. The answer is one line: {status}, as library/attempt_monitor.py
has it, or {problem}. For a line "logs" it is {logs}, as library/rank_logs_info.py has them.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from ..agent import heartbeat, priority
from ..attempts import attempt_dir, evidence, status, supervisor_installation
from ..base.commands import run_program, user_environment

# A program of systemd answers within these. The controller waits longer (LOOK_SECONDS there).
COMMAND_SECONDS = 5
# The question for what the ranks logged, instead of a number.
LOGS = "logs"
# Of all logs together. A second is enough for them, so the verdict waits no longer.
MOST_LOG_BYTES = 50_000_000
# Without a question for so long, the controller is gone.
IDLE_SECONDS = 600


class Units:
    """The states of units that are looked at again and again.

    systemd is asked anew when a unit's process has gone and while the unit is being stopped, since
    such a question costs more than all else of a look.
    """

    def __init__(self, base):
        self._base, self._units = base, {}

    def state(self, _run_command, name):
        """Return the ActiveState of a unit, as status.read_unit_state. Raises OSError."""
        unit = self._units.setdefault(name, heartbeat.Unit(name, COMMAND_SECONDS))
        attempt = attempt_dir.attempt_dir(self._base, *attempt_dir.parse_unit(name))
        if os.path.exists(os.path.join(attempt, "stop.json")):
            unit.main = None
        state = unit.state()
        if state == "unknown":
            raise OSError(f"systemd says nothing of {name}")
        return state


def look(run_command, base, run_id, number, node, wait=0.0, unit_state=status.read_unit_state):
    """Return the status of an attempt on this node.

    base: below the user's home. wait: seconds for which the end of a named attempt is waited for.
    unit_state: see status.read_status. Raises AttemptError, OSError.
    """
    home = os.path.expanduser("~")
    base = os.path.join(home, base)
    if wait > 0 and run_id and number:
        found = status.await_end(run_command, base, run_id, number, node, wait, unit_state)
    else:
        found = status.read_status(run_command, base, run_id, number, node, unit_state)
    if found["found"]:
        found["supervised"] = supervisor_installation.describe(home, base, found["run"], node)
    return found


def run_command(argv):
    """Run a program and return (0, stdout, stderr).

    Raises OSError for one that failed: what it did not say must not count as an ended attempt.
    """
    code, out, err = run_program(argv, COMMAND_SECONDS)
    if code != 0:
        raise OSError(f"{argv[0]} gave no answer: exit code {code}, {err.strip()[:200]}")
    return code, out, err


def answer(asked, question, units):
    """Return the answer to one line.

    asked: the first line's mapping. question: LOGS, or the seconds for which the end may be waited
    for. units: see Units.
    """
    which = (asked["base"], asked["run_id"], asked["number"], asked["node"])
    try:
        if question == LOGS:
            return {"logs": read_logs(*which)}
        return {"status": look(run_command, *which, float(question), units.state)}
    except (attempt_dir.AttemptError, evidence.EvidenceError, evidence.TooLong, OSError) as error:
        return {"problem": str(error)}


def read_logs(base, run_id, number, node):
    """Return the evidence of an attempt on this node. Raises EvidenceError, TooLong, OSError."""
    place = attempt_dir.attempt_dir(os.path.join(os.path.expanduser("~"), base), run_id, number)
    return evidence.collect(place, node, most=MOST_LOG_BYTES)


def _read_question():
    """Return the next line of standard input. SIGALRM ends the program where none comes."""
    signal.alarm(IDLE_SECONDS)
    line = sys.stdin.buffer.readline()
    signal.alarm(0)
    return line


def main(_arguments):
    """Answer until standard input is closed. A reader that has gone ends it in silence."""
    priority.lower()
    asked = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    os.environ.update(user_environment(os.getuid()))
    units = Units(os.path.join(os.path.expanduser("~"), asked["base"]))
    try:
        for line in iter(_read_question, b""):
            sys.stdout.write(json.dumps(answer(asked, json.loads(line), units)) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        # Nothing is flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
