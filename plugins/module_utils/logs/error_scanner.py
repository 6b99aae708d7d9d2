# SPDX-License-Identifier: Apache-2.0
"""Find the first error in a rank's log, line by line, in bounded memory.

`ErrorScan` knows Python tracebacks (chained ones, cut ones, ones between other lines), Paddle's C++
`Error Message Summary:` block, uncaught C++ exceptions (gloo, NCCL), faulthandler, argparse, NCCL
warnings, Ascend's error codes, Open MPI's words and what a shell or a launcher says of a dead
child. How lines look is in error_lines.py, what they mean in causes.py, which of them counts in
first_error.py.
"""

from __future__ import annotations

from collections import deque

from . import error_patterns as lines
from .failure_catalogue import tagged
from .root_error import choose

MAX_TRACEBACK = (
    500  # lines; a recursion error repeats frames but Python cuts it at about 2,000 frames
)
KEEP = 16  # errors kept before training goes on or the log ends
CONTEXT_BEFORE = 6
CONTEXT_AFTER = 4
CONTEXT_CHARS = 400


class ErrorScan:
    """Feed lines with `line(number, text)`, say `progress()` at every training step, ask `finish()`
    at the end.
    """

    def __init__(self):
        self.errors = []  # at most KEEP, since the last training step
        self.count = 0
        self.survived = None  # the first error after which training went on
        # what ended a thread of the trainer: steps go on until the data that is loaded runs out
        self.thread_error = None
        self.containers = []  # what the launcher said of its children: see error_lines.note_child
        self._state = None
        self._error = None  # the error whose following lines are being read
        self._begin = 0
        self._frame = None
        self._loose = None
        self._handled = False
        self._thread = False
        self._textless = False
        self._chained = None
        self._root = None
        self._direct = False  # whether the chain's parts are said to be cause and effect
        self._before = deque(maxlen=CONTEXT_BEFORE)

    @property
    def idle(self):
        """True while no event is open, so that only lines with one of LITERALS matter."""
        return self._state is None

    # -- what the caller says --

    def line(self, number, text):
        if lines.note_child(text, self.containers, KEEP):
            return
        if self._state is None or not self._state(number, text):
            self._open(number, text)

    def progress(self):
        """A training step was printed: whatever stood in the log before it did not end this rank."""
        if self.errors:
            first = next((e for e in self.errors if not e["soft"]), None)
            self.survived = self.survived or (dict(first, survived=True) if first else None)
            thread = next((e for e in self.errors if e["thread"]), None)
            self.thread_error = self.thread_error or thread
            self.errors = []

    def finish(self):
        """The error that best explains an end of this rank, or None."""
        if self._state == self._in_traceback:
            self._cut_short()
        self._state = None
        return choose(self.errors, self.survived, self.thread_error)

    # -- opening an event --

    def _open(self, number, text):
        match = lines.TRACEBACK.match(text)
        if match:
            # `C++ Traceback` is Paddle's own block. Text before the word means that a handler
            # printed it, except a torn progress bar.
            if not match.group(1).endswith("C++ "):
                self._start_traceback(
                    number, text, bool(match.group(1).strip()) and "%|" not in match.group(1)
                )
            return
        if "Error Message Summary:" in text:
            self._leave_traceback()
            self._begin, self._state = number, self._in_summary
            return
        for pattern, kind, origin in lines.SINGLE:
            match = pattern.search(text)
            if match:
                self._leave_traceback()
                self._single(number, kind or match.group("kind"), match.group("text"), origin, text)
                return
        if text.startswith(lines.HEADERS):
            self._leave_traceback()
            self._thread = text.startswith("Exception in thread")
            self._handled, self._begin, self._state = not self._thread, number, self._after_header
            return
        match = lines.TAGGED.search(text)
        if match:
            self._tagged(number, match.group("kind"), match.group("text"), text)
            return
        frame = lines.FRAME.match(text)
        if frame and not frame.group("more"):
            # A syntax error in the script itself comes without a header: `  File "train.py", line
            # 3`.
            self._start_traceback(number, text, False)
            self._in_traceback(number, text)

    def _single(self, number, kind, text, origin, line):
        last = self.errors[-1] if self.errors else None
        if last and last["kind"] == kind and not last["text"]:
            last["line"] = (
                # Paddle warns of the exception just before the runtime ends the process for it
                number
            )
            last["context"].append(line[:CONTEXT_CHARS])
            self._error = last
        else:
            self._add(number, kind, text, origin, [line])
        self._begin, self._state = number, self._in_after

    def _tagged(self, number, kind, text, line):
        """A line that calls itself an error: noted once for each cause, without leaving what is
        being read.
        """
        cause = tagged(text)
        if cause and not any(error["soft"] == cause for error in self.errors):
            self._add(number, kind, text, "line", [line])
            self._error["soft"] = cause

    def _start_traceback(self, number, text, handled):
        self._leave_traceback()
        last = self.errors[-1] if self.errors else None
        if last and last["text"].endswith(":") and number - last["line"] == 1:
            # `ValueError: DataLoader worker(0) caught ValueError with message:` and then the real
            # one
            self._chained, self._thread, self._direct = last, last["thread"], False
        self._handled = self._handled or handled
        self._begin, self._frame, self._loose, self._state = number, None, None, self._in_traceback
        self._before.clear()
        self._before.append(text)

    # -- inside an event; each returns False when the line is not its own --

    def _after_header(self, number, text):
        if number - self._begin > 3:
            self._handled, self._thread, self._state = False, False, None
        return False

    def _in_traceback(self, number, text):
        if number - self._begin > MAX_TRACEBACK:
            self._cut_short()
            return False
        frame = lines.FRAME.match(text)
        if frame:
            self._frame = {"file": frame.group("file"), "line": int(frame.group("line"))}
        if not text or text[0] in " \t":
            self._before.append(text)
        else:
            final = lines.FINAL.match(text)
            if final is None or not lines.is_final(final):
                if final is not None and final.group("text") is not None and self._loose is None:
                    self._loose = (number, final.group("kind"), final.group("text"))
                return False
            self._end_traceback(number, final.group("kind"), final.group("text") or "", text)
        return True

    def _end_traceback(self, number, kind, text, line):
        context = list(self._before) + [line]
        root = self._root
        if self._chained is not None:
            if self._chained in self.errors:
                self.errors.remove(self._chained)
            root = root or f"{self._chained['kind']}: {self._chained['text']}"
        flags = {"handled": self._handled, "thread": self._thread}
        self._handled, self._thread, self._chained, self._root = False, False, None, None
        self._add(
            number,
            kind,
            text,
            "python",
            context,
            frame=self._frame,
            root=root,
            direct=self._direct,
            **flags,
        )
        self._begin, self._state = number, self._in_after

    def _leave_traceback(self):
        if self._state == self._in_traceback:
            self._cut_short()

    def _cut_short(self):
        """The log ended, or something else began, inside a traceback."""
        if self._chained in self.errors:
            self._chained, self._root, self._handled, self._thread, self._state = (
                None,
                None,
                False,
                False,
                None,
            )
            return  # the chain's first part is whole and says more than a torn second one
        if self._loose is not None:
            number, kind, text = self._loose
            self._end_traceback(number, kind, text, f"{kind}: {text}")
            return
        where = (
            f'cut short after File "{self._frame["file"]}", line {self._frame["line"]}'
            if self._frame
            else "cut short"
        )
        self._end_traceback(self._begin, "Traceback", where, "")
        self._state = None

    def _in_summary(self, number, text):
        bare = text.strip()
        if number - self._begin > 12:
            self._state = None
            return False
        if bare.strip("-"):
            kind, colon, message = bare.partition(": ")
            if not colon and not bare.endswith(":"):
                kind, message = "Error Message Summary", bare
            self._summary(number, kind.rstrip(":"), message.strip(), text)
        return True

    def _summary(self, number, kind, message, line):
        last = self.errors[-1] if self.errors else None
        if last and last["origin"] == "python" and not last["text"]:
            last["text"] = f"{kind}: {message}"
            last["context"].append(line[:CONTEXT_CHARS])
            self._error = last
        else:
            self._add(number, kind, message, "cpp", [line])
        self._textless = not message  # Paddle then puts the message a line below
        self._begin, self._state = number, self._in_after

    def _in_after(self, number, text):
        error = self._error
        if lines.CHAIN.match(text):
            self._chained, self._root, self._handled, self._thread = (
                error,
                error["root"],
                error["handled"],
                error["thread"],
            )
            self._direct, self._state = text.startswith("The above"), self._between_chain
            return True
        info, code = (
            lines.TIME_INFO.search(text) or lines.SIGNAL_INFO.search(text),
            lines.ASCEND.match(text),
        )
        if info:
            error.update({k: int(v) if v.isdigit() else v for k, v in info.groupdict().items()})
        elif (
            error["origin"] == "python"
            and (code or lines.REFERS.search(error["text"]))
            and not lines.TRACEBACK.match(text)
        ):
            if text.strip() and not text.startswith("-"):
                error["text"] += (
                    # MindSpore puts CANN's message, and that of its data pipeline, below its own
                    f" [{text.strip()}]"
                )
        elif (
            lines.TRACEBACK.match(text)
            or "Error Message Summary:" in text
            or text.startswith(lines.HEADERS)
            or number - self._begin > 10
        ):
            self._state = None
            return False
        elif any(pattern.search(text) for pattern, _kind, _origin in lines.SINGLE):
            return False
        stripped = text.strip()
        if not stripped.strip("-="):
            return True
        if stripped.startswith("what():"):
            error["text"] = stripped[7:].strip()
        elif self._textless:
            error["text"] += stripped
            self._textless = False
        if len(error["context"]) < CONTEXT_BEFORE + CONTEXT_AFTER + 2:
            error["context"].append(text[:CONTEXT_CHARS])
        return True

    def _between_chain(self, number, text):
        if text and not lines.TRACEBACK.match(text):
            self._chained, self._root, self._handled, self._thread, self._state = (
                None,
                None,
                False,
                False,
                None,
            )
        return not text

    # -- records --

    def _add(
        self,
        number,
        kind,
        text,
        origin,
        context,
        frame=None,
        handled=False,
        thread=False,
        root=None,
        direct=False,
    ):
        self.count += 1
        self._textless = False
        frame = frame or {"file": None, "line": None}
        self._error = {
            "kind": kind,
            "text": text,
            "line": number,
            "origin": origin,
            "file": frame["file"],
            "file_line": frame["line"],
            "context": [c[:CONTEXT_CHARS] for c in context if c.strip()],
            "handled": handled,
            "survived": False,
            "thread": thread,
            "soft": False,
            "direct": direct,
            "root": root,
            "signal": None,
            "sender": None,
            "time": None,
        }
        if (
            len(self.errors) == KEEP
        ):  # the newest always has room: it may be the one that ended the rank
            self.errors.remove(next((e for e in self.errors if e["handled"]), self.errors[-1]))
        self.errors.append(self._error)
