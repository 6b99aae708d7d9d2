# SPDX-License-Identifier: Apache-2.0
"""The end of whoever reads our output through a pipe, such as `| head`."""

from __future__ import annotations

import os
import select
import stat

STDOUT, STDERR = 1, 2


def is_broken(descriptor: int) -> bool:
    """Return whether a descriptor is a pipe that nobody reads any more."""
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLERR for _descriptor, event in poll.poll(0))


def silence(descriptor: int) -> None:
    """Let everything that is written to a descriptor vanish, so that no write fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)
