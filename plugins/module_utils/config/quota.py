# SPDX-License-Identifier: Apache-2.0
"""How much of one run a node may send to the controller: bytes, files, and the space that stays
free. Controller only.

A training script can write logs without end. What is above a bound stays on its node and is named;
the other nodes' files come home all the same.
"""

from __future__ import annotations

import os
import re
import stat

from ..base import safe_names
from ..base.untag import plain

BYTES, FILES, FREE = 20 << 30, 2000, 5 << 30
KEPT = 20  # copies of one file that began again on its node
_SIZE = re.compile(r"([0-9]{1,18})(?: ?(KiB|MiB|GiB|TiB))?")
_UNITS = {None: 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_NAMES = ("trainyard_collect_bytes", "trainyard_collect_files", "trainyard_collect_free")
_ATTEMPT = re.compile(r"attempt-[1-9][0-9]{0,8}")


class QuotaError(Exception):
    """A node has passed a bound; the message names the bound and is safe to show."""


def size_of(value):
    """Return a number of bytes from a whole number or a text such as '20 GiB'; raise ValueError."""
    match = (
        _SIZE.fullmatch(str(value))
        if isinstance(value, (int, str)) and not isinstance(value, bool)
        else None
    )
    if not match:
        raise ValueError("must be a whole number of bytes, or one with KiB, MiB, GiB or TiB")
    return int(match.group(1)) << _UNITS[match.group(2)]


def problems(values):
    """Return [(variable, text)] of the site's variables that are no bounds; values: {variable:
    value}.
    """
    found = []
    for name in _NAMES:
        try:
            value = values.get(name)
            if (
                name == "trainyard_collect_files"
                and value is not None
                and not str(value).isdecimal()
            ):
                raise ValueError("must be a whole number of files")
            if value is not None and size_of(value) < (
                0 if name == "trainyard_collect_free" else 1
            ):
                raise ValueError("must be at least 1")
        except ValueError as error:
            found.append((name, str(error)))
    return found


def words(count):
    """Return a number of bytes for people."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.4g} {unit}"
    return "%d bytes" % count


class Quota:
    """The bounds of one site, as numbers of bytes and files."""

    def __init__(self, most_bytes=BYTES, most_files=FILES, keep_free=FREE):
        self.bytes, self.files, self.free = (
            size_of(most_bytes),
            size_of(most_files),
            size_of(keep_free),
        )

    @classmethod
    def of_variables(cls, variables):
        """Return the bounds of a site; variables: {variable: value}, others are passed over."""
        given = [variables.get(name) for name in _NAMES]
        return cls(
            *[
                default if value is None else value
                for value, default in zip(given, (BYTES, FILES, FREE))
            ]
        )

    @classmethod
    def of_host(cls, variables, host):
        """Return the bounds of a site from a task's variables, as a host of its group has them."""
        hosts = variables.get("hostvars") or {}
        found = hosts[host] if host in hosts else {}
        return cls.of_variables({name: plain(found.get(name)) for name in _NAMES})

    def room(self, folder):
        """Return the bytes that may still be written to the file system of a directory."""
        found = os.statvfs(folder)
        return max(0, found.f_bavail * found.f_frsize - self.free)

    def refuse(self, used, files, room, more=0):
        """Raise QuotaError where `more` bytes pass a bound; used, files: what the node has here
        with the new file; room: as `room` gives it.
        """
        if used + more > self.bytes:
            raise QuotaError(
                f"it has sent {words(used)} of this run; trainyard_collect_bytes allows"
                f" {words(self.bytes)}"
            )
        if files > self.files:
            raise QuotaError(
                "it has sent %d files of this run; trainyard_collect_files allows %d"
                % (files - 1, self.files)
            )
        if more > room:
            raise QuotaError(
                f"the controller has to keep {words(self.free)} free (trainyard_collect_free)"
            )


def used(run_dir, node):
    """Return (bytes, files) that are here of a node's logs, in every attempt of a run. Holes count:
    whoever reads a file reads them, too.
    """
    mine, total, count = safe_names.at_home(node, kept=True), 0, 0
    for attempt in _entries(run_dir):
        if not _ATTEMPT.fullmatch(attempt.name) or not attempt.is_dir(follow_symlinks=False):
            continue
        for entry in _entries(attempt.path):
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode) and mine.fullmatch(entry.name):
                total, count = total + info.st_size, count + 1
    return total, count


def _entries(folder):
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
