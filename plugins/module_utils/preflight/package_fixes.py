# SPDX-License-Identifier: Apache-2.0
"""Fixes of known holes, as a package's change log names them. Reads only.

Distributions keep an old version number and fix its holes, so a version alone accuses many machines
falsely. A change log can be cut off at its old end (Ubuntu ships ten entries, newer debhelper two
releases). Then a fix that it does not name may stand in the part that is missing.
"""

from __future__ import annotations

import email.utils
import glob
import gzip
import re
import shutil
import subprocess
import time

LARGEST = 4 << 20
SECONDS = 10
# " -- Name <address>  Mon, 01 Jul 2024 08:00:00 +0200" and rpm's "* Mon Jul 01 2024 Name <address>"
_DEBIAN = re.compile(r"^ -- .{0,300}>  (.{10,60})$", re.MULTILINE)
_RPM = re.compile(r"^\* [A-Z][a-z]{2} ([A-Z][a-z]{2} +\d{1,2} \d{4})\b", re.MULTILINE)


def change_log(package):
    """Return the change log that comes with a package, or '' without one."""
    for path in glob.glob(f"/usr/share/doc/{package}/changelog.Debian*"):
        open_log = open
        if path.endswith(".gz"):
            open_log = gzip.open
        try:
            with open_log(path, "rb") as handle:
                return handle.read(LARGEST).decode("utf-8", "replace")
        except (OSError, EOFError):
            continue
    if shutil.which("rpm"):
        return output(["rpm", "-q", "--changelog", package])
    return ""


def output(argv):
    """Return what a program prints, its errors included, '' if it fails."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode:
        return ""
    return done.stdout[:LARGEST].decode("utf-8", "replace")


def unnamed(changes, names):
    """Return the names (CVE-...) that do not stand in a change log."""
    return [name for name in names if not re.search(re.escape(name) + r"(?!\d)", changes)]


def unfixed(changes, names, published):
    """Return the names (CVE-...) that a change log does not fix, None if unknown.

    published: the day on which the holes became known, such as "2024-07-01". A log whose oldest
    entry is later may have lost the fix.
    """
    missing = unnamed(changes, names)
    if not missing:
        return []
    oldest = _oldest(changes)
    if oldest and oldest < published:
        return missing
    return None


def _oldest(changes):
    """Return the day of the oldest entry of a change log as "2024-07-01", or None."""
    days = []
    for text in _DEBIAN.findall(changes):
        date = email.utils.parsedate(text)
        if date:
            year, month, day = date[:3]
            days.append(f"{year:04d}-{month:02d}-{day:02d}")
    for text in _RPM.findall(changes):
        try:
            days.append(time.strftime("%Y-%m-%d", time.strptime(text, "%b %d %Y")))
        except ValueError:
            continue
    return min(days, default=None)
