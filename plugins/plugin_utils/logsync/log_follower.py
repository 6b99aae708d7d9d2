# SPDX-License-Identifier: Apache-2.0
"""Follow one node's logs as lines while they arrive on the controller.

The lines are read from the files on the controller, whichever process copies them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..config.quota import Quota
from . import log_receiver, log_stream, log_view
from .rank_index import Json

LOOK_SECONDS = 0.5  # between two looks at the files where nothing says that there is more
LOCK_SECONDS = 3  # between two tries to bring the logs ourselves while another process does
ASK_SECONDS = 20  # without a byte, after which the node is asked whether the run goes on
REST_SECONDS = 10  # that the rest of the logs has to arrive once the launcher has ended
STALL_SECONDS = 20  # without a byte, after which what is here has to do
LEAVE_SECONDS = 60  # that a silent node is waited for once the run has ended on another one
_ENDED = b'"launcher_end"'


def copy_logs(
    argv: Sequence[str], spec: Json, directory: str, node: str, quota: Quota | None = None
) -> Json | None:
    """Copy a node's logs to the controller as far as they are written.

    Return log_stream's state, or None where another process copies them already.
    """
    try:
        stream = log_stream.Stream(argv, spec, directory, node, quota)
    except log_receiver.Busy:
        return None
    stream.start()
    received, since = -1, time.monotonic()
    while stream.is_alive() and time.monotonic() - since < STALL_SECONDS:
        stream.join(LOOK_SECONDS)
        if stream.receiver.bytes != received:
            received, since = stream.receiver.bytes, time.monotonic()
    problem: str | None = stream.problem or f"nothing came for {STALL_SECONDS} s"
    stream.finish(0)
    if stream.whole:
        problem = None
    return dict(stream.state(), problem=problem)


class Follower:
    """Reader of one node's logs that passes each line on until the run ends.

    The lines come in the order in which they arrive on the controller. directory: the attempt's on
    the controller. wanted: names of the logs there. offsets: {name: bytes that were shown before}.
    show: called with (name, [lines as bytes]). marker: a file that the first worker writes whose
    node has ended the run. The workers of the other nodes look for it. quota: as Receiver has it.
    """

    def __init__(
        self,
        directory: str,
        node: str,
        wanted: Iterable[str],
        offsets: Mapping[str, int],
        show: Callable[[str, list[bytes]], object],
        marker: str,
        quota: Quota | None = None,
    ) -> None:
        self.directory, self.node = directory, node
        self.show, self.marker, self.quota = show, marker, quota
        events = os.path.join(directory, f"ranks.{node}.jsonl")
        self._logs = {
            home: log_view.GrowingLog(os.path.join(directory, home), offsets.get(home, 0))
            for home in wanted
        }
        self._events, self._ended = log_view.GrowingLog(events), False
        self._news, self._last_try = threading.Event(), float(-LOCK_SECONDS)
        self._stream: log_stream.Stream | None = None
        self.lines = 0  # that were passed on

    def follow(
        self,
        argv: Sequence[str],
        spec: Json,
        over: Callable[[], bool | None],
        alive: Callable[[], object] = lambda: None,
    ) -> str | None:
        """Follow until the end and return the problem of the stream, or None.

        argv, spec: as log_stream.Stream has them. over: returns whether the run has ended on the
        node, None where the node does not answer. alive: called twice a second. It ends this
        process where no other one waits for it any more.
        """
        last_news = time.monotonic()
        while not self._ended:
            alive()
            self._start_stream(argv, spec)
            self._news.wait(LOOK_SECONDS)
            self._news.clear()
            if self.pass_lines():
                last_news = time.monotonic()
            elif time.monotonic() - last_news > ASK_SECONDS:
                self._ended = self._is_over(over)
                last_news = time.monotonic()
        _touch(self.marker)
        problem = self._finish_stream()
        self.pass_lines()
        for home, log in self._logs.items():  # no process completes this line any more
            if log.rest:
                self.show(home, [log.rest])
                self.lines += 1
        return problem

    @property
    def copies_logs(self) -> bool:
        """Return whether this process has copied the logs, and not another one."""
        return self._stream is not None

    def _finish_stream(self) -> str | None:
        """Wait for the last lines and return the problem of the stream, or None."""
        if self._stream is None:
            self._await_rest()
            return None
        problem = self._stream.problem
        self._stream.finish(REST_SECONDS)
        if self._stream.whole:
            return None
        return problem or self._stream.problem

    def _await_rest(self) -> None:
        """Wait for what another process still copies.

        The launcher's end may arrive before the ranks' last lines.
        """
        deadline, quiet = time.monotonic() + REST_SECONDS, 0
        while quiet < 4 and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            quiet += 1
            if self.pass_lines():
                quiet = 0

    def _is_over(self, over: Callable[[], bool | None]) -> bool:
        """Return whether the run has ended on the node, or everywhere else some time ago."""
        answer = over()
        if answer is not None:
            return answer
        # A node that is gone must not keep the view open when the others have ended.
        try:
            return time.time() - os.stat(self.marker).st_mtime > LEAVE_SECONDS
        except OSError:
            return False

    def _start_stream(self, argv: Sequence[str], spec: Json) -> None:
        """Start a stream of the logs, unless another process copies them."""
        if self._stream is not None or time.monotonic() - self._last_try < LOCK_SECONDS:
            return
        self._last_try = time.monotonic()
        try:
            self._stream = log_stream.Stream(argv, spec, self.directory, self.node, self.quota)
        except log_receiver.Busy:
            return
        self._stream.receiver.on_lines = lambda *_arguments: self._news.set()
        self._stream.start()

    def pass_lines(self) -> int:
        """Pass on the lines that have arrived and return their number."""
        before = self.lines
        for home, log in self._logs.items():
            while raws := log.read_lines():
                self.show(home, raws)
                self.lines += len(raws)
        while raws := self._events.read_lines():
            self._ended = self._ended or any(_ENDED in raw for raw in raws)
        return self.lines - before


def _touch(marker: str) -> None:
    if not os.path.exists(marker):
        with open(marker, "w", encoding="utf-8"):
            pass
