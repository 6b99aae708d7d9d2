# SPDX-License-Identifier: Apache-2.0
"""Judge a machine's rsync by its version and its package's change log.

The controller pulls from nodes. A node pulls checkpoints from peers, and serves its own ones to
them by rsync's daemon (mesh_gate.py).
"""

from __future__ import annotations

import re
import shutil

from . import package_fixes

# Up to 3.3.0: contents of the stack, contents of files, files outside the destination, links
# (kb.cert.org/vuls/id/952657).
CVES = ("CVE-2024-12085", "CVE-2024-12086", "CVE-2024-12087", "CVE-2024-12088")
PUBLISHED = "2025-01-14"
# In 3.2.7 and 3.3.0 alone: longer checksums than their buffer, so that a client writes into the
# daemon's memory.
OVERFLOW, OVERFLOW_FIRST, OVERFLOW_FIXED = "CVE-2024-12084", (3, 2, 7), (3, 4, 0)
# Up to 3.4.2: a sender reads the receiver's memory (NEWS of 3.4.3).
LEAK, LEAK_PUBLISHED, LEAK_FIXED = "CVE-2026-43618", "2026-05-20", (3, 4, 3)
# Fixed in 3.5.0: a peer writes beyond an allocation of the daemon or of a pulling client (NEWS of
# 3.5.0). It does not say which versions they begin with, so a change log that does not name them
# leaves it unknown.
WRITES = ("CVE-2026-70456", "CVE-2026-70458", "CVE-2026-70461")
FIXED = (3, 5, 0)
LONGEST = 64


def look():
    """Return {version, fixed} of this machine's rsync: fixed is true or false, or None if nothing
    tells. None if it has no rsync.
    """
    if not shutil.which("rsync"):
        return None
    number = number_of(package_fixes.output(["rsync", "--version"]))
    missing = unfixed(number, package_fixes.change_log("rsync"))
    return {
        "version": ".".join(map(str, number or ()))[:LONGEST],
        "fixed": None if missing is None else not missing,
    }


def number_of(text):
    """Return the version that rsync prints as numbers, or None."""
    found = re.search(r"version v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", text)
    return tuple(int(part) for part in found.groups()) if found else None


def holes(number):
    """Return the holes (CVE-...) that upstream's version has or may have; all of them for an
    unknown one.
    """
    number = number or OVERFLOW_FIRST
    found = [OVERFLOW] if OVERFLOW_FIRST <= number < OVERFLOW_FIXED else []
    found += CVES if number < OVERFLOW_FIXED else ()
    found += [LEAK] if number < LEAK_FIXED else []
    return tuple(found) + (WRITES if number < FIXED else ())


def unfixed(number, changes):
    """Return the holes that are not fixed, None if nothing tells. number: of `number_of`. changes:
    the package's change log.
    """
    names = holes(number)
    missing, unknown = (
        [],
        bool(package_fixes.unnamed(changes, [name for name in names if name in WRITES])),
    )
    for year, published in (("CVE-2024", PUBLISHED), ("CVE-2026", LEAK_PUBLISHED)):
        known = [name for name in names if name.startswith(year) and name not in WRITES]
        found = package_fixes.unfixed(changes, known, published)
        unknown, missing = unknown or found is None, missing + (found or [])
    return missing or (None if unknown else [])


def problem(found):
    """Return (text, remedy) of a node's rsync as `look` describes it, or None if nothing is wrong.
    {} is a node that does not tell.
    """
    if found is None or found.get("fixed"):
        return None
    shown = found.get("version") or "of an unknown version"
    names = f"all known holes ({OVERFLOW} to {WRITES[-1]})"
    remedy = "update it with the distribution's package manager; version {} is fixed".format(
        ".".join(map(str, FIXED))
    )
    if found.get("fixed") is None:
        return (
            (
                f"it is unknown whether rsync ({shown}) is fixed for {names}: a peer may take over"
                " what it copies with"
            ),
            remedy,
        )
    return (
        f"rsync ({shown}) is not fixed for {names}: a peer may take over what it copies with",
        remedy,
    )
