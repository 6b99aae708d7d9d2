# SPDX-License-Identifier: Apache-2.0
"""Comparison of the end of a process with the end that an error in its log announces.

An uncaught exception ends with exit code 1, argparse with 2, a shell's `Killed` belongs to the code
137, and what a signal from outside ended had gone on until then. An error that the end contradicts
is one that the training handled, or that of a process which the training had started.
"""

from __future__ import annotations

import re
import typing

from .error_patterns import is_one_line, is_plain

LAST_WORDS = 2  # lines of a log after an error that can still be of the end that it made
TEARDOWN = 12  # lines between an uncaught exception and a crash of the interpreter that it ends
# They end a process whose main thread still runs. An uncaught exception has ended it by then.
_ENDS_THE_LIVING = frozenset(("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP"))
CRASHES = frozenset(("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"))
# What a shell, an interpreter or argparse says when a process ends, and its exit codes.
_ENDS = (
    ("Killed", "", (137,)),
    ("Segmentation fault", "", (139,)),
    ("Bus error", "", (135,)),
    ("Aborted", "", (134,)),
    ("Illegal instruction", "", (132,)),
    ("Terminated", "", (143,)),
    ("usage error", "", (2,)),
    ("python", "can't open file", (2,)),
    ("python", "relocation error", (1, 127)),
    ("python", "symbol lookup error", (1, 127)),
    ("python", "", (1,)),
)
# Paddle's native code throws these, and Python can catch them. The place ends their message.
_THROWN = re.compile(r"(?:[A-Z][A-Za-z]+Error|Error Message Summary)\Z")
# These end a process by a signal, which a shell and a launcher give as a code of 128 and more.
_FATAL = "Fatal Python error"
_ABORTS = re.compile(rf"::|^(?:{_FATAL}|terminate called|FatalError|Check failed)\Z")
# Lines of native code after which its process ends, unless it was the process of a helper, or the
# code goes on in another way.
_OF_A_PROCESS = re.compile(r"(?:C assertion|SIG[A-Z]+|Failed|ACL|UCX|loader|check)\Z")
FIRST_OF_SIGNALS = 128
_PLACE = re.compile(r"\(at \S+:\d+\)\s*$")


class End(typing.NamedTuple):
    """The end of a process: how it was seen, and how many lines its log has."""

    code: int | None
    signal: str | None
    lines: int

    @property
    def is_seen(self):
        """Whether anything saw the end."""
        return self.code is not None or bool(self.signal)


def is_contradicted(error, end):
    """Return whether the end of a process shows that an error in its log did not make it."""
    if error["kind"] == "NCCL WARN":
        # It comes before an error of its own, and ends nothing.
        return end.signal in _ENDS_THE_LIVING
    origin = error.get("origin")
    until = error.get("until") or error["line"] or 0
    if _OF_A_PROCESS.match(error["kind"]) and (end.lines or 0) - until > TEARDOWN:
        return True
    if origin == "line":
        return _is_of_a_child(error, end)
    if error.get("bare"):
        return is_apart(error, end, TEARDOWN)
    if origin == "python":
        return _is_caught(error, end)
    if _ABORTS.search(error["kind"]):
        # A process that has these ends by a signal. The parent of a worker has them from it, and
        # ends with 1.
        is_other = end.code is not None and 1 < end.code < FIRST_OF_SIGNALS
        return is_other or (error["kind"] == _FATAL and end.signal in _ENDS_THE_LIVING)
    return bool(_THROWN.match(error["kind"])) and _is_caught_below(error, end)


def is_mere_warning(error, end):
    """Return whether a line of a library stands above an end that has no words of its own.

    Libraries print such lines of what they try again, too.
    """
    return end.is_seen and is_apart(error, end, TEARDOWN)


def _is_of_a_child(error, end):
    """Return whether a line about the end of a process is about another one than this."""
    for kind, words, codes in _ENDS:
        if error["kind"] == kind and error["text"].startswith(words):
            if not end.is_seen:
                return is_apart(error, end, LAST_WORDS)
            if end.signal:
                return True  # the signal itself says more, and no process tells of its own
            # A program of any kind ends with 1, so that the line has to be the last one.
            return end.code not in codes or (end.code == 1 and is_apart(error, end, TEARDOWN))
    return False


def _is_caught(error, end):
    """Return whether a Python exception is not what ended its process."""
    if not end.is_seen:
        return is_apart(error, end, LAST_WORDS)
    if end.signal in CRASHES:
        return is_apart(error, end, TEARDOWN)
    return end.code not in (0, 1, None) or end.signal in _ENDS_THE_LIVING


def _is_caught_below(error, end):
    """Return whether an error of native code is not what ended its process.

    Python prints it in a traceback, and without one a C++ thread aborts.
    """
    if end.is_seen and (end.code not in (0, 1, None) or end.signal not in (None, "SIGABRT")):
        return True
    return is_apart(error, end, TEARDOWN)


def is_apart(error, end, most):
    """Return whether a log shows that its process went on after an error's last line.

    It has more lines after it than an end makes, or one of the program's own.
    """
    if (end.lines or 0) - (error.get("line") or 0) > most:
        return True
    return any(map(is_plain, _after_message(error)))


def _after_message(error):
    """Return the lines below an error that are surely not of its message."""
    below = lines_below(error)
    if error.get("origin") == "line" or error["kind"] == "NCCL WARN" or is_one_line(error):
        return below
    for index, line in enumerate(below):
        if _PLACE.search(line):
            return below[index + 1 :]
    return []


def lines_below(error):
    """Return the first lines below an error's own, as far as its context has them."""
    below = list(error.get("context") or ())
    if error.get("origin") != "python":
        return below[1:]
    while below and not below.pop(0).startswith(error["kind"]):
        pass
    return below
