# SPDX-License-Identifier: Apache-2.0
"""Results of reading checkpoints, kept for as long as their files stay as they are.

A file is the same by device, inode, size, and the times of its content (mtime) and of its inode
(ctime), which no program sets. What is written through a mapping of memory may change without
them, so what is kept is no proof: a copy is verified by its digest.
"""

from __future__ import annotations

import concurrent.futures
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
        # {(what, states of the files): Future of (whether it is kept, the result)}
        self.results, self.lock = {}, threading.Lock()

    def take(self, what, root, paths, read):
        """Return read(), or what it has returned for the same files.

        Two threads that ask at once read once, where the files have settled. what: the name of the
        reading. root: a directory descriptor. paths: of the files below it. What read raises is not
        kept. Raises OSError where a file is not there.
        """
        key, mine = (what, _states(root, paths)), concurrent.futures.Future()
        changed = max((state[-1] for state in key[1]), default=0) / 1e9
        if time.time() - changed <= SETTLED_SECONDS:
            return read()
        with self.lock:
            known = self.results.setdefault(key, mine)
        if known is not mine:
            is_kept, result = known.result()
            if is_kept:
                return result
            return read()
        is_kept, result = False, None
        try:
            result = read()
            is_kept = _states(root, paths) == key[1]
            return result
        finally:
            self._note(key, mine, is_kept, result)

    def put(self, what, root, paths, result):
        """Keep a result that is known without a reading. Arguments as for take. Raises OSError."""
        future = concurrent.futures.Future()
        self._note((what, _states(root, paths)), future, True, result)

    def _note(self, key, future, is_kept, result):
        with self.lock:
            if is_kept:
                self.results[key] = future
            else:
                self.results.pop(key, None)
            while len(self.results) > MOST:
                del self.results[next(iter(self.results))]
        future.set_result((is_kept, result))


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
