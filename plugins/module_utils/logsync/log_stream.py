# SPDX-License-Identifier: Apache-2.0
"""Bring one node's logs home while a run is followed, in a thread of the process that follows; the
follow never waits for it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading

from ..base.sanitize import printable
from ..config.quota import QuotaError
from . import log_receiver

PAUSES = (
    1,
    2,
    5,
    10,
    30,
)  # seconds before the next try, by the number of tries that brought nothing


class Stream(threading.Thread):
    """Brings one node's logs home beside whatever else this process does; it never raises, and
    tries again after a pause.

    argv: starts the sender. spec: as shipping.py has it, without `have`. directory, node, quota: as
    Receiver has them. A node that passes a bound is cut off for good.
    """

    def __init__(self, argv, spec, directory, node, quota=None):
        super().__init__(name=f"stream-{node}", daemon=True)
        self.argv, self.spec = argv, dict(spec, node=node)
        self.receiver = log_receiver.Receiver(directory, node=node, quota=quota)
        self.process, self.problem, self.restarts, self.whole, self.cut = (
            None,
            None,
            0,
            False,
            False,
        )
        self._closing, self._lock = threading.Event(), threading.Lock()

    def run(self):
        """Stream until finish() or until the sender says that it has sent everything."""
        failures = 0
        try:
            while not self._closing.is_set() and not self.whole:
                before = self.receiver.bytes
                try:
                    self._once()
                except QuotaError as error:
                    self.problem, self.cut = printable(str(error)), True
                    return
                except Exception as error:  # whatever it is, the follow goes on, and collect brings what is missing
                    self.problem = printable(str(error) or type(error).__name__)
                failures = 0 if self.receiver.bytes > before else failures + 1
                if not self.whole and not self._closing.is_set():
                    self.restarts += 1
                    self._closing.wait(PAUSES[min(failures, len(PAUSES) - 1)])
        finally:
            self.receiver.close()

    def _once(self):
        with tempfile.TemporaryFile() as errors:
            with self._lock:
                if self._closing.is_set():
                    return
                self.process = log_receiver.start(
                    self.argv, dict(self.spec, have=self.receiver.have()), errors
                )
            try:
                self.whole = self.receiver.consume(self.process.stdout.fileno())
            finally:
                self._end()
            if not self.whole:
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - 2000))
                said = [
                    line
                    for line in errors.read().decode("utf-8", "replace").splitlines()
                    if line.strip()
                ]
                raise log_receiver.StreamError(
                    "the stream ended with exit code {}{}".format(
                        self.process.returncode, ": " + said[-1] if said else ""
                    )
                )

    def _end(self):
        with self._lock:
            self.process.stdin.close()
            self.process.stdout.close()
            if self.process.poll() is None:
                try:
                    self.process.wait(2)  # ssh ends by itself where its node answers
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()

    def finish(self, seconds):
        """Have the rest sent, for so many seconds at most, and end. Returns whether the sender said
        that this was all.
        """
        self._closing.set()
        with self._lock:
            if self.process is not None and not self.process.stdin.closed:
                self.process.stdin.close()
        self.join(seconds)
        if self.is_alive() and self.process is not None:
            self.process.kill()
            self.join(5)
            self.problem = "the rest did not come within %d s" % seconds
        return self.whole

    def state(self):
        """Return {"bytes", "restarts", "problem", "events"} for the view, and "cut" where a bound
        was passed, after which no try follows.
        """
        found = {
            "bytes": self.receiver.bytes,
            "restarts": self.restarts,
            "problem": self.problem,
            "events": list(self.receiver.events),
        }
        return dict(found, cut=True) if self.cut else found
