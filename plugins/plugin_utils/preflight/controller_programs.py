# SPDX-License-Identifier: Apache-2.0
"""Checks of the controller's rsync and sshd.

rsync pulls from nodes, and the controller holds the keys of all of them.
"""

from __future__ import annotations

import shutil

from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import (
    openssh,
    package_fixes,
    rsync,
)

# The verbs that copy from or to nodes with rsync, and check, which reports problems before a start.
VERBS = ("train", "check", "resume", "follow", "logs", "sync", "provision")


def warnings(verb: str) -> list[str]:
    """Return warnings about the controller's programs, as lines.

    verb: the playbook's name without its ending.
    """
    if verb not in VERBS:
        return []
    lines = []
    if shutil.which("rsync"):  # a missing one is reported elsewhere
        version = package_fixes.output(["rsync", "--version"])
        line = rsync_warning(version, package_fixes.change_log("rsync"))
        if line:
            lines.append(line)
    problem = openssh.problem(openssh.look())
    if problem:
        text, remedy = problem
        lines.append(f"On this controller {text}. Remedy: {remedy}")
    return lines


def rsync_warning(version: str, changes: str) -> str | None:
    """Return a line about an rsync that is not known to be safe, or None.

    version: the output of rsync --version. changes: its package's change log.
    """
    number = rsync.number_of(version)
    missing = rsync.unfixed(number, changes)
    if missing == []:
        return None
    shown = "an unknown version"
    if number:
        shown = ".".join(map(str, number))
    remedy = "Update it with the distribution's package manager"
    if missing:
        return (
            f"rsync {shown} on this controller is not fixed for {', '.join(missing)}, and it"
            f" copies from the nodes. {remedy}"
        )
    fixed = ".".join(map(str, rsync.FIXED))
    return (
        f"it is unknown whether rsync {shown} on this controller is fixed for"
        f" {', '.join(rsync.holes(number))}, and it copies from the nodes. Version {fixed} is."
        f" {remedy}"
    )
