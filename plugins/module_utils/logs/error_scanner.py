# SPDX-License-Identifier: Apache-2.0
"""Find the first error in a rank's log, line by line, in bounded memory.

`ErrorScan` knows Python tracebacks (chained ones, cut ones, ones between other lines), Paddle's C++
`Error Message Summary:` block, uncaught C++ exceptions (gloo, NCCL), faulthandler, argparse, NCCL
warnings, Ascend's error codes, Open MPI's messages and the lines of a shell or launcher about a
dead child. error_patterns.py has the patterns of the lines, failure_catalogue/ their meaning,
root_error.py the choice among the errors.
"""

from __future__ import annotations

from collections import deque

from . import error_patterns as lines
from .failure_catalogue import tagged
from .root_error import QUOTES, choose, ends_process, is_uncaught

# Lines. A recursion error repeats frames, but Python cuts it at about 2,000 frames.
MAX_TRACEBACK = 500
MAX_SUMMARY = 12  # lines of Paddle's summary
AFTER_HEADER = 3  # lines between a header and its traceback
AFTER_ERROR = 10  # lines after an error that may belong to it
KEEP = 16  # errors kept before training goes on or the log ends
CONTEXT_BEFORE = 6
CONTEXT_AFTER = 4
CONTEXT_CHARS = 400
MAX_PID = 1 << 22  # Linux, PID_MAX_LIMIT
OUTLIVED = 2  # plain lines below a message of one line from which on the process had gone on


class ErrorScan:
    """One pass over a rank's log.

    Give every line to `line(number, text)`, call `progress()` at every training step, and
    `finish()` at the end.
    """

    def __init__(self):
        self.errors = []  # at most KEEP, since the last training step
        self.count = 0
        self.survived = None  # the first error after which training went on
        # The error that ended a thread of the trainer: steps go on until the loaded data runs out.
        self.thread_error = None
        # The launcher's lines about its children: see error_patterns.note_child.
        self.containers = []
        self.last_line = 0  # number of the last line of an event
        self._pending = False  # whether `errors` has an exception that seems to be uncaught
        self._state = None  # the method that reads the lines of the open event
        self._error = None  # the error whose following lines are being read
        self._begin = 0  # number of the line where the open event begins
        self._frame = None  # the innermost frame of the open traceback
        self._is_loader = False  # whether the open traceback has a frame of a data loader
        self._is_partial = False  # whether the open traceback begins below the script
        self._loose = None  # (number, kind, text) of a line that may end the open traceback
        self._lacks_text = False  # whether the message of the newest error is still to come
        self._context = deque(maxlen=CONTEXT_BEFORE)
        self._is_direct = False  # whether Python calls the chain's parts cause and effect
        self._forget_chain()

    def _forget_chain(self):
        self._chained = None  # the previous error of the chain
        self._root = None  # the chain's first error as text
        self._is_handled = False
        self._in_thread = False

    @property
    def idle(self):
        """True while no event is open, so that only lines with one of LITERALS matter."""
        return self._state is None

    @property
    def is_pending(self):
        """True while an error waits that a record of the training's own would show as handled."""
        return self._pending

    # -- calls of the user --

    def line(self, number, text):
        """Read the next line."""
        text = lines.GROUP.sub("", lines.PREFIX.sub("", text, count=1), count=1)
        if lines.note_child(text, self.containers, KEEP):
            return
        if self._pending and lines.RECORD.match(text):
            self._outlive()
        if self._state is None or not self._state(number, text):
            self._open(number, text)
        if self._state is not None:
            self.last_line = number  # what follows an error may be of its message

    def progress(self):
        """Note a training step: no error before it ended this rank."""
        if not self.errors:
            return
        if not self.survived:
            first = next((error for error in self.errors if not error["soft"]), None)
            if first:
                self.survived = dict(first, survived=True)
        if not self.thread_error:
            self.thread_error = next((error for error in self.errors if error["thread"]), None)
        self.errors = []
        self._pending = False

    def resume_traceback(self, number):
        """Begin inside a traceback whose first lines are missing, before a line of this number."""
        self._start_traceback(number, "", False)
        self._frame = {"file": None, "line": None}

    def _outlive(self):
        """Note that the main thread went on: nothing that ends a process was among its errors.

        What a handler, a thread or a mere line said stays. It may explain a later end.
        """
        self._leave_traceback()
        passed = [error for error in self.errors if ends_process(error)]
        self.errors = [error for error in self.errors if not ends_process(error)]
        if passed and not self.survived:
            self.survived = dict(passed[0], survived=True)
        self._pending = False

    def finish(self, end=None):
        """Return the error that best explains an end of this rank, or None.

        end: the End of the process, None where it may still run.
        """
        self._leave_traceback()
        self._state = None
        return choose(self.errors, self.survived, self.thread_error, end)

    # -- opening an event --

    def _open(self, number, text):
        match = lines.TRACEBACK.match(text)
        if match:
            self._open_traceback(number, text, match.group(1))
            return
        if lines.SUMMARY in text:
            self._leave_traceback()
            self._begin, self._state = number, self._in_summary
            return
        if self._open_single(number, text):
            return
        if text.startswith(lines.HEADERS):
            self._leave_traceback()
            last = self._last()
            if last and number - last["line"] == 1:
                last["context"].append(text[:CONTEXT_CHARS])
            self._in_thread = text.startswith("Exception in thread")
            self._is_handled = not self._in_thread
            self._begin, self._state = number, self._after_header
            return
        match = lines.TAGGED.search(text)
        if match:
            self._add_tagged(number, match.group("kind"), match.group("text"), text)
            return
        frame = lines.FRAME.match(text)
        if frame and not frame.group("more"):
            # A syntax error in the script itself comes without a header: `  File "train.py", line
            # 3`.
            self._start_traceback(number, text, False)
            self._in_traceback(number, text)

    def _open_traceback(self, number, text, prefix):
        """Open a traceback. prefix: the text before the word Traceback.

        `C++ Traceback` is Paddle's own block. Other text before the word means that a handler
        printed it, except a torn progress bar.
        """
        if not prefix.endswith("C++ "):
            is_handled = bool(prefix.strip()) and "%|" not in prefix
            self._start_traceback(number, text, is_handled)

    def _open_single(self, number, text):
        """Note an error of a single line and return whether it is one."""
        for pattern, kind, origin in lines.SINGLE:
            match = pattern.search(text)
            if match:
                self._leave_traceback()
                kind = kind or match.group("kind")
                self._add_single(number, kind, match.group("text"), origin, text)
                return True
        return False

    def _last(self):
        if self.errors:
            return self.errors[-1]
        return None

    def _add_single(self, number, kind, text, origin, line):
        last = self._last()
        if last and last["kind"] == kind and not last["text"]:
            # Paddle warns of the exception just before the runtime ends the process for it.
            last["line"] = number
            last["context"].append(line[:CONTEXT_CHARS])
            self._error = last
        else:
            flags = {"last": bool(lines.LAST.match(line)), "bare": origin == "python"}
            self._add(number, kind, text, origin, [line], **flags)
        self._begin, self._state = number, self._in_after

    def _add_tagged(self, number, kind, text, line):
        """Note a line that calls itself an error, once for each cause.

        The open event stays open.
        """
        cause = tagged(text)
        if cause and not any(error["soft"] == cause for error in self.errors):
            self._add(number, kind, text, "line", [line])
            self._error["soft"] = cause

    def _start_traceback(self, number, text, is_handled):
        self._leave_traceback()
        last = self._last()
        if last and last["text"].endswith(":") and number - last["line"] == 1:
            # `ValueError: DataLoader worker(0) caught ValueError with message:` and then the real
            # one
            self._chained, self._in_thread, self._is_direct = last, last["thread"], False
            self._is_handled = self._is_handled or last["handled"]
        self._is_handled = self._is_handled or is_handled
        self._begin, self._state = number, self._in_traceback
        self._frame, self._loose, self._is_partial, self._is_loader = None, None, False, False
        self._context.clear()
        self._context.append(text)

    # -- inside an event; each returns False where the line does not belong to the event --

    def _after_header(self, number, text):
        final = lines.FINAL.match(text)
        if number - self._begin > AFTER_HEADER or (final and lines.is_final(final)):
            # What a stream could not write has no traceback.
            self._is_handled, self._in_thread, self._state = False, False, None
        return False

    def _in_traceback(self, number, text):
        if number - self._begin > MAX_TRACEBACK:
            self._cut_short()
            return False
        frame = lines.FRAME.match(text)
        if not text.strip() and number - self._begin == 1:
            self._is_handled = True  # a handler's own form: the interpreter begins with a frame
        if frame:
            if self._frame is None:
                self._is_partial = not lines.is_outermost(frame)
            self._frame = {"file": frame.group("file"), "line": int(frame.group("line"))}
            self._is_loader = self._is_loader or bool(lines.LOADER.search(frame.group("file")))
        if not text or text[0] in " \t":
            self._context.append(text)
            return True
        final = lines.FINAL.match(text)
        if final is None:
            return False
        kind, message = final.group("kind"), final.group("text")
        if not lines.is_final(final):
            if message is not None and self._loose is None:
                self._loose = (number, kind, message)
            return False
        self._end_traceback(number, kind, message or "", text)
        return True

    def _end_traceback(self, number, kind, text, line):
        context = list(self._context) + [line]
        chained, root = self._chained, self._root
        if chained is not None:
            if chained in self.errors:
                self.errors.remove(chained)
            root = root or f"{chained['kind']}: {chained['text']}"
        is_partial = self._is_partial and not self._in_thread and not self._is_quoted(chained)
        flags = {
            "handled": self._is_handled or is_partial,
            "partial": is_partial and not self._is_handled,
            "thread": self._in_thread,
            "direct": self._is_direct,
            "loader": self._is_loader,
        }
        self._forget_chain()
        self._add(number, kind, text, "python", context, frame=self._frame, root=root, **flags)
        self._begin, self._state = number, self._in_after

    def _is_quoted(self, chained):
        """Return whether the open traceback belongs to the message of the error before it."""
        if chained is not None and chained["text"].endswith(":"):
            return True
        last = self._last()
        return bool(last and not last["handled"] and QUOTES.search(last["text"]))

    def _leave_traceback(self):
        if self._state == self._in_traceback:
            self._cut_short()

    def _cut_short(self):
        """End a traceback that another event or the end of the log cut off."""
        if self._chained in self.errors:
            # The chain's first part is whole and says more than a torn second one.
            self._chained["handled"] = self._is_handled
            self._forget_chain()
            self._state = None
            return
        if self._loose is not None:
            number, kind, text = self._loose
            self._end_traceback(number, kind, text, f"{kind}: {text}")
            return
        text = "cut short"
        if self._frame:
            text += f' after File "{self._frame["file"]}", line {self._frame["line"]}'
        self._end_traceback(self._begin, "Traceback", text, "")
        self._state = None

    def _in_summary(self, number, text):
        if number - self._begin > MAX_SUMMARY:
            self._state = None
            return False
        line = text.strip()
        if line.strip("-"):
            kind, colon, message = line.partition(": ")
            if not colon and not line.endswith(":"):
                kind, message = "Error Message Summary", line
            self._add_summary(number, kind.rstrip(":"), message.strip(), text)
        return True

    def _add_summary(self, number, kind, message, line):
        last = self._last()
        if last and last["origin"] == "python" and not last["text"]:
            last["text"] = f"{kind}: {message}"
            last["context"].append(line[:CONTEXT_CHARS])
            self._error = last
        else:
            self._add(number, kind, message, "cpp", [line], last=True)
        self._lacks_text = not message  # Paddle then puts the message a line below
        self._begin, self._state = number, self._in_after

    def _in_after(self, number, text):
        error = self._error
        if lines.CHAIN.match(text):
            self._continue_chain(error, text)
            return True
        info = lines.TIME_INFO.search(text) or lines.SIGNAL_INFO.search(text)
        if info:
            error.update(_signal_fields(info))
        elif _is_detail(error, text):
            if text.strip() and not text.startswith("-"):
                error["text"] += f" [{text.strip()}]"
        elif self._opens_event(number, text) or (error["handled"] and lines.TAGGED.search(text)):
            self._state = None  # a library's own line is not of what the training handled
            return False
        elif any(pattern.search(text) for pattern, _kind, _origin in lines.SINGLE):
            return False
        self._extend(error, text)
        return True

    def _continue_chain(self, error, text):
        """Keep an error as the previous one of the chain whose next part follows."""
        self._chained, self._root = error, error["root"]
        # The first parts of a chain begin where they were caught. Its last part has all frames.
        self._is_handled = error["handled"] and not error["partial"]
        self._in_thread = error["thread"]
        self._is_direct, self._state = text.startswith("The above"), self._between_chain

    def _opens_event(self, number, text):
        """Return whether a line opens another event, or is too far below the error."""
        if lines.TRACEBACK.match(text) or lines.SUMMARY in text:
            return True
        return text.startswith(lines.HEADERS) or number - self._begin > AFTER_ERROR

    def _extend(self, error, text):
        """Add a following line to an error's message and context."""
        message = text.strip()
        if not message.strip("-="):
            return
        if message.startswith("what():"):
            error["text"] = message[len("what():") :].strip()
        elif self._lacks_text:
            error["text"] += message
            self._lacks_text = False
        if len(error["context"]) < CONTEXT_BEFORE + CONTEXT_AFTER + 2:
            error["context"].append(text[:CONTEXT_CHARS])
        if is_uncaught(error) and lines.is_one_line(error) and lines.is_plain(text):
            error["plain"] += 1
            if error["plain"] == OUTLIVED:
                self._outlive()

    def _between_chain(self, number, text):
        if text and not lines.TRACEBACK.match(text):
            self._forget_chain()
            self._state = None
        return not text

    # -- records --

    def _add(self, number, kind, text, origin, context, frame=None, root=None, **flags):
        """Add an error. flags: handled, thread, direct, loader, bare, partial, last."""
        self.count += 1
        self._lacks_text = False
        frame = frame or {"file": None, "line": None}
        self._error = {
            "kind": kind,
            "text": text,
            "line": number,
            "origin": origin,
            "file": frame["file"],
            "file_line": frame["line"],
            "context": [line[:CONTEXT_CHARS] for line in context if line.strip()],
            "handled": False,
            "survived": False,
            "thread": False,
            "soft": False,
            "direct": False,
            "partial": False,
            "last": False,
            "loader": False,
            "bare": False,
            "plain": 0,
            "begin": self._begin,
            "root": root,
            "signal": None,
            "sender": None,
            "time": None,
            **flags,
        }
        if len(self.errors) == KEEP:
            # The newest always has room: it may be the one that ended the rank.
            handled = (error for error in self.errors if error["handled"])
            self.errors.remove(next(handled, self.errors[-1]))
        self.errors.append(self._error)
        self._pending = self._pending or ends_process(self._error)


def _signal_fields(match):
    """Return {signal, sender} or {time} of a line. Digits become whole numbers.

    Where a signal has no sender Paddle prints a number that no process has.
    """
    fields = match.groupdict()
    for name, value in fields.items():
        if value.isdigit():
            fields[name] = int(value)
    if (fields.get("sender") or 0) > MAX_PID:
        fields["sender"] = None
    return fields


def _is_detail(error, text):
    """Return whether a line continues the message of a Python exception.

    MindSpore puts CANN's message, and that of its data pipeline, below its own.
    """
    if error["origin"] != "python" or lines.TRACEBACK.match(text):
        return False
    if "NCCL error" in error["text"] and lines.NCCL_REASON.match(text):
        return True
    if not error["text"].strip() and error["context"][-1].startswith("- "):
        return True  # MindSpore puts all of its message below a heading
    return bool(lines.ASCEND.match(text) or lines.REFERS.search(error["text"]))
