# SPDX-License-Identifier: Apache-2.0
"""Judge the controller's rsync: it pulls from nodes, and an old one obeys a sender too much. Controller only.

Distributions keep an old version number and mend it, so the package's own change log counts as well as the version.
"""

from __future__ import annotations

import glob
import gzip
import re
import shutil
import subprocess

# Client side: files outside the destination, links, and contents of the receiver's files (fixed upstream in 3.4.0, 14 January 2025).
RSYNC_CVES = ("CVE-2024-12086", "CVE-2024-12087", "CVE-2024-12088")
RSYNC_FIXED = (3, 4, 0)
LARGEST = 4 << 20
SECONDS = 10


def warnings():
    """Return what a user should know of the controller's programs, as lines."""
    if not shutil.which("rsync"):
        return []  # what is missing is said elsewhere
    said = rsync_warning(_output(["rsync", "--version"]), _changes("rsync"))
    return [said] if said else []


def rsync_warning(version, changes):
    """Return a line about an rsync that is not known to be safe, or None. version: what it prints. changes: its package's change log, '' for none."""
    found = re.search(r"version v?(\d+)\.(\d+)\.(\d+)", version)
    number = tuple(int(part) for part in found.groups()) if found else None
    missing = [name for name in RSYNC_CVES if name not in changes]
    if (number and number >= RSYNC_FIXED) or not missing:
        return None
    shown = ".".join(map(str, number)) if number else "an unknown version"
    remedy = "Update it with the distribution's package manager"
    if changes:
        return "rsync %s on this controller is not mended for %s, and it copies from the nodes. %s" % (shown, ", ".join(missing), remedy)
    text = "it is unknown whether rsync %s on this controller is mended for %s, and it copies from the nodes. Version 3.4.0 is. %s"
    return text % (shown, ", ".join(missing), remedy)


def _changes(package):
    """Return the change log that a distribution ships with a package, or '' where there is none."""
    for path in glob.glob("/usr/share/doc/%s/changelog.Debian*" % package):
        try:
            opened = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
            with opened as handle:
                return handle.read(LARGEST).decode("utf-8", "replace")
        except (OSError, EOFError):
            continue
    return _output(["rpm", "-q", "--changelog", package]) if shutil.which("rpm") else ""


def _output(argv):
    """Return what a program prints, '' where it fails."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:LARGEST].decode("utf-8", "replace") if done.returncode == 0 else ""
