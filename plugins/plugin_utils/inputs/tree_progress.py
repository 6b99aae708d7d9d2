# SPDX-License-Identifier: Apache-2.0
"""Progress of a tree on its way to a node: a line now and then, from the size of what is there.

The node is asked by `du`, beside the module or the rsync that does the work. What it answers is a
number or is not used.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import (
    format_bytes,
    format_duration,
)

# Seconds between two lines of one node, at least. With more nodes it is one second for each.
INTERVAL_SECONDS = 10
# Seconds that a look may take. One of a tree of millions of files takes long.
LOOK_SECONDS = 60
_SIZE = re.compile(rb"(\d{1,18})\t")


def describe(tree: Mapping[str, Any], there: int, before: int | None, seconds: float) -> str:
    """Return how far a tree has come, as text.

    there, before: bytes now and at the look before, None at the first look: an earlier try may have
    brought a part. seconds: between the two.
    """
    size = max(tree["bytes"], 1)
    there = min(there, size)
    part = int(100 * there / size)
    text = (
        f"{tree['kind']} {tree['name']}: {format_bytes(there)} of {format_bytes(size)} ({part} %)"
    )
    if before is None:
        return text
    rate = (there - before) / seconds
    if rate <= 0:
        return f"{text}, nothing came in {format_duration(seconds)}"
    left = format_duration((size - there) / rate)
    return f"{text}, {format_bytes(rate)}/s, {left} left"


class Progress:
    """Looks at a node while a tree comes there, as a context.

    tree: its kind, name and bytes. command: prints the bytes that are there, as `du -sb` does.
    show: takes a line. interval: seconds between two looks.
    """

    def __init__(
        self,
        tree: Mapping[str, Any],
        command: Sequence[str],
        show: Callable[[str], None],
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._tree, self._command, self._show, self._interval = tree, command, show, interval
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._over.set()
        process = self._process
        if process is not None:
            process.kill()
        self._thread.join()

    def _follow(self) -> None:
        at, before = time.monotonic(), None
        while not self._over.wait(self._interval):
            there, now = self._look(), time.monotonic()
            if there is None or self._over.is_set():
                continue
            self._show(describe(self._tree, there, before, now - at))
            at, before = now, there

    def _look(self) -> int | None:
        """Return the bytes that are on the node, None where it does not say."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            with self._process as process:
                if self._over.is_set():
                    process.kill()
                timer = threading.Timer(LOOK_SECONDS, process.kill)
                timer.start()
                try:
                    text = process.stdout.read(100) if process.stdout else b""
                finally:
                    timer.cancel()
                    process.kill()
            found = _SIZE.match(text)
            if found:
                return int(found[1])
        return None
