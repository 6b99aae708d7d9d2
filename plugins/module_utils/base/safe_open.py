# SPDX-License-Identifier: Apache-2.0
"""Safe opening of the files that a training has written.

They are opened below its own directory and nowhere else: no link is followed in the path, and only
regular files are read. A training may leave links, pipes and devices where its logs are expected. A
link would show another file, a pipe would never end.
"""

from __future__ import annotations

import contextlib
import os
import stat

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
READ_BYTES = 1 << 20


def open_below(root, relative, flags=FILE):
    """Return a descriptor of a path below the directory descriptor `root`.

    No link in the path is followed. Raise OSError.
    """
    parts = relative.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(f"{relative!r} does not stay inside the attempt")
    folder = os.dup(root)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = deeper
        descriptor = os.open(parts[-1], flags, dir_fd=folder)
    finally:
        os.close(folder)
    if flags == FILE and not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{relative} is not a regular file")
    return descriptor


def open_in(folder, relative):
    """Return `open_below` for a directory's path, which may itself hold links.

    A home directory may. Raise OSError.
    """
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_below(root, relative)
    finally:
        os.close(root)


def read_in(folder, relative, limit, end=False):
    """Return the first `limit` bytes (`end`: the last ones) of a file below folder.

    Raise OSError where no such file may be read.
    """
    with os.fdopen(open_in(folder, relative), "rb") as handle:
        if end:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - limit))
        return handle.read(limit)


def open_regular(path):
    """Return a descriptor of a regular file at a path of our own.

    Its directories may be links, its last part may not. A pipe or a device does not block. Raise
    OSError for all else.
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
    """Return the bytes of a regular file at a path of our own.

    Raise OSError where it is missing or has more than `limit` bytes.
    """
    pieces, size = [], 0
    with open_file(path) as handle:
        # In pieces: Python takes the memory of the whole request at once, before it reads.
        for piece in iter(lambda: handle.read(READ_BYTES), b""):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise OSError(f"{path} is larger than {limit} bytes")
    return b"".join(pieces)


def open_folder(root, relative, make=False):
    """Return a descriptor of a directory below the descriptor `root`.

    relative: '' for root itself. No link is followed. make: missing directories are made with mode
    0700.
    """
    parts = []
    if relative:
        parts = relative.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(f"{relative!r} does not stay inside the directory")
    folder = os.dup(root)
    for part in parts:
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folder)
            deeper = os.open(part, DIRECTORY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = deeper
    return folder


@contextlib.contextmanager
def parent_of(root, relative, make=False):
    """Yield (descriptor of a path's directory, the path's last part).

    It is for changes of a directory. relative: a path below the descriptor `root`.
    """
    folder, _slash, name = relative.rpartition("/")
    if name in ("", ".", ".."):
        raise OSError(f"{relative!r} does not stay inside the directory")
    descriptor = open_folder(root, folder, make)
    try:
        yield descriptor, name
    finally:
        os.close(descriptor)


def open_root(path):
    """Return a descriptor of the directory at a path of our own.

    The path may hold links, as a home directory may.
    """
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
