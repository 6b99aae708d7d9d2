# SPDX-License-Identifier: Apache-2.0
"""The end of this process as after Ctrl-C, for a run that is left to itself."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable
from types import FrameType

from ansible import constants as C

# ansible-core 2.19 hangs where a worker is killed that just hands over a result. A user presses
# Ctrl-C again. Here nobody does.
END_SECONDS = 8.0
# What ansible-playbook returns after Ctrl-C.
INTERRUPTED = 99
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_last_acts: list[Callable[[], None]] = []


def at_end(function: Callable[[], None]) -> None:
    """Call a function at the end of this process, also at one that `interrupt` has to force."""
    atexit.register(function)
    _last_acts.append(function)


def raise_in_worker() -> None:
    """Have Ctrl-C raise KeyboardInterrupt in this worker of Ansible, once.

    Else such a signal ends a worker at once (ansible-core 2.19), and nothing is undone. While
    it is undone, Ansible's further signals do nothing.
    """
    for number in _SIGNALS:
        signal.signal(number, _raise_once)


def _raise_once(_number: int, _frame: FrameType | None) -> None:
    for number in _SIGNALS:
        # Not SIG_IGN, which the programs that this worker starts would inherit.
        signal.signal(number, lambda _number, _frame: None)
    raise KeyboardInterrupt


def interrupt() -> None:
    """End this process as Ctrl-C would, after END_SECONDS at the latest.

    Raises KeyboardInterrupt in the main thread.
    """
    timer = threading.Timer(END_SECONDS, _end_now)
    timer.daemon = True
    timer.start()
    if threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGINT)


def _end_now() -> None:
    """End the workers and this process, and remove Ansible's temporary directory."""
    for function in reversed(_last_acts):
        function()
    for worker in multiprocessing.active_children():
        worker.terminate()
    shutil.rmtree(C.DEFAULT_LOCAL_TMP, ignore_errors=True)  # type: ignore[attr-defined]
    os._exit(INTERRUPTED)
