# SPDX-License-Identifier: Apache-2.0
"""Pull of named files from a node with rsync, without a name on a command line.

The names go to rsync over standard input, ended by NUL. The sender is not trusted:

- rsync runs inside the destination, which was opened without following links
- it takes regular files only
- no file grows beyond what the node announced
- what arrives is counted while it arrives

What rsync leaves behind without a request is removed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from typing import IO

from ansible_collections.trainyard.cluster.plugins.module_utils.base import processes, safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.base.safe_open import (
    open_folder,
    open_root,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_bytes

from ..config import quota

SILENCE_SECONDS = 60  # without a byte, after which rsync gives up
LEAST_SECONDS = 900  # that every copy may take
LEAST_RATE = 512 << 10  # bytes in a second, below which a large copy takes too long
GROWTH = 64 << 20  # bytes that logs may have grown since they were looked at
LOOK_SECONDS = 0.25
# A program that enters the directory that is open as a descriptor, bounds the size of a file, and
# becomes rsync.
_ENTER = (
    "import os, resource, sys; os.fchdir(int(sys.argv[1])); os.umask(0o077); most ="
    " int(sys.argv[2]); resource.setrlimit(resource.RLIMIT_FSIZE, (most, most));"
    " os.execvp(sys.argv[3], sys.argv[3:])"
)
_FIXED = (
    "rsync",
    "--files-from=-",
    "--from0",
    "--protect-args",
    "--times",
    "--chmod=F600,D700",
    "--no-recursive",
    "--no-implied-dirs",
    "--no-links",
    "--no-devices",
    "--no-specials",
    "--no-perms",
    "--no-owner",
    "--no-group",
    "--no-motd",
)


# The next attempt of the run may be starting on the node.
_SENDER = "nice -n 19 rsync"
# The words of a full disk. The sender on the node writes nothing.
_NO_ROOM = ("No space left on device", "Disk quota exceeded")

Entries = dict[str, tuple[str, int]]  # {path: (kind, bytes)}. kind: 'f', a regular file, or '?'


class FetchError(Exception):
    """The copy could not be made as requested.

    The message is safe to show.
    """


class BoundExceeded(FetchError):
    """The node passed a bound and was cut off.

    What had arrived is kept where rsync keeps it.
    """


def shell_words(argv: Sequence[str]) -> str:
    """Return ssh's argv as one text for rsync's --rsh.

    rsync splits it at blanks. A word stands in single quotes, and a single quote in it is doubled.
    """
    if any(not word or "\0" in word for word in argv):
        raise FetchError("a word of ssh is empty")
    return " ".join("'" + word.replace("'", "''") + "'" for word in argv)


def source_of(host: str | None, path: str) -> str:
    """Return rsync's source: a directory on a host (None: on this machine)."""
    if not _is_directory_name(path):
        raise FetchError(f"the directory {ascii(path)[:200]} cannot be read from a node")
    if host is None:
        return os.path.join(os.path.expanduser("~"), path).rstrip("/") + "/"
    if not _is_host_name(host):
        raise FetchError(f"{ascii(host)[:200]} is not a machine's name or address")
    if ":" in host:
        host = f"[{host}]"
    directory = path.rstrip("/") + "/"
    if not directory.startswith("/"):
        directory = "./" + directory
    return f"{host}:{directory}"


def _is_directory_name(path: object) -> bool:
    return (
        isinstance(path, str)
        and path.isprintable()
        and bool(path)
        and not path.startswith("-")
        and ".." not in path.split("/")
    )


def _is_host_name(host: str) -> bool:
    return (
        bool(host)
        and not host.startswith("-")
        and not any(char in host for char in " /@")
        and host.isprintable()
    )


def rsync_argv(
    shell: Sequence[str] | None, source: str, most: int, options: Sequence[str] = ()
) -> list[str]:
    """Return rsync's argv.

    shell: ssh's argv, or None for this machine. most: bytes that no file is larger than.
    """
    argv = [*_FIXED, f"--timeout={SILENCE_SECONDS}", f"--max-size={most}", *options]
    if shell:
        argv += ["--rsh=" + shell_words(shell), "--rsync-path=" + _SENDER]
    return [*argv, "--", source, "./"]


def environment() -> dict[str, str]:
    """Return this process's environment without what would change rsync's options."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    variables["LC_ALL"] = "C"
    return variables


def open_destination(root: str, into: str) -> int:
    """Return a descriptor of the directory `into` below an attempt's directory.

    Both directories are made for this user alone.
    """
    parent = os.path.dirname(os.path.abspath(root))
    os.makedirs(parent, mode=0o700, exist_ok=True)
    parent_descriptor = open_root(parent)
    try:
        attempt = open_folder(parent_descriptor, os.path.basename(os.path.abspath(root)), make=True)
    finally:
        os.close(parent_descriptor)
    try:
        return open_folder(attempt, safe_names.check(into), make=True)
    finally:
        os.close(attempt)


def list_files(folder: int) -> Entries:
    """Return {path: (kind, bytes)} of the files below a directory descriptor.

    kind: 'f' for a regular file, else '?'.
    """
    entries: Entries = {}
    for parent, folders, names, descriptor in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        for name in [*names, *folders]:
            with contextlib.suppress(FileNotFoundError):
                info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    continue
                kind = "?"
                if stat.S_ISREG(info.st_mode):
                    kind = "f"
                entries[os.path.normpath(os.path.join(parent, name))] = (kind, info.st_size)
    return entries


def remove(folder: int, path: str) -> None:
    """Remove an entry below a directory descriptor, following no link."""
    head, _slash, name = path.rpartition("/")
    with contextlib.suppress(OSError):
        parent = open_folder(folder, head)
        try:
            os.unlink(name, dir_fd=parent)
        finally:
            os.close(parent)


def sum_bytes(entries: Entries) -> int:
    """Return the bytes of all regular files of `list_files`."""
    return sum(size for kind, size in entries.values() if kind == "f")


def fetch(
    shell: Sequence[str] | None,
    source: str,
    root: str,
    into: str,
    sizes: Mapping[str, int],
    bounds: quota.Quota,
    options: Sequence[str] = (),
    password: str | None = None,
    seconds: float | None = None,
) -> list[str]:
    """Pull files into `into` below `root` and return the names that are there now.

    shell: ssh's argv, or None. source: as `source_of` gives it. sizes: {name below the source:
    bytes as the node announced}. bounds: a quota.Quota. password: of the login, given to sshpass.
    seconds: limit of the copy. Raises BoundExceeded, FetchError, UnsafeName, OSError.
    """
    _check_sizes(sizes)
    folder = open_destination(root, into)
    try:
        before = list_files(folder)
        for path, (kind, _size) in before.items():
            if kind != "f":
                remove(folder, path)
        for parent in {name.rpartition("/")[0] for name in sizes}:
            os.close(open_folder(folder, parent, make=True))
        room = _room(folder, sizes, bounds)
        largest = min(max(sizes.values(), default=0) + GROWTH, bounds.bytes)
        seconds = seconds or LEAST_SECONDS + sum(sizes.values()) // LEAST_RATE
        argv = rsync_argv(shell, source, largest, options)
        most = (sum_bytes(before) + room, len(before) + len(sizes))
        try:
            _run_rsync(argv, folder, largest, sizes, most, bounds, password, seconds)
        finally:
            _remove_unrequested(folder, {*sizes, *before})
        return sorted(path for path in list_files(folder) if path in sizes)
    finally:
        os.close(folder)


def _check_sizes(sizes: Mapping[str, int]) -> None:
    """Raise UnsafeName or FetchError for a name or a size that cannot be used."""
    for name, size in sizes.items():
        safe_names.check(name)
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 50:
            raise FetchError(f"{ascii(name)} has no size")


def _room(folder: int, sizes: Mapping[str, int], bounds: quota.Quota) -> int:
    """Return the bytes that may arrive, or raise BoundExceeded where the files pass a bound."""
    allowed = sum(sizes.values())
    if len(sizes) > bounds.files or allowed > bounds.bytes:
        raise BoundExceeded(
            f"{len(sizes)} files with {format_bytes(allowed)} are more than the site takes"
            " (trainyard_collect_files, trainyard_collect_bytes)"
        )
    room = min(allowed + GROWTH, bounds.bytes, bounds.room(folder))
    if allowed > room:
        raise _disk_full(bounds)
    return room


def _disk_full(bounds: quota.Quota) -> BoundExceeded:
    return BoundExceeded(
        f"the controller has to keep {format_bytes(bounds.free)} free (trainyard_collect_free)"
    )


def _remove_unrequested(folder: int, expected: Collection[str]) -> None:
    """Remove what is not a regular file, and every file that is not in `expected`."""
    for path, (kind, _size) in list_files(folder).items():
        if kind != "f" or path not in expected:
            remove(folder, path)


def _run_rsync(
    argv: Sequence[str],
    folder: int,
    largest: int,
    names: Collection[str],
    most: tuple[int, int],
    bounds: quota.Quota,
    password: str | None,
    seconds: float,
) -> None:
    """Run rsync in an open directory and watch what arrives.

    most: (bytes, files) that the directory may hold.
    """
    argv = [sys.executable, "-I", "-c", _ENTER, str(folder), str(largest), *argv]
    descriptors, password_pipe = [folder], None
    if password is not None:
        password_pipe, write = os.pipe()
        os.write(write, password.encode() + b"\n")
        os.close(write)
        descriptors.append(password_pipe)
        argv = ["sshpass", f"-d{password_pipe}", *argv]
    with tempfile.TemporaryFile() as name_list, tempfile.TemporaryFile() as output:
        # "./" before each name: rsync takes a line that begins with # or ; for a comment.
        name_list.write(b"".join(b"./" + os.fsencode(name) + b"\0" for name in sorted(names)))
        name_list.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                stdin=name_list,
                stdout=output,
                stderr=output,
                env=environment(),
                pass_fds=descriptors,
                start_new_session=True,
            )
        finally:
            if password_pipe is not None:
                os.close(password_pipe)
        try:
            _watch(process, folder, most, bounds, time.monotonic() + seconds)
        finally:
            processes.end_group(process)
        if process.returncode:
            raise FetchError(_failure_text(process.returncode, output))


def _failure_text(code: int, output: IO[bytes]) -> str:
    """Return rsync's exit code and the last lines of its output, an open binary file."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - 4000))
    text = output.read().decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    full = next((words for words in _NO_ROOM if words in text), None)
    if full:
        return f"no room on the controller: {full}"
    reason = " | ".join(lines[-4:]) or "no reason"
    return printable(f"rsync ended with {code}: {reason}", limit=1000)


def _watch(
    process: subprocess.Popen[bytes],
    folder: int,
    most: tuple[int, int],
    bounds: quota.Quota,
    deadline: float,
) -> None:
    """Wait for rsync, or raise BoundExceeded where what has arrived passes a bound."""
    waited = 0.0
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise BoundExceeded("the copy did not end in time; it goes on at the next collection")
        entries = list_files(folder)
        if sum_bytes(entries) > most[0] or len(entries) > most[1] + 1:
            raise BoundExceeded("it sends more than it announced")
        if not bounds.room(folder):
            raise _disk_full(bounds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(0.02 + waited, LOOK_SECONDS))
        waited += 0.02
