# SPDX-License-Identifier: Apache-2.0
"""The exit codes of the command `trainyard`, listed in docs/runbooks/command.md."""

from __future__ import annotations

import enum
from typing import Any


class Exit(enum.IntEnum):
    """How a command ended."""

    COMPLETED = 0  # the verb has done its work; a training has completed
    ERROR = 1  # neither a verdict nor a refusal: read the output
    USAGE = 2  # the command line was not understood; click's own code
    FAILED = 10
    STOPPED = 11
    LOST = 12
    UNKNOWN = 13  # the attempt has ended and nobody can say how
    REFUSED = 20  # nothing was started: bad input, or a node is not ready
    DETACHED = 130  # Ctrl-C: the run goes on


# The outcome of a verdict (docs/run-json.md) and the code that it ends with.
OF_OUTCOME = {
    "completed": Exit.COMPLETED,
    "failed": Exit.FAILED,
    "stopped": Exit.STOPPED,
    "lost": Exit.LOST,
    "unknown": Exit.UNKNOWN,
}


def exit_code(playbook_code: int, result: dict[str, Any]) -> Exit:
    """Return the exit code for what a playbook has returned and reported.

    playbook_code: the exit code of ansible-playbook. result: what the callback
    plugins/callback/result.py has written, {} if it has written nothing.
    """
    verdict = result.get("verdict") or {}
    if verdict:
        code = OF_OUTCOME.get(str(verdict.get("outcome")), Exit.UNKNOWN)
        # A log that could not be copied fails the verb after a training that has completed.
        if code is Exit.COMPLETED and playbook_code:
            return Exit.ERROR
        return code
    if result.get("detached") == "first_step":
        return Exit.COMPLETED
    if result.get("detached") == "interrupted":
        return Exit.DETACHED
    if playbook_code == 0:
        return Exit.COMPLETED
    if result.get("problems") or result.get("unreachable"):
        return Exit.REFUSED
    return Exit.ERROR
