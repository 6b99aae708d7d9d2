# SPDX-License-Identifier: Apache-2.0
"""Checks of an OpenSSH server by its version and its package's change log.

Only CVE-2024-6387 counts ("regreSSHion": root for every caller that reaches the port).
CVE-2023-38408 needs a forwarded agent, and no login of ours forwards one.
"""

from __future__ import annotations

import re
import shutil

from . import package_fixes

CVE = "CVE-2024-6387"
PUBLISHED = "2024-07-01"
# From 8.5 up to 9.7; earlier ones had the fix of CVE-2006-5051
# (qualys.com/2024/07/01/cve-2024-6387/regresshion.txt).
FIRST, FIXED = (8, 5), (9, 8)
# The first fixed package of a distribution, as `ssh -V` shows it: beginning and last number
# (DSA-5724-1, USN-6859-1).
PACKAGES = (
    ("OpenSSH_9.2p1 Debian-2+deb12u", 3),
    ("OpenSSH_8.9p1 Ubuntu-3ubuntu0.", 10),
    ("OpenSSH_9.3p1 Ubuntu-1ubuntu3.", 6),
    ("OpenSSH_9.6p1 Ubuntu-3ubuntu13.", 3),
)
LONGEST = 128
# A user's PATH may lead to another ssh, such as conda's. The system's has the version of its
# server.
SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"


def look():
    """Return {version, fixed} of this machine's server, or None if it has no server.

    fixed is true or false, or None if unknown.
    """
    if not shutil.which("sshd", path=SYSTEM):
        return None
    version = ""
    client = shutil.which("ssh", path=SYSTEM)
    if client:
        version = package_fixes.output([client, "-V"]).split(",")[0].strip()[:LONGEST]
    return {
        "version": version,
        "fixed": is_fixed(version, package_fixes.change_log("openssh-server")),
    }


def is_fixed(version, changes):
    """Return whether a server has no CVE-2024-6387, None if unknown.

    version: the output of `ssh -V`. changes: its package's change log.
    """
    match = re.match(r"OpenSSH_(\d{1,3})\.(\d{1,3})", version)
    if not match:
        return None
    number = tuple(int(part) for part in match.groups())
    if not FIRST <= number < FIXED:
        return True
    for beginning, first in PACKAGES:
        if version.startswith(beginning):
            last = re.match(r"\d{1,6}", version[len(beginning) :])
            if last:
                return int(last[0]) >= first
    missing = package_fixes.unfixed(changes, [CVE], PUBLISHED)
    if missing is None:
        return None
    return not missing


def problem(server):
    """Return (text, remedy) of a server as `look` describes it, or None if fixed."""
    if not server or server["fixed"]:
        return None
    shown = server["version"] or "of an unknown version"
    remedy = "update it with the distribution's package manager, and restart sshd"
    if server["fixed"] is None:
        text = (
            f"it is unknown whether sshd ({shown}) is fixed for {CVE}: whoever reaches its port"
            " may become root"
        )
    else:
        text = f"sshd ({shown}) is not fixed for {CVE}: whoever reaches its port may become root"
    return text, remedy
