# SPDX-License-Identifier: Apache-2.0
"""What an error means: cause, grade, a sentence for people, a remedy and where the rule comes from;
the entries are data, catalogue_*.py.

Grades. `primary`: a rank that says this may be where a failure began. `shared`: a condition between
ranks (they did not meet, they run different versions); it explains a failure and accuses no rank,
because all that say it are only witnesses. `secondary`: what ranks say once another has gone; it
explains nothing as long as anything else is known.

The first entry whose pattern is found in `kind: text` decides; one with `where` wants that pattern
in the traceback's file, too.
"""

from __future__ import annotations

import re

from .catalogue_fabric import FABRIC, SEEN
from .catalogue_machine import LOST, MACHINE
from .catalogue_process import FALLBACK, OBSERVED, PROCESS

CATALOGUE = SEEN + FABRIC + MACHINE + PROCESS + LOST
FIELDS = ("cause", "grade", "meaning", "remedy", "source")
# A tagged line ([ERROR] and the like) is an error only where it says one of these: much is called
# an error that ends nothing.
_TAGGED = frozenset(entry["cause"] for entry in FABRIC) | {
    "device_out_of_memory",
    "device_error",
    "disk_full",
}

_COMPILED = tuple(
    (re.compile(entry["pattern"]), re.compile(entry.get("where", "")), entry) for entry in CATALOGUE
)


def _find(whole, where):
    return next(
        (
            entry
            for pattern, place, entry in _COMPILED
            if pattern.search(whole) and place.search(where or "")
        ),
        None,
    )


def classify(kind, text, origin="line", where=None):
    """The catalogue's entry for an error: {cause, grade, meaning, remedy, source}.

    kind, text: the error's class and message. origin (python, cpp, line): decides where no pattern
    fits. where: the file of the innermost frame of its traceback, or None.
    """
    entry = _find(f"{kind}: {text}" if text else kind, where) or FALLBACK.get(
        origin, FALLBACK["line"]
    )
    return {key: entry[key] for key in FIELDS}


def tagged(text):
    """The cause that a line which calls itself an error names, where the catalogue believes a mere
    line in this; else None.
    """
    entry = _find(text, None)
    return entry["cause"] if entry and entry["cause"] in _TAGGED else None


def entry_of(cause):
    """The entry of a cause by its name, for what a signal, systemd or a missing node tells and no
    log does.
    """
    found = OBSERVED.get(cause) or next(
        (e for e in (*CATALOGUE, *FALLBACK.values()) if e["cause"] == cause), FALLBACK["line"]
    )
    return {key: found[key] for key in FIELDS}


def every():
    """All entries by cause, in the order of the page docs/runbooks/verdict.md."""
    found = {}
    for entry in (
        *FABRIC,
        *MACHINE,
        *PROCESS,
        *LOST,
        *SEEN,
        *FALLBACK.values(),
        *OBSERVED.values(),
    ):
        found.setdefault(entry["cause"], {key: entry[key] for key in FIELDS})
    return found
