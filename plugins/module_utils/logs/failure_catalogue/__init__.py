# SPDX-License-Identifier: Apache-2.0
"""The meaning of errors: cause, grade, sentence, remedy and the rule's source.

The entries are data (the modules of this package). There are three grades:

primary     a rank with this error may be where a failure began
shared      a condition between ranks (they did not meet, they run different versions). It explains
            a failure and accuses no rank, because all that report it are only witnesses.
secondary   the report of a rank after another has gone. It explains nothing as long as anything
            else is known.

The first entry whose pattern is found in `kind: text` decides. One with `where` needs that pattern
in the traceback's file, too.
"""

from __future__ import annotations

import functools
import re

from .accelerator import EARLY, LAST, LATE, WORDS
from .ascend_codes import CODES
from .fabric import FABRIC, SEEN
from .machine import LOST, MACHINE
from .process import FALLBACK, OBSERVED, PROCESS

# The entry of a cause that has its words.
_WORDS = {
    entry["cause"]: entry
    for entry in reversed((*EARLY, *WORDS, *LATE, *FABRIC, *MACHINE, *PROCESS, *LOST))
    if "meaning" in entry
}


def _with_words(entries):
    """Return entries, each with the grade, meaning and remedy of its cause."""
    return tuple({**_WORDS[entry["cause"]], **entry} for entry in entries)


CATALOGUE = (
    SEEN
    + _with_words(EARLY)
    + _with_words(FABRIC)
    + _with_words(MACHINE)
    + PROCESS
    + _with_words(WORDS)
    + _with_words(CODES)
    + _with_words(LATE)
    + _with_words(LOST)
    + _with_words(LAST)
)
FIELDS = ("cause", "grade", "meaning", "remedy", "source")
# A tagged line ([ERROR] and the like) is an error only with one of these causes: many lines are
# called an error and end nothing. An entry of another cause says of itself that it is `tagged`.
_TAGGED = frozenset(entry["cause"] for entry in FABRIC) | {
    "device_out_of_memory",
    "device_error",
    "disk_full",
    "version_mismatch",
    *(entry["cause"] for entry in (*EARLY, *WORDS, *LATE) if "meaning" in entry),
}

# Causes whose words a text of any kind may hold: a hint, a name, a line of a tool. What only a
# library says of its device or of its peers is believed sooner.
EVERYDAY = frozenset(
    (
        "bad_argument",
        "bad_config",
        "bus_error",
        "checkpoint_damaged",
        "data_corrupt",
        "data_missing",
        "disk_full",
        "download_failed",
        "import_error",
        "nan",
        "out_of_memory",
        "permission",
        "read_only",
        "resource_limit",
        "segfault",
    )
)


@functools.lru_cache(maxsize=None)
def _compiled():
    """Return (pattern, pattern of the path, entry) of each entry.

    A program on a node that reads no error does without the time that compiling takes.
    """
    return tuple(
        (re.compile(entry["pattern"]), re.compile(entry.get("where", "")), entry)
        for entry in CATALOGUE
    )


def _find(message, path):
    """Return the first entry that fits an error, or None.

    path: the file of its innermost frame, or None.
    """
    for pattern, path_pattern, entry in _compiled():
        if pattern.search(message) and path_pattern.search(path or ""):
            return entry
    return None


def _fields(entry):
    return {key: entry[key] for key in FIELDS}


def classify(kind, text, origin="line", where=None):
    """Return the catalogue's entry for an error.

    It has cause, grade, meaning, remedy and source. kind, text: the error's class and message.
    origin (python, cpp, line): decides where no pattern fits. where: the file of the innermost
    frame of its traceback, or None.
    """
    message = kind
    if text:
        message = f"{kind}: {text}"
    entry = _find(message, where)
    return _fields(entry or FALLBACK.get(origin, FALLBACK["line"]))


def tagged(text):
    """Return the cause that a line which calls itself an error names, or None.

    Only causes that the catalogue accepts from a mere line count.
    """
    entry = _find(text, None)
    if entry and (entry["cause"] in _TAGGED or entry.get("tagged")):
        return entry["cause"]
    return None


def entry_of(cause):
    """Return the entry of a cause by its name.

    A name that is not in the catalogue gives the entry of `unknown`. The function is for causes
    that no log shows: a signal, systemd or a missing node does.
    """
    if cause in OBSERVED:
        return _fields(OBSERVED[cause])
    for entry in (*CATALOGUE, *FALLBACK.values()):
        if entry["cause"] == cause:
            return _fields(entry)
    return _fields(FALLBACK["line"])


def every():
    """Return all entries by cause, in the order of the page docs/runbooks/verdict.md."""
    entries = {}
    written = (_WORDS.values(), SEEN, FALLBACK.values(), OBSERVED.values())
    for table in written:
        for entry in table:
            entries.setdefault(entry["cause"], _fields(entry))
    return entries
