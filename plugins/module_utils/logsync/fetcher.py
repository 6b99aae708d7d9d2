# SPDX-License-Identifier: Apache-2.0
"""Pull named files from a node with rsync, without a name on a command line. Controller only.

The names go to rsync over standard input, ended by NUL. The sender is not trusted: rsync runs
inside the destination, which was opened without following links; it takes regular files only; no
file grows beyond what the node announced; what arrives is counted while it arrives. What rsync
leaves behind that was not asked for is removed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import time

from ..base import processes, safe_names
from ..base.safe_open import open_folder, open_root
from ..base.sanitize import printable
from ..config import quota

SILENCE_SECONDS = 60  # without a byte, after which rsync gives up
LEAST_SECONDS = 900  # that every copy may take
LEAST_RATE = 512 << 10  # bytes in a second, below which a large copy takes too long
GROWTH = 64 << 20  # bytes that logs may have grown since they were looked at
LOOK_SECONDS = 0.25
# Goes into the directory that is open as a descriptor, bounds the size of a file, and becomes
# rsync.
_ENTER = (
    "import os, resource, sys; os.fchdir(int(sys.argv[1])); os.umask(0o077); most ="
    " int(sys.argv[2]); resource.setrlimit(resource.RLIMIT_FSIZE, (most, most));"
    " os.execvp(sys.argv[3], sys.argv[3:])"
)
_FIXED = (
    "rsync", "--files-from=-", "--from0", "--protect-args", "--times", "--chmod=F600,D700", "--no-recursive", "--no-implied-dirs",
    "--no-links", "--no-devices", "--no-specials", "--no-perms", "--no-owner", "--no-group", "--no-motd",
)  # fmt: skip


class FetchError(Exception):
    """The copy could not be made as it was asked for; the message is safe to show."""


class Cut(FetchError):
    """The node passed a bound and was cut off; what had come is kept where rsync keeps it."""


def shell_words(argv):
    """Return the words of ssh as rsync's --rsh takes them: split at blanks, in single quotes, a
    single quote doubled.
    """
    if any(not word or "\0" in word for word in argv):
        raise FetchError("a word of ssh is empty")
    return " ".join("'{}'".format(word.replace("'", "''")) for word in argv)


def source_of(host, path):
    """Return rsync's source: a directory on a host, or on this machine where host is None."""
    if (
        not isinstance(path, str)
        or not path.isprintable()
        or not path
        or path.startswith("-")
        or ".." in path.split("/")
    ):
        raise FetchError(f"the directory {ascii(path)[:200]} cannot be read from a node")
    if host is None:
        return os.path.join(os.path.expanduser("~"), path).rstrip("/") + "/"
    if (
        not host
        or host.startswith("-")
        or any(char in host for char in " /@")
        or not host.isprintable()
    ):
        raise FetchError(f"{ascii(host)[:200]} is not a machine's name or address")
    place = path.rstrip("/") + "/"
    return "{}:{}".format(
        f"[{host}]" if ":" in host else host,
        place if place.startswith("/") else "./" + place,
    )


def rsync_argv(shell, source, most, options=()):
    """Return rsync's argv; shell: the words of ssh, or None for this machine. most: bytes that no
    file is larger than.
    """
    words = [*_FIXED, "--timeout=%d" % SILENCE_SECONDS, "--max-size=%d" % most, *options]
    return [*words, *(["--rsh=" + shell_words(shell)] if shell else []), "--", source, "./"]


def environment():
    """Return this process's environment without what would change rsync's options."""
    return dict(
        {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")},
        LC_ALL="C",
    )


def open_destination(root, into):
    """Return a descriptor of the directory `into` below an attempt's directory at home; both are
    made for this user alone.
    """
    made = os.path.dirname(os.path.abspath(root))
    os.makedirs(made, mode=0o700, exist_ok=True)
    above = open_root(made)
    try:
        here = open_folder(above, os.path.basename(os.path.abspath(root)), make=True)
    finally:
        os.close(above)
    try:
        return open_folder(here, safe_names.check(into), make=True)
    finally:
        os.close(here)


def listed(folder):
    """Return {path: (kind, bytes)} of everything below a directory descriptor but directories;
    kind: 'f' for a regular file, else '?'.
    """
    found = {}
    for where, folders, names, here in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        for name in [*names, *folders]:
            with contextlib.suppress(FileNotFoundError):
                info = os.stat(name, dir_fd=here, follow_symlinks=False)
                if not stat.S_ISDIR(info.st_mode):
                    kind = "f" if stat.S_ISREG(info.st_mode) else "?"
                    found[os.path.normpath(os.path.join(where, name))] = (kind, info.st_size)
    return found


def remove(folder, path):
    """Remove an entry below a directory descriptor, following no link."""
    head, _slash, name = path.rpartition("/")
    with contextlib.suppress(OSError):
        here = open_folder(folder, head)
        try:
            os.unlink(name, dir_fd=here)
        finally:
            os.close(here)


def bytes_of(entries):
    """Return how many bytes the regular files of `listed` have."""
    return sum(size for kind, size in entries.values() if kind == "f")


def fetch(shell, source, root, into, sizes, bounds, options=(), password=None, seconds=None):
    """Pull files into `into` below `root`; return the names that are there now.

    shell: the words of ssh, or None. source: as `source_of` gives it. sizes: {name below the
    source: bytes as the node announced}. bounds: a quota.Quota. password: of the login, given to
    sshpass. Raises Cut, FetchError, UnsafeName, OSError.
    """
    for name, size in sizes.items():
        safe_names.check(name)
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 50:
            raise FetchError(f"{ascii(name)} has no size")
    folder = open_destination(root, into)
    try:
        before = listed(folder)
        for path, (kind, _size) in before.items():
            if kind != "f":
                remove(folder, path)
        for parent in {name.rpartition("/")[0] for name in sizes}:
            os.close(open_folder(folder, parent, make=True))
        allowed = sum(sizes.values())
        if len(sizes) > bounds.files or allowed > bounds.bytes:
            text = (
                "%d files with %s are more than the site takes (trainyard_collect_files,"
                " trainyard_collect_bytes)"
            )
            raise Cut(text % (len(sizes), quota.words(allowed)))
        room = min(allowed + GROWTH, bounds.bytes, bounds.room(folder))
        if allowed > room:
            raise Cut(
                f"the controller has to keep {quota.words(bounds.free)} free"
                " (trainyard_collect_free)"
            )
        largest = min(max(sizes.values(), default=0) + GROWTH, bounds.bytes)
        seconds = seconds or LEAST_SECONDS + allowed // LEAST_RATE
        argv = rsync_argv(shell, source, largest, options)
        try:
            _run(
                argv,
                folder,
                largest,
                sizes,
                (bytes_of(before) + room, len(before) + len(sizes)),
                bounds,
                password,
                seconds,
            )
        finally:
            after = listed(folder)
            for path, (kind, _size) in after.items():
                if kind != "f" or (path not in sizes and path not in before):
                    remove(folder, path)
        return sorted(path for path in listed(folder) if path in sizes)
    finally:
        os.close(folder)


def _run(argv, folder, largest, names, most, bounds, password, seconds):
    """Run rsync in an open directory and watch what arrives. most: (bytes, files) that may lie
    there.
    """
    read = None
    words = [sys.executable, "-I", "-c", _ENTER, str(folder), str(largest), *argv]
    if password is not None:
        read, write = os.pipe()
        os.write(write, password.encode() + b"\n")
        os.close(write)
        words = ["sshpass", "-d%d" % read, *words]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        # "./" before each name: rsync takes a line that begins with # or ; for a comment.
        given.write(b"".join(b"./" + os.fsencode(name) + b"\0" for name in sorted(names)))
        given.seek(0)
        try:
            process = subprocess.Popen(
                words,
                stdin=given,
                stdout=said,
                stderr=said,
                env=environment(),
                pass_fds=[folder] + ([read] if read is not None else []),
                start_new_session=True,
            )
        finally:
            if read is not None:
                os.close(read)
        try:
            _watch(process, folder, most, bounds, time.monotonic() + seconds)
        finally:
            processes.end_group(process)
        if process.returncode:
            said.seek(max(0, said.seek(0, os.SEEK_END) - 4000))
            lines = [
                line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()
            ]
            raise FetchError(
                printable(
                    "rsync ended with %d: %s"
                    % (process.returncode, " | ".join(lines[-4:]) or "no reason"),
                    limit=1000,
                )
            )


def _watch(process, folder, most, bounds, deadline):
    """Wait for rsync; raise Cut where what has arrived passes a bound."""
    waited = 0.0
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise Cut("the copy did not end in time; it goes on at the next collection")
        there = listed(folder)
        if bytes_of(there) > most[0] or len(there) > most[1] + 1:
            raise Cut("it sends more than it announced")
        if not bounds.room(folder):
            raise Cut(
                f"the controller has to keep {quota.words(bounds.free)} free"
                " (trainyard_collect_free)"
            )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(0.02 + waited, LOOK_SECONDS))
        waited += 0.02
