# SPDX-License-Identifier: Apache-2.0
"""Which of the errors in a rank's log explains its end. A pure function over what errors.py has
read.
"""

from __future__ import annotations

import re

from . import error_patterns as lines
from .failure_catalogue import classify, entry_of

_ORDER = {"primary": 0, "shared": 1, "secondary": 2}
_VAGUE = frozenset(("python_exception", "cpp_exception", "unknown"))
# An exception that was raised while one of these was handled is its consequence; a missing file is
# often expected and handled well.
_DEEP = frozenset(
    (
        "disk_full",
        "read_only",
        "out_of_memory",
        "device_out_of_memory",
        "resource_limit",
        "permission",
        "bus_error",
        "download_failed",
    )
)
# Data sets that answer a sample they cannot read by trying another one end so, when there is none
# that they can (PaddleOCR does).
_GAVE_UP = frozenset(("RecursionError",))
_WRAPPER = re.compile(r"Exception thrown from .*\bdataset\b")
_SAMPLE = re.compile(r"data\w*\.py\", line \d+, in __getitem__")


def finished(error):
    """An error as it is told: with its cause, and without what only its reading needed."""
    found = {key: value for key, value in error.items() if key not in ("soft", "direct")}
    found["text"] = found["text"].strip()
    peer = lines.PEER.search(found["text"])
    found["peer"] = int(peer.group("peer") or peer.group("worker")) if peer else None
    entry = classify(found["kind"], found["text"], found["origin"], found["file"])
    if entry["cause"] in _VAGUE and found["root"]:
        kind, _colon, text = found["root"].partition(": ")
        deeper = classify(kind, text, "line")
        if (
            deeper["grade"] == "primary"
            and deeper["cause"] not in _VAGUE
            and (error["direct"] or deeper["cause"] in _DEEP)
        ):
            entry = deeper
            found["text"] += " [after {}]".format(found["root"].strip()[:200])
    return dict(found, **entry)


def choose(errors, survived=None, thread_error=None):
    """The error that best explains an end of the rank, or None.

    errors: those since the last training step, in order. survived: the first one that a step
    followed. thread_error: what ended a thread of the trainer.
    """
    pool = [finished(error) for error in errors]
    fatal = [error for error in pool if not error["handled"]]
    hard = [error for error, raw in zip(pool, errors) if not error["handled"] and not raw["soft"]]
    thread = finished(thread_error) if thread_error else None
    own = [
        error
        for error in hard
        if error["grade"] == "primary" and not (thread and error["cause"] == "worker_died")
    ]
    if own:
        return _after_all(min(own, key=_told), pool)
    if thread:  # `the data reader raises an exception`: that one, and it did end the rank
        return dict(thread, survived=not any(e["cause"] == "worker_died" for e in fatal))
    # a line that only calls itself an error comes after what ends a process; what explains most
    # comes first
    if fatal:
        return min(fatal, key=lambda e: _ORDER[e["grade"]])
    rest = ([finished(survived)] if survived else []) + pool
    return next((e for e in rest if e["grade"] == "primary"), rest[0] if rest else None)


def _told(error):
    """How little an error tells: that a data pipeline failed is said beside what it failed of; a
    traceback that was torn has no message.
    """
    wraps = error["cause"] == "worker_died" or (
        error["cause"] in _VAGUE and _WRAPPER.search(error["text"])
    )
    return 2 if error["kind"] == "Traceback" else 1 if wraps else 0


def _after_all(error, pool):
    """The error itself; one that only says that the code gave up has the cause of what it had
    handled again and again before.
    """
    if error["kind"] in _GAVE_UP:
        tried = [
            e for e in pool if e["handled"] and e["grade"] == "primary" and e["cause"] not in _VAGUE
        ]
        if tried and len({e["cause"] for e in tried}) == 1:
            said = f"{tried[0]['kind']}: {tried[0]['text']}"
            told = {key: tried[0][key] for key in ("cause", "grade", "meaning", "remedy", "source")}
            return dict(
                error,
                text=f"{error['text']} [after {said[:200]}]",
                root=error["root"] or said,
                **told,
            )
        if not tried and any(_SAMPLE.search(line) for line in error["context"]):
            return dict(error, **entry_of("data_corrupt"))
    return error
