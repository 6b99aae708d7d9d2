# SPDX-License-Identifier: Apache-2.0
"""Tell from an installed package's own change log whether a known hole is fixed in it. Reads only.

Distributions keep an old version number and fix its holes, so a version alone accuses many machines
falsely. A change log can be cut off at its old end (Ubuntu ships ten entries, newer debhelper two
releases): then a fix that it does not name may stand in the part that is missing.
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
    """Return the change log that a distribution ships with a package, or '' if there is none."""
    for path in glob.glob(f"/usr/share/doc/{package}/changelog.Debian*"):
        try:
            opened = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
            with opened as handle:
                return handle.read(LARGEST).decode("utf-8", "replace")
        except (OSError, EOFError):
            continue
    return output(["rpm", "-q", "--changelog", package]) if shutil.which("rpm") else ""


def output(argv):
    """Return what a program prints, its errors included; '' if it fails."""
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
    return done.stdout[:LARGEST].decode("utf-8", "replace") if done.returncode == 0 else ""


def unnamed(changes, names):
    """Return the names (CVE-...) that do not stand in a change log."""
    return [name for name in names if not re.search(re.escape(name) + r"(?!\d)", changes)]


def unfixed(changes, names, published):
    """Return the names (CVE-...) that a change log does not name as fixed; None if that cannot be
    told.

    published: the day on which the holes became known, such as "2024-07-01". A log whose oldest
    entry is later may have lost the fix.
    """
    missing = unnamed(changes, names)
    if not missing:
        return []
    oldest = _oldest(changes)
    return missing if oldest and oldest < published else None


def _oldest(changes):
    """Return the day of the oldest entry of a change log as "2024-07-01", or None."""
    days = []
    for text in _DEBIAN.findall(changes):
        found = email.utils.parsedate(text)
        days += ["%04d-%02d-%02d" % found[:3]] if found else []
    for text in _RPM.findall(changes):
        try:
            days.append(time.strftime("%Y-%m-%d", time.strptime(text, "%b %d %Y")))
        except ValueError:
            continue
    return min(days) if days else None
