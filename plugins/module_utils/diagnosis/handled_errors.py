# SPDX-License-Identifier: Apache-2.0
"""The errors in a rank's log that it handled, as the rank's end shows it.

The scanner knows the log and the exit code (logs/root_error.py, logs/last_words.py). Here the last
line of the log, the restart of the node and the other ranks are compared with it.
"""

from __future__ import annotations

import re

from ..logs.closing_lines import is_calm
from ..logs.error_patterns import (
    FINAL,
    PREFIX,
    RECORD,
    is_final,
    is_one_line,
    is_plain,
    unquote,
)
from ..logs.failure_catalogue import classify
from ..logs.last_words import CRASHES, LAST_WORDS, End, is_contradicted, lines_below

_DETAIL = re.compile(
    r"\s|\[|-{10,}\s*$|E[A-Z0-9]\d{4}: |Exception raised from |frame #\d+: |Error Message Summary:"
)
# A line of a message that goes on below it. Paddle puts its own between lines of dashes.
_GOES_ON = re.compile(r"[,:(]\s*$|^-{10,}\s*$")
# MindSpore puts its message under headings, and the last heading has the calls of its own code.
_LAST_HEADING = "- C++ Call Stack"
_MOST_MESSAGE = 60  # lines of such a message
_CPP_PLACE = re.compile(r"\bat \(?/\S+:\d+\)\s*$")
_CPP_CALL = re.compile(r"\S+\.(?:cc|h)(?::\d+|\(\d+\))")
# Causes that are believed where the last line of a rank names them that was not killed: they name a
# thing, not a condition of the peers.
NAMES_A_THING = frozenset(
    (
        "bad_argument",
        "bad_config",
        "data_corrupt",
        "data_missing",
        "disk_full",
        "download_failed",
        "permission",
        "version_mismatch",
    )
)


def _set_own_apart(rank):
    """Return a rank whose `first_error` ended it or may have ended it.

    An error that it handled is no evidence about its end, and moves to `handled`.
    """
    error = rank.get("first_error")
    if not error:
        return dict(rank, handled=None)
    end = End(rank.get("exit_code"), rank.get("signal"), rank.get("lines") or 0)
    if rank.get("restarted") and not end.is_seen and error.get("origin") in ("python", "line"):
        is_handled = True  # no end was recorded there, as long as this process lived
    elif error.get("thread"):
        is_handled = _is_of_idle_thread(rank)
    else:
        is_handled = _is_passing(rank) or _is_contradicted(rank, end)
    if is_handled:
        return dict(rank, first_error=None, handled=error)
    return dict(rank, handled=None)


def _is_of_idle_thread(rank):
    """Return whether a thread's error has nothing to do with the end of its rank.

    It ends no process. The main thread may have waited for it until something stopped the rank, or
    may have given up.
    """
    error, code, signal = rank["first_error"], rank.get("exit_code"), rank.get("signal")
    return error["grade"] != "primary" or code not in (0, 1, None) or signal in CRASHES


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
    details, below = _details(error), (rank.get("lines") or 0) - (error.get("line") or 0)
    if len(details) >= below > 0:
        return True
    return below <= _MOST_MESSAGE and (_ends_message(error, last) or _ends_teardown(error, last))


def _ends_message(error, last):
    """Return whether the last line of a log is the end of Paddle's or MindSpore's long message."""
    if _CPP_PLACE.search(last):
        return True
    headings = (line.startswith(_LAST_HEADING) for line in lines_below(error))
    return any(headings) and bool(_CPP_CALL.match(last))


def _ends_teardown(error, last):
    """Return whether a destructor that failed after an error is all that a log has below it."""
    below, final = lines_below(error), FINAL.match(last)
    is_ignored = bool(below) and below[0].startswith("Exception ignored in")
    return is_ignored and bool(final) and is_final(final)


def _details(error):
    """Return the lines below an error that only a library prints to explain it.

    They are indented, begin with a bracket or a code of CANN, or go on with a sentence. A record of
    a logger is not one of them.
    """
    details, goes_on = [], _GOES_ON.search(error["text"])
    for line in lines_below(error):
        if not (_DETAIL.match(line) or goes_on) or RECORD.match(line):
            break
        goes_on = _GOES_ON.search(line)
        details.append(line)
    return details


def _is_contradicted(rank, end):
    """Return whether a rank's end shows that an exception in its log did not end it."""
    return is_contradicted(rank["first_error"], end) or _has_other_last_words(rank)


def _has_other_last_words(rank):
    """Return whether the last line of a log names a cause that an exception before it does not.

    The exception's message is one line, so that the last line is not of it.
    """
    error, last = rank["first_error"], rank.get("last_line") or ""
    if error.get("origin") != "python" or rank.get("exit_code") != 1:
        return False
    if not is_one_line(error) or ends_log(rank, error) or not _is_said(last):
        return False
    cause = classify("", unquote(last))["cause"]
    return cause in NAMES_A_THING and cause != error["cause"]


def _is_said(line):
    """Return whether a line is one that a program prints of itself, and no exception's."""
    final = FINAL.match(line)
    return is_plain(line) and not is_calm(line) and not (final and is_final(final))


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
