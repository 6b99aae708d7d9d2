# SPDX-License-Identifier: Apache-2.0
"""Start of an archive that comes over standard input, without a file on the node's disk.

The disk may be full: then the logs are needed most. `python3 -I -c BOOT VERB...` executes this
file, which reads the archive and executes it (plugin_utils/agent/zipapp.py has BOOT). A module of
Ansible comes as a program that calls run_module (plugin_utils/agent/module_payload.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import tempfile
import traceback

# The oldest Python that the product's modules run on.
LEAST_VERSION = (3, 8)


def open_in_memory():
    """Return a descriptor of an empty file that has no name, in memory if that is possible.

    memfd_create is missing in a Python that was built for an old C library. Raises OSError.
    """
    with contextlib.suppress(AttributeError, OSError):
        return os.memfd_create("agent.pyz")
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir="/dev/shm") as handle:
        return os.dup(handle.fileno())
    with tempfile.TemporaryFile() as handle:
        return os.dup(handle.fileno())


def run_module(archive, arguments, module_fqn):
    """Execute a module in an archive. arguments: JSON. module_fqn: the module's full name.

    An error that it does not handle becomes a result that fails the task.
    """
    sys.argv = [module_fqn, arguments]
    try:
        if sys.version_info < LEAST_VERSION:
            raise RuntimeError("below the minimum of Python version 3.8: " + sys.version.split()[0])
        _leave_lost_directory()
        with os.fdopen(open_in_memory(), "wb") as handle:
            handle.write(archive)
            handle.flush()
            runpy.run_path(f"/proc/self/fd/{handle.fileno()}", run_name="__main__")
    except Exception as error:
        result = {"changed": False, "failed": True, "exception": traceback.format_exc()}
        result["msg"] = f"Module failed: {type(error).__name__}: {error}"
        print("\n" + json.dumps(result))
        sys.exit(1)


def _leave_lost_directory():
    """Leave a working directory that is gone or not readable: programs would fail there."""
    try:
        is_there = os.access(os.getcwd(), os.R_OK)
    except OSError:
        is_there = False
    if not is_there:
        os.chdir("/")


def main():
    """Read the length of the archive, a line end and the archive, and execute it."""
    stream, descriptor = sys.stdin.buffer, open_in_memory()
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(stream.read(int(stream.readline())))
        handle.flush()
        runpy.run_path(f"/proc/self/fd/{descriptor}", run_name="__main__")


if __name__ == "__main__":
    main()
