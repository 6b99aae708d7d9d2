# SPDX-License-Identifier: Apache-2.0
"""The text that a node's login shell prints before any program does.

rsync and the stream of logs read a program's output over a plain connection of SSH. Text that a
file such as ~/.bashrc prints there makes that output unreadable, while Ansible's own tasks mostly
pass over it.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from . import log_receiver

SECONDS = 20.0
BYTES = 4096


def read(connection: Any) -> str:
    """Return what `ssh node true` prints, over the connection that rsync uses, '' for nothing.

    connection: Ansible's own. '' also where it is not of type ssh, or asks for a password: nothing
    is known then, and the next task says what is wrong.
    """
    if getattr(connection, "transport", "") != "ssh":
        return ""
    argv, host = log_receiver.ssh_command(connection)
    return read_from([*argv, host, "true"])


def read_from(argv: Sequence[str], seconds: float = SECONDS) -> str:
    """Return the beginning of a command's standard output as text, '' where it cannot be run.

    An endless output is cut, and its command is ended.
    """
    output, deadline = b"", time.monotonic() + seconds
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    if process.stdout is None:
        return ""
    try:
        while len(output) < BYTES:
            remaining = max(0.0, deadline - time.monotonic())
            if not select.select([process.stdout], [], [], remaining)[0]:
                break
            piece = os.read(process.stdout.fileno(), BYTES)
            if not piece:
                break
            output += piece
    finally:
        process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
        process.wait()
    return output[:BYTES].decode("utf-8", "replace").strip()
