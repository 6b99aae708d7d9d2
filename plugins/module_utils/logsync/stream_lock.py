# SPDX-License-Identifier: Apache-2.0
"""Who brings a node's logs into an attempt's directory at home has it alone: a stream, or the
collection at the end. Controller only.
"""

from __future__ import annotations

import fcntl
import os
import time

PREFIX = ".stream."
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Busy(Exception):
    """Another process brings this node's logs into this directory."""


class Lock:
    """Held from its making until close(); ends with the process. seconds: how long another holder
    is waited for. Raises Busy, OSError.
    """

    def __init__(self, directory, node, seconds=0.0):
        self.path, deadline = os.path.join(directory, PREFIX + node), time.monotonic() + seconds
        self.descriptor = self._try()
        while self.descriptor is None and time.monotonic() < deadline:
            time.sleep(0.1)
            self.descriptor = self._try()
        if self.descriptor is None:
            raise Busy(f"another process brings the logs of {node} home")

    def _try(self):
        descriptor = os.open(self.path, _FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (
                os.stat(self.path).st_ino == os.fstat(descriptor).st_ino
            ):  # else it was removed meanwhile by who held it
                return descriptor
        except OSError:
            pass
        os.close(descriptor)
        return None

    def close(self):
        """Let others in; nothing of the lock stays in the directory."""
        if self.descriptor is not None:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
            os.close(self.descriptor)
            self.descriptor = None
