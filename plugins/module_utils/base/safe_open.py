# SPDX-License-Identifier: Apache-2.0
"""Open what a training has written, below its own directory and nowhere else: no link is followed
on the way, and only regular files are read.

A training may leave links, pipes and devices where its logs are expected. A link would show another
file, a pipe would never end.
"""

from __future__ import annotations

import contextlib
import os
import stat

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
READ_BYTES = 1 << 20


def open_below(root, relative, flags=FILE):
    """Open a path below the directory descriptor `root`, following no link on the way; return the
    descriptor, raise OSError.
    """
    parts = relative.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(f"{relative!r} does not stay inside the attempt")
    here = os.dup(root)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, DIRECTORY, dir_fd=here)
            os.close(here)
            here = deeper
        found = os.open(parts[-1], flags, dir_fd=here)
    finally:
        os.close(here)
    if flags == FILE and not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(f"{relative} is not a regular file")
    return found


def open_in(folder, relative):
    """`open_below` for a folder's path, which may itself hold links (a home directory does); return
    the descriptor, raise OSError.
    """
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_below(root, relative)
    finally:
        os.close(root)


def read_in(folder, relative, limit, end=False):
    """The first `limit` bytes (`end`: the last ones) of a file below folder; raise OSError where
    there is none that may be read.
    """
    with os.fdopen(open_in(folder, relative), "rb") as handle:
        if end:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - limit))
        return handle.read(limit)


def open_regular(path):
    """Return a descriptor of a regular file at a path of our own whose directories may be links;
    raise OSError for all else.

    The last part is no link, and a pipe or a device is not waited for.
    """
    descriptor = os.open(path, FILE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def open_file(path):
    """Return `open_regular` as an open binary file."""
    return os.fdopen(open_regular(path), "rb")


def read_file(path, limit):
    """Return the bytes of a regular file at a path of our own; raise OSError where there is none,
    or one of more than `limit` bytes.
    """
    pieces, size = [], 0
    with open_file(path) as handle:
        # piece by piece: Python takes the memory of all that it is asked for at once, before it
        # reads
        for piece in iter(lambda: handle.read(READ_BYTES), b""):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise OSError(f"{path} is larger than {limit} bytes")
    return b"".join(pieces)


def open_folder(root, relative, make=False):
    """Return a descriptor of a directory below the descriptor `root`; '' is root itself. No link is
    followed, missing ones are made with mode 0700.
    """
    parts = relative.split("/") if relative else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(f"{relative!r} does not stay inside the directory")
    here = os.dup(root)
    for part in parts:
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=here)
            deeper = os.open(part, DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = deeper
    return here


@contextlib.contextmanager
def parent_of(root, relative, make=False):
    """Yield (descriptor of the directory that a path below `root` lies in, its last part), for what
    changes a directory.
    """
    folder, _slash, name = relative.rpartition("/")
    if name in ("", ".", ".."):
        raise OSError(f"{relative!r} does not stay inside the directory")
    here = open_folder(root, folder, make)
    try:
        yield here, name
    finally:
        os.close(here)


def open_root(path):
    """Return a descriptor of the directory at a path of our own, which may hold links (a home
    directory does).
    """
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
