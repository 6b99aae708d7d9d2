# SPDX-License-Identifier: Apache-2.0
"""Bounds of one run's files from a node: bytes, files, and free space.

A training script can write logs without end. What is above a bound stays on its node and is named.
The other nodes' files are fetched all the same.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_bytes
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain

DEFAULT_BYTES, DEFAULT_FILES, DEFAULT_FREE_BYTES = 20 << 30, 2000, 5 << 30
KEPT_COPIES = 20  # copies of one file that began again on its node
_SIZE = re.compile(r"([0-9]{1,18})(?: ?(KiB|MiB|GiB|TiB))?")
_UNITS = {None: 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_NAMES = ("trainyard_collect_bytes", "trainyard_collect_files", "trainyard_collect_free")
_ATTEMPT = re.compile(r"attempt-[1-9][0-9]{0,8}")


class QuotaError(Exception):
    """A bound that a node has passed. The message names the bound and is safe to show."""


def parse_bytes(value: Any) -> int:
    """Return bytes from a whole number or a text as '20 GiB'. Raises ValueError."""
    match = None
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        match = _SIZE.fullmatch(str(value))
    if not match:
        raise ValueError("must be a whole number of bytes, or one with KiB, MiB, GiB or TiB")
    return int(match.group(1)) << _UNITS[match.group(2)]


def problems(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return [(variable, text)] of the site's bounds that are invalid.

    values: {variable: value}.
    """
    result = []
    for name in _NAMES:
        value = values.get(name)
        if value is not None:
            text = _bound_problem(name, value)
            if text:
                result.append((name, text))
    return result


def _bound_problem(name: str, value: Any) -> str | None:
    """Say why a value is invalid for a bound, or return None."""
    if name == "trainyard_collect_files" and not str(value).isdecimal():
        return "must be a whole number of files"
    try:
        size = parse_bytes(value)
    except ValueError as error:
        return str(error)
    if size < 1 and name != "trainyard_collect_free":
        return "must be at least 1"
    return None


class Quota:
    """The bounds of one site, as numbers of bytes and files."""

    def __init__(
        self,
        most_bytes: Any = DEFAULT_BYTES,
        most_files: Any = DEFAULT_FILES,
        keep_free: Any = DEFAULT_FREE_BYTES,
    ) -> None:
        self.bytes = parse_bytes(most_bytes)
        self.files = parse_bytes(most_files)
        self.free = parse_bytes(keep_free)

    @classmethod
    def of_variables(cls, variables: Mapping[str, Any]) -> Quota:
        """Return the bounds of a site. variables: {variable: value}, others are ignored."""
        bounds = []
        for name, default in zip(_NAMES, (DEFAULT_BYTES, DEFAULT_FILES, DEFAULT_FREE_BYTES)):
            value = variables.get(name)
            if value is None:
                value = default
            bounds.append(value)
        return cls(*bounds)

    @classmethod
    def of_host(cls, variables: Mapping[str, Any], host: str) -> Quota:
        """Return the bounds of a site from a task's variables, as a host has them."""
        hosts = variables.get("hostvars") or {}
        values = {}
        if host in hosts:
            values = hosts[host]
        return cls.of_variables({name: plain(values.get(name)) for name in _NAMES})

    def room(self, folder: str | int) -> int:
        """Return the bytes that may still be written to the file system of a directory."""
        status = os.statvfs(folder)
        return max(0, status.f_bavail * status.f_frsize - self.free)

    def refuse(self, used: int, files: int, room: int, more: int = 0) -> None:
        """Raise QuotaError where `more` bytes pass a bound.

        used, files: of the node on the controller, with the new file. room: as `room` gives it.
        """
        if used + more > self.bytes:
            raise QuotaError(
                f"it has sent {format_bytes(used)} of this run; trainyard_collect_bytes allows"
                f" {format_bytes(self.bytes)}"
            )
        if files > self.files:
            raise QuotaError(
                f"it has sent {files - 1} files of this run; trainyard_collect_files allows"
                f" {self.files}"
            )
        if more > room:
            raise QuotaError(
                f"the controller has to keep {format_bytes(self.free)} free"
                " (trainyard_collect_free)"
            )


def measure_usage(run_dir: str, node: str) -> tuple[int, int]:
    """Return (bytes, files) of a node's logs on the controller, of all attempts.

    Holes count: whatever reads a file reads them, too.
    """
    pattern, total, count = safe_names.at_home(node, kept=True), 0, 0
    for attempt in _entries(run_dir):
        if not _ATTEMPT.fullmatch(attempt.name) or not attempt.is_dir(follow_symlinks=False):
            continue
        for entry in _entries(attempt.path):
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode) and pattern.fullmatch(entry.name):
                total, count = total + info.st_size, count + 1
    return total, count


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
