# SPDX-License-Identifier: Apache-2.0
"""Stream of one node's logs to the controller while a run is followed.

It runs in a thread of the process that follows, which never waits for it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import IO

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable

from ..config.quota import Quota, QuotaError
from . import log_receiver
from .rank_index import Json

# Seconds before the next try, by the number of tries that brought nothing.
PAUSES = (1, 2, 5, 10, 30)


class Stream(threading.Thread):
    """Thread that copies one node's logs to the controller.

    It never raises, and tries again after a pause. A node that passes a bound is cut off for good.
    argv: starts the sender. spec: as log_sender.py has it, without `have`. directory, node, quota:
    as Receiver has them.
    """

    def __init__(
        self, argv: Sequence[str], spec: Json, directory: str, node: str, quota: Quota | None = None
    ) -> None:
        super().__init__(name=f"stream-{node}", daemon=True)
        self.argv, self.spec = argv, dict(spec, node=node)
        self.receiver = log_receiver.Receiver(directory, node=node, quota=quota)
        self.process: subprocess.Popen[bytes] | None = None
        self.problem: str | None = None
        self.restarts, self.whole, self.cut = 0, False, False
        self._closing, self._lock = threading.Event(), threading.Lock()

    def run(self) -> None:
        """Stream until finish() or until the sender has sent everything."""
        failures = 0
        try:
            while not self._closing.is_set() and not self.whole:
                before = self.receiver.bytes
                try:
                    self._stream_once()
                except QuotaError as error:
                    self.problem, self.cut = printable(str(error)), True
                    return
                # Whatever it is, the follow goes on, and collect brings what is missing.
                except Exception as error:
                    self.problem = printable(str(error) or type(error).__name__)
                failures += 1
                if self.receiver.bytes > before:
                    failures = 0
                if not self.whole and not self._closing.is_set():
                    self.restarts += 1
                    self._closing.wait(PAUSES[min(failures, len(PAUSES) - 1)])
        finally:
            self.receiver.close()

    def _stream_once(self) -> None:
        """Start a sender and take in what it sends until its end."""
        with tempfile.TemporaryFile() as errors:
            with self._lock:
                if self._closing.is_set():
                    return
                process = self.process = log_receiver.start_sender(
                    self.argv, dict(self.spec, have=self.receiver.describe_logs()), errors
                )
            try:
                if process.stdout is not None:
                    self.whole = self.receiver.receive(process.stdout.fileno())
            finally:
                self._end(process)
            if not self.whole:
                raise log_receiver.StreamError(_exit_text(process.returncode, errors))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            if process.poll() is None:
                try:
                    process.wait(2)  # ssh ends automatically where its node answers
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def finish(self, seconds: float) -> bool:
        """Receive the rest for at most so many seconds, and end.

        Return whether the sender announced the end.
        """
        self._closing.set()
        with self._lock:
            if self.process is not None and self.process.stdin is not None:
                self.process.stdin.close()
        self.join(seconds)
        if self.is_alive() and self.process is not None:
            self.process.kill()
            self.join(5)
            self.problem = f"the rest did not come within {int(seconds)} s"
        return self.whole

    def state(self) -> Json:
        """Return {"bytes", "restarts", "problem", "events"} for the view.

        "cut" is in it where a bound was passed, after which no try follows.
        """
        state = {
            "bytes": self.receiver.bytes,
            "restarts": self.restarts,
            "problem": self.problem,
            "events": list(self.receiver.events),
        }
        if self.cut:
            state["cut"] = True
        return state


def _exit_text(code: int, errors: IO[bytes]) -> str:
    """Return the exit code and the last line of an open file, the standard error."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 2000))
    text = errors.read().decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    message = f"the stream ended with exit code {code}"
    if lines:
        message += ": " + lines[-1]
    return message
