# SPDX-License-Identifier: Apache-2.0
"""Judge the controller's rsync and sshd: rsync pulls from nodes, and the controller holds the keys
of all. Controller only.
"""

from __future__ import annotations

import shutil

from . import openssh, package_fixes, rsync

# The verbs that copy from or to nodes with rsync, and the one that says before a start what is
# wrong.
VERBS = ("train", "check", "resume", "follow", "logs", "sync", "provision")


def warnings(verb):
    """Return what a user should know of the controller's programs, as lines. verb: the playbook's
    name without its ending.
    """
    if verb not in VERBS:
        return []
    said = []
    if shutil.which("rsync"):  # what is missing is said elsewhere
        said.append(
            rsync_warning(
                package_fixes.output(["rsync", "--version"]), package_fixes.change_log("rsync")
            )
        )
    found = openssh.problem(openssh.look())
    said.append("On this controller {}. Remedy: {}".format(*found) if found else None)
    return [line for line in said if line]


def rsync_warning(version, changes):
    """Return a line about an rsync that is not known to be safe, or None. version: what it prints.
    changes: its package's change log.
    """
    number = rsync.number_of(version)
    missing = rsync.unfixed(number, changes)
    if missing == []:
        return None
    shown = ".".join(map(str, number)) if number else "an unknown version"
    remedy = "Update it with the distribution's package manager"
    if missing:
        return "rsync {} on this controller is not mended for {}, and it copies from the nodes. {}".format(
            shown, ", ".join(missing), remedy
        )
    text = (
        "it is unknown whether rsync %s on this controller is mended for %s, and it copies from the"
        " nodes. Version %s is. %s"
    )
    return text % (shown, ", ".join(rsync.holes(number)), ".".join(map(str, rsync.FIXED)), remedy)
