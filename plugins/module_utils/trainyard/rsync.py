# SPDX-License-Identifier: Apache-2.0
"""Judge a machine's rsync by its version and its package's change log.

The controller pulls from nodes. A node pulls checkpoints from peers, and serves its own ones to them by rsync's daemon (mesh_gate.py).
"""

from __future__ import annotations

import re
import shutil

from ansible.module_utils.trainyard import package_fixes

# Up to 3.3.0: contents of the stack, contents of files, files outside the destination, links (kb.cert.org/vuls/id/952657).
CVES = ("CVE-2024-12085", "CVE-2024-12086", "CVE-2024-12087", "CVE-2024-12088")
# In 3.2.7 and 3.3.0 alone: longer checksums than their buffer, so that a client writes into the daemon's memory.
OVERFLOW, OVERFLOW_FIRST = "CVE-2024-12084", (3, 2, 7)
FIXED = (3, 4, 0)
PUBLISHED = "2025-01-14"
LONGEST = 64


def look():
    """Return {version, fixed} of this machine's rsync: fixed is true or false, or None if nothing tells. None if it has no rsync."""
    if not shutil.which("rsync"):
        return None
    number = number_of(package_fixes.output(["rsync", "--version"]))
    missing = unfixed(number, package_fixes.change_log("rsync"))
    return {"version": ".".join(map(str, number or ()))[:LONGEST], "fixed": None if missing is None else not missing}


def number_of(text):
    """Return the version that rsync prints as numbers, or None."""
    found = re.search(r"version v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", text)
    return tuple(int(part) for part in found.groups()) if found else None


def holes(number):
    """Return the holes (CVE-...) that upstream's version has; all of them for an unknown one."""
    if number and number >= FIXED:
        return ()
    return CVES if number and number < OVERFLOW_FIRST else (OVERFLOW, *CVES)


def unfixed(number, changes):
    """Return the holes that are not fixed, None if nothing tells. number: of `number_of`. changes: the package's change log."""
    names = holes(number)
    return package_fixes.unfixed(changes, names, PUBLISHED) if names else []


def problem(found):
    """Return (text, remedy) of a node's rsync as `look` describes it, or None if nothing is wrong. {} is a node that does not tell."""
    if found is None or found.get("fixed"):
        return None
    shown = found.get("version") or "of an unknown version"
    names = "%s to %s" % (OVERFLOW, CVES[-1][-5:])
    remedy = "update it with the distribution's package manager; version 3.4.0 is fixed"
    if found.get("fixed") is None:
        return "it is unknown whether rsync (%s) is fixed for %s: a peer may take over what it copies with" % (shown, names), remedy
    return "rsync (%s) is not fixed for %s: a peer may take over what it copies with" % (shown, names), remedy
