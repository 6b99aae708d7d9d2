# SPDX-License-Identifier: Apache-2.0
"""Checks of a machine's rsync by its version and its package's change log.

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
    """Return {version, fixed} of this machine's rsync, or None if it has no rsync.

    fixed is true or false, or None if unknown.
    """
    if not shutil.which("rsync"):
        return None
    number = number_of(package_fixes.output(["rsync", "--version"]))
    missing = unfixed(number, package_fixes.change_log("rsync"))
    fixed = None
    if missing is not None:
        fixed = not missing
    return {"version": ".".join(map(str, number or ()))[:LONGEST], "fixed": fixed}


def number_of(text):
    """Return the version that rsync prints as numbers, or None."""
    match = re.search(r"version v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", text)
    if not match:
        return None
    return tuple(int(part) for part in match.groups())


def holes(number):
    """Return the holes (CVE-...) that upstream's version has or may have.

    For an unknown version these are all of them.
    """
    number = number or OVERFLOW_FIRST
    names = []
    if OVERFLOW_FIRST <= number < OVERFLOW_FIXED:
        names.append(OVERFLOW)
    if number < OVERFLOW_FIXED:
        names += CVES
    if number < LEAK_FIXED:
        names.append(LEAK)
    if number < FIXED:
        names += WRITES
    return tuple(names)


def unfixed(number, changes):
    """Return the holes that are not fixed, None if unknown.

    number: of `number_of`. changes: the package's change log.
    """
    names = holes(number)
    missing = []
    unknown = bool(package_fixes.unnamed(changes, [name for name in names if name in WRITES]))
    for year, published in (("CVE-2024", PUBLISHED), ("CVE-2026", LEAK_PUBLISHED)):
        known = [name for name in names if name.startswith(year) and name not in WRITES]
        unfixed_names = package_fixes.unfixed(changes, known, published)
        if unfixed_names is None:
            unknown = True
        else:
            missing += unfixed_names
    if unknown and not missing:
        return None
    return missing


def problem(description):
    """Return (text, remedy) of an rsync as `look` describes it, or None if fixed.

    {} is a node that does not report it.
    """
    if description is None or description.get("fixed"):
        return None
    shown = description.get("version") or "of an unknown version"
    names = f"all known holes ({OVERFLOW} to {WRITES[-1]})"
    fixed_version = ".".join(map(str, FIXED))
    remedy = f"update it with the distribution's package manager; version {fixed_version} is fixed"
    if description.get("fixed") is None:
        text = (
            f"it is unknown whether rsync ({shown}) is fixed for {names}: a peer may take over"
            " what it copies with"
        )
    else:
        text = f"rsync ({shown}) is not fixed for {names}: a peer may take over what it copies with"
    return text, remedy
