# SPDX-License-Identifier: Apache-2.0
"""What was read of checkpoints, kept for as long as their files stay as they are.

A file is the same by device, inode, size, and the times of its content (mtime) and of its inode
(ctime), which no program can set.
"""

from __future__ import annotations

import os
import threading
import time

from ..base.safe_open import open_below

MOST = 256
# A file that was changed so shortly before it was read may change again at the same time by its
# file system's clock.
SETTLED_SECONDS = 1.0


class Readings:
    """Results of readings, for all threads of a program."""

    def __init__(self):
        self.results, self.lock = {}, threading.Lock()

    def take(self, what, root, paths, read):
        """Return read(), or what it has returned for the same files.

        what: the name of the reading. root: a directory descriptor. paths: of the files below it.
        What read raises is not kept. Raises OSError where a file is not there.
        """
        key = (what, _states(root, paths))
        with self.lock:
            if key in self.results:
                return self.results[key]
        began, result = time.time(), read()
        changed = max((state[-1] for state in key[1]), default=0) / 1e9
        if began - changed > SETTLED_SECONDS and _states(root, paths) == key[1]:
            with self.lock:
                self.results[key] = result
                while len(self.results) > MOST:
                    del self.results[next(iter(self.results))]
        return result


def _states(root, paths):
    """Return ((path, device, inode, bytes, mtime, ctime), ...) of files below a descriptor."""
    states = []
    for path in sorted(paths):
        handle = open_below(root, path)
        try:
            info = os.fstat(handle)
        finally:
            os.close(handle)
        times = (info.st_mtime_ns, info.st_ctime_ns)
        states.append((path, info.st_dev, info.st_ino, info.st_size, *times))
    return tuple(states)
