# SPDX-License-Identifier: Apache-2.0
"""One node's part of a network check, by one program.

It travels to the node over standard input (agent/stdin_boot.py). A module for each state of the
check would begin a Python and compile its sources each time. Standard input goes on with lines of
JSON: first the arguments of library/network_check.py that are the same for all states, then for
each state {state} with its own arguments. The answer is one line, as the module has it.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from ..base.commands import run_program, user_environment
from ..base.interpreter import InterpreterError
from ..base.sanitize import printable
from . import node_check

# Not a state of the module: a question without work, whose answer says that the program runs.
READY = "ready"
# A program of systemd may wait for the listener's start.
COMMAND_SECONDS = 2 * node_check.START_SECONDS
# Without a question for so long, the controller is gone. The other nodes' turns count.
IDLE_SECONDS = 1200


def answer(runtime, arguments):
    """Return the answer of one state. runtime: the user's runtime directory. arguments: all."""
    if arguments["state"] == READY:
        return {}
    try:
        return node_check.STATES[arguments["state"]](_run_command, runtime, arguments)
    except (node_check.ProofError, InterpreterError, OSError, ValueError) as error:
        text = printable(str(error) or type(error).__name__, newlines=True)
        return {"failed": True, "msg": text}


def _run_command(argv):
    """Run a program as AnsibleModule.run_command does."""
    code, out, err = run_program(argv, COMMAND_SECONDS)
    if code is None:
        return 1, out, err or f"{argv[0]} did not end within {COMMAND_SECONDS} s"
    return code, out, err


def _read_line():
    """Return the next line of standard input. SIGALRM ends the program where none comes."""
    signal.alarm(IDLE_SECONDS)
    line = sys.stdin.buffer.readline()
    signal.alarm(0)
    return line


def main(_arguments):
    """Answer until standard input is closed. A reader that has gone ends it in silence."""
    shared = json.loads(_read_line().decode("utf-8"))
    environment = user_environment(os.getuid())
    os.environ.update(environment)
    try:
        for line in iter(_read_line, b""):
            arguments = {**shared, **json.loads(line)}
            sys.stdout.write(json.dumps(answer(environment["XDG_RUNTIME_DIR"], arguments)) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        # Nothing is flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
