# SPDX-License-Identifier: Apache-2.0
"""Follow one node's logs as lines, while they come home: by the files at home, whoever brings them.
Controller only.
"""

from __future__ import annotations

import os
import threading
import time

from . import (
    log_receiver,
    log_stream,
    log_view,
)

LOOK_SECONDS = 0.5  # between two looks at the files where nothing says that there is more
LOCK_SECONDS = 3  # between two tries to bring the logs ourselves while another process does
ASK_SECONDS = 20  # without a byte, after which the node is asked whether the run goes on
REST_SECONDS = 10  # that the rest of the logs has to come home once the launcher has ended
STALL_SECONDS = 20  # without a byte, after which what is home has to do
LEAVE_SECONDS = 60  # that a silent node is waited for once the run has ended on another one
_ENDED = b'"launcher_end"'


def bring(argv, spec, directory, node, quota=None):
    """Bring a node's logs home as far as they are written; return streaming's state, or None where
    another process brings them already.
    """
    try:
        stream = log_stream.Stream(argv, spec, directory, node, quota)
    except log_receiver.Busy:
        return None
    stream.start()
    had, since = -1, time.monotonic()
    while stream.is_alive() and time.monotonic() - since < STALL_SECONDS:
        stream.join(LOOK_SECONDS)
        if stream.receiver.bytes != had:
            had, since = stream.receiver.bytes, time.monotonic()
    said = stream.problem or "nothing came for %d s" % STALL_SECONDS
    stream.finish(0)
    return dict(stream.state(), problem=None if stream.whole else said)


class Follower:
    """Hands on the lines of one node's logs in the order in which they come home, until the run has
    ended there.

    directory: the attempt's at home. wanted: names of the logs there. offsets: {name: bytes that
    were shown before}. show: called with (name, [lines as bytes]). marker: a file that the first
    node writes on which the run has ended; the others' workers look for it. quota: as Receiver has
    it.
    """

    def __init__(self, directory, node, wanted, offsets, show, marker, quota=None):
        self.directory, self.node, self.show, self.marker, self.quota = (
            directory,
            node,
            show,
            marker,
            quota,
        )
        events = os.path.join(directory, f"ranks.{node}.jsonl")
        self._logs = {
            home: log_view.Growing(os.path.join(directory, home), offsets.get(home, 0))
            for home in wanted
        }
        self._events, self._ended = log_view.Growing(events), False
        self._news, self._stream, self._tried = threading.Event(), None, -LOCK_SECONDS
        self.lines = 0  # that were handed on

    def follow(self, argv, spec, over, alive=lambda: None):
        """Follow until the end; return what is wrong with the stream, or None.

        argv, spec: as streaming.Stream has them. over: asks the node whether the run has ended
        there; None where it does not answer. alive: called twice a second; it ends this process
        where nobody waits for it any more.
        """
        asked = time.monotonic()
        while not self._ended:
            alive()
            self._bring(argv, spec)
            self._news.wait(LOOK_SECONDS)
            self._news.clear()
            if self.look():
                asked = time.monotonic()
            elif time.monotonic() - asked > ASK_SECONDS:
                self._ended = self._over(over)
                asked = time.monotonic()
        _note(self.marker)
        said = self._stream and self._stream.problem
        if self._stream:
            self._stream.finish(REST_SECONDS)
        else:
            self._rest()
        self.look()
        for home, log in self._logs.items():  # nobody ends this line any more
            if log.rest:
                self.show(home, [log.rest])
                self.lines += 1
        return said or self._stream.problem if self._stream and not self._stream.whole else None

    @property
    def brought(self):
        """Whether this process has brought the logs, and not another one."""
        return self._stream is not None

    def _rest(self):
        """Wait for what another process still brings: the launcher's end may be home before the
        ranks' last lines.
        """
        deadline, quiet = time.monotonic() + REST_SECONDS, 0
        while quiet < 4 and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            quiet = 0 if self.look() else quiet + 1

    def _over(self, over):
        said = over()
        if (
            said is None
        ):  # no answer; a node that is gone must not keep the view open when the others have ended
            try:
                return time.time() - os.stat(self.marker).st_mtime > LEAVE_SECONDS
            except OSError:
                return False
        return said

    def _bring(self, argv, spec):
        """Bring the logs home beside, unless another process does."""
        if self._stream is not None or time.monotonic() - self._tried < LOCK_SECONDS:
            return
        self._tried = time.monotonic()
        try:
            self._stream = log_stream.Stream(argv, spec, self.directory, self.node, self.quota)
        except log_receiver.Busy:
            return
        self._stream.receiver.on_lines = lambda *_what: self._news.set()
        self._stream.start()

    def look(self):
        """Hand on what has come; return the number of lines."""
        before = self.lines
        for home, log in self._logs.items():
            while raws := log.more():
                self.show(home, raws)
                self.lines += len(raws)
        while raws := self._events.more():
            self._ended = self._ended or any(_ENDED in raw for raw in raws)
        return self.lines - before


def _note(marker):
    if not os.path.exists(marker):
        with open(marker, "w", encoding="utf-8"):
            pass
