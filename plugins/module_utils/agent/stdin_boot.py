# SPDX-License-Identifier: Apache-2.0
"""Start of an archive that comes over standard input, without a file on the node's disk.

The disk may be full: then the logs are needed most. `python3 -I -c BOOT VERB...` executes this
file, which reads the archive and executes it (plugin_utils/agent/zipapp.py has BOOT).
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile


def open_in_memory():
    """Return a descriptor of an empty file in memory that has no name.

    memfd_create is missing in a Python that was built for an old C library.
    """
    try:
        return os.memfd_create("agent.pyz")
    except (AttributeError, OSError):
        with tempfile.TemporaryFile(dir="/dev/shm") as handle:
            return os.dup(handle.fileno())


def main():
    """Read the length of the archive, a line end and the archive, and execute it."""
    stream, descriptor = sys.stdin.buffer, open_in_memory()
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(stream.read(int(stream.readline())))
        handle.flush()
        runpy.run_path(f"/proc/self/fd/{descriptor}", run_name="__main__")


if __name__ == "__main__":
    main()
