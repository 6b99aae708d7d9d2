# SPDX-License-Identifier: Apache-2.0
"""Locks between processes: flock(2) on a file.

The kernel removes such a lock when its process ends, however it ends. A lock on a network file
system may have no effect between machines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

POLL_SECONDS = 0.25
# A link or a pipe at a lock's path is refused.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Locked(Exception):
    """Another process has held a lock for as long as this one was ready to wait."""


def open_lock(path):
    """Return a descriptor of a lock's file, which is made with mode 0600. Raises OSError."""
    return os.open(path, _FLAGS, 0o600)


def try_lock(descriptor):
    """Take the lock of an open file or directory, and return whether it was free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(descriptor, seconds=None):
    """Take the lock of an open file or directory.

    seconds: the longest wait, None for no limit. Raises Locked.
    """
    if seconds is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    deadline = time.monotonic() + seconds
    while not try_lock(descriptor):
        if time.monotonic() > deadline:
            raise Locked
        time.sleep(POLL_SECONDS)


def unlock(descriptor):
    """Give a lock back before its file is closed."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def lock_file(path, seconds=None):
    """Hold the lock of a file in the block, which gets the file's descriptor.

    The file is made where it is missing, and stays. seconds: as wait_for_lock. Raises Locked and
    OSError.
    """
    descriptor = open_lock(path)
    try:
        wait_for_lock(descriptor, seconds)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(path):
    """Return whether a process holds the lock of a file, or may hold it.

    A file system that cannot tell counts as locked. Raises OSError where the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # A shared lock, so that two that ask at once do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
