# SPDX-License-Identifier: Apache-2.0
"""Lock for the one process that copies a node's logs to an attempt's directory.

That is a stream, or the collection at the end.
"""

from __future__ import annotations

import contextlib
import os
import time

from ansible_collections.trainyard.cluster.plugins.module_utils.base.locks import (
    open_lock,
    try_lock,
)

PREFIX = ".stream."


class Busy(Exception):
    """Another process copies this node's logs into this directory."""


class Lock:
    """Lock of one node's logs until close() or the end of the process.

    seconds: limit of the wait for another holder. Raises Busy, OSError.
    """

    def __init__(self, directory: str, node: str, seconds: float = 0.0) -> None:
        self.path = os.path.join(directory, PREFIX + node)
        deadline = time.monotonic() + seconds
        self.descriptor = self._try()
        while self.descriptor is None and time.monotonic() < deadline:
            time.sleep(0.1)
            self.descriptor = self._try()
        if self.descriptor is None:
            raise Busy(f"another process copies the logs of {node} to the controller")

    def _try(self) -> int | None:
        descriptor = open_lock(self.path)
        try:
            # Another inode: the process that had the lock has removed this file meanwhile.
            if try_lock(descriptor) and os.stat(self.path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except OSError:
            pass
        os.close(descriptor)
        return None

    def close(self) -> None:
        """Release the lock and remove its file."""
        if self.descriptor is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            os.close(self.descriptor)
            self.descriptor = None
