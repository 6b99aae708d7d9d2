# SPDX-License-Identifier: Apache-2.0
"""Start of an archive that comes over standard input, without a file on the node's disk.

The disk may be full: then the logs are needed most. `python3 -I -c BOOT VERB...` executes this
file, which reads the archive and executes it (plugin_utils/agent/zipapp.py has BOOT). A module of
Ansible comes as a program that calls run_module (plugin_utils/agent/module_payload.py).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import traceback


def open_in_memory():
    """Return a descriptor of an empty file in memory that has no name.

    memfd_create is missing in a Python that was built for an old C library.
    """
    try:
        return os.memfd_create("agent.pyz")
    except (AttributeError, OSError):
        with tempfile.TemporaryFile(dir="/dev/shm") as handle:
            return os.dup(handle.fileno())


def run_module(archive, arguments):
    """Execute a module in an archive. arguments: JSON.

    An error that it does not handle becomes a result that fails the task.
    """
    descriptor = open_in_memory()
    sys.argv = ["module", arguments]
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(archive)
        handle.flush()
        try:
            runpy.run_path(f"/proc/self/fd/{descriptor}", run_name="__main__")
        except Exception as error:
            words = f"Module failed: {type(error).__name__}: {error}"
            result = {"failed": True, "msg": words, "exception": traceback.format_exc()}
            print("\n" + json.dumps(result))
            sys.exit(1)


def main():
    """Read the length of the archive, a line end and the archive, and execute it."""
    stream, descriptor = sys.stdin.buffer, open_in_memory()
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(stream.read(int(stream.readline())))
        handle.flush()
        runpy.run_path(f"/proc/self/fd/{descriptor}", run_name="__main__")


if __name__ == "__main__":
    main()
