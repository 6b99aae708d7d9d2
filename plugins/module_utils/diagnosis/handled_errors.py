# SPDX-License-Identifier: Apache-2.0
"""The errors in a rank's log that it handled, as the rank's end shows it.

The scanner knows the log alone (logs/root_error.py). Here the exit code, the signal and the other
ranks are compared with it.
"""

from __future__ import annotations

import re

from ..logs.error_patterns import PREFIX, RECORD

LAST_WORDS = 2  # lines of a log after a handled error that can still be of the end that it made
_DETAIL = re.compile(r"\s|\[|E[A-Z0-9]\d{4}: ")
# They end a process whose main thread still runs. An uncaught exception has ended it by then.
_ENDS_THE_LIVING = frozenset(("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP"))


def _set_own_apart(rank):
    """Return a rank whose `first_error` ended it or may have ended it.

    An error that it handled is no evidence about its end, and moves to `handled`.
    """
    error = rank.get("first_error")
    if not error or error.get("thread") or not (_is_passing(rank) or _is_contradicted(rank)):
        return dict(rank, handled=None)
    return dict(rank, first_error=None, handled=error)


def _is_passing(rank):
    """Return whether a rank handled its error and did not give up at once after it."""
    error = rank["first_error"]
    if not (error.get("handled") or error.get("survived")):
        return False
    return rank.get("exit_code") != 1 or not ends_log(rank, error)


def ends_log(rank, error):
    """Return whether the last lines of a log are an error's own, or details of its message."""
    last = PREFIX.sub("", str(rank.get("last_line") or error["kind"])).strip()
    if is_near_end(rank, error) and (last.startswith(error["kind"]) or last in error["text"]):
        return True
    details = _details(error)
    return len(details) >= (rank.get("lines") or 0) - (error.get("line") or 0) > 0


def _details(error):
    """Return the lines below an error that only a library prints to explain it.

    They are indented, or begin with a bracket or a code of CANN. A record of a logger is not one
    of them.
    """
    below = list(error.get("context") or ())
    while below and not below.pop(0).startswith(error["kind"]):
        pass
    details = []
    for line in below:
        if not _DETAIL.match(line) or RECORD.match(line):
            break
        details.append(line)
    return details


def _is_contradicted(rank):
    """Return whether a rank's end shows that an exception in its log did not end it.

    An uncaught exception ends with 1, and what a signal ended had gone on until then. Where no end
    was seen, the exception has to be the last thing in the log, and its node not restarted.
    """
    error, code, signal = rank["first_error"], rank.get("exit_code"), rank.get("signal")
    if error["kind"] == "NCCL WARN":
        return signal in _ENDS_THE_LIVING
    if error.get("origin") != "python":
        return False
    if code is None and not signal:
        return rank.get("restarted") or not is_near_end(rank, error)
    return code not in (0, 1, None) or signal in _ENDS_THE_LIVING


def set_handled_apart(ranks):
    """Return the ranks with the errors that did not end them in `handled`, not in `first_error`.

    ranks: of rank_logs_info. An exception that another rank handled counts as handled where no end
    was seen.
    """
    ranks = [_set_own_apart(rank) for rank in ranks]
    handled = {(r["handled"]["kind"], r["handled"]["text"]) for r in ranks if r["handled"]}
    return [_without_common(rank, handled) for rank in ranks]


def _without_common(rank, handled):
    error = rank.get("first_error")
    unseen = rank.get("exit_code") is None and not rank.get("signal")
    if error and unseen and (error["kind"], error["text"]) in handled:
        return dict(rank, first_error=None, handled=error)
    return rank


def is_near_end(rank, error):
    """Return whether the lines of a log after an error can all be of it, or of the end it made."""
    return (rank.get("lines") or 0) - (error.get("line") or 0) <= LAST_WORDS
