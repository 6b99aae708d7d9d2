# SPDX-License-Identifier: Apache-2.0
"""Mounted file systems, as /proc/self/mountinfo lists them (proc(5)). Pure."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

TABLE = "/proc/self/mountinfo"
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount: its point, the mounted part of the file system, its type and its source."""

    point: str
    root: str
    kind: str
    source: str


NO_MOUNT = Mount("/", "/", "", "")


def parse_mounts(table):
    """Return the mounts in the text of /proc/<pid>/mountinfo, in its order."""
    mounts = []
    for line in table.split("\n"):  # a path may have other signs that splitlines() splits at
        head, _dash, right = line.partition(" - ")
        fields, tail = head.split(), right.split()
        if len(fields) > 4 and len(tail) > 1:
            mounts.append(Mount(_unescape(fields[4]), _unescape(fields[3]), tail[0], tail[1]))
    return mounts


def _unescape(text):
    """Return a path of mountinfo, which has blanks and backslashes as octal numbers."""
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)


def is_below(path, folder):
    """Return whether a path is the folder or lies below it."""
    return (path + "/").startswith(folder.rstrip("/") + "/")


def mount_of(real, table):
    """Return the mount that holds a path without links, NO_MOUNT where none does.

    table: text of mountinfo. Of several mounts on one point the last one is visible.
    """
    best = NO_MOUNT
    for mount in parse_mounts(table):
        if is_below(real, mount.point) and len(mount.point) >= len(best.point):
            best = mount
    return best


def mount_point_in(folder, table):
    """Return a mount point at or below a folder, or None. table: text of mountinfo."""
    real = os.path.realpath(folder)
    points = (mount.point for mount in parse_mounts(table))
    return next((point for point in points if is_below(point, real)), None)
