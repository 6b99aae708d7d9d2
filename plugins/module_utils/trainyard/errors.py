# SPDX-License-Identifier: Apache-2.0
"""Find the first error in a rank's log, line by line, in bounded memory.

`ErrorScan` knows Python tracebacks (chained ones, cut ones, ones between other lines), Paddle's C++ `Error Message Summary:` block,
uncaught C++ exceptions (gloo, NCCL), faulthandler, argparse, NCCL warnings and what a shell says of a dead child. It does not know
causes: see causes.py.
"""

from __future__ import annotations

import re
from collections import deque

from ansible.module_utils.trainyard.causes import classify

# Every line that can open an event holds one of these; a scanner may skip all others while `ErrorScan.idle` holds.
LITERALS = (
    "Traceback (most",
    '  File "',
    "Error Message Summary",
    "terminate called",
    "raises a std::exception",
    "Fatal Python error",
    "Killed",
    "Segmentation fault",
    "Bus error",
    "Aborted",
    "Illegal instruction",
    "ERROR: Unexpected",
    "can't open file",
    "No module named",
    ": error: ",
    "NCCL WARN",
    "Check failed",
    "Exception ignored in",
    "Exception in thread",
    "Logging error",
    "Container rank ",
)

_TRACEBACK = re.compile(r"^(.*?)Traceback \(most recent call last\):")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<more>, in .*)?')
_CHAIN = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
_FINAL = re.compile(r"^(?P<kind>[A-Za-z_]\w*(?:\.[A-Za-z_<][\w<>]*)*)(?::(?: (?P<text>.*))?)?$")
_KNOWN = re.compile(r"(?:Error|Exception|Exit|Interrupt|Iteration|Empty|Full|[Tt]imeout|Warning|NotMet|Group)$")
_NOT_KINDS = frozenset(("Warning", "WARNING", "INFO", "ERROR", "DEBUG", "NOTE", "Note", "Epoch", "epoch"))
_SIGNAL_INFO = re.compile(r"\*\*\* (?P<signal>SIG[A-Z]+) .*received by PID \d+ .*from PID (?P<sender>\d+)")
_TIME_INFO = re.compile(r"\*\*\* Aborted at (?P<time>\d{9,11}) \(unix time\)")
_PEER = re.compile(r"\bpair_rank = (?P<peer>\d+)")
_SHELL = r"(?:Killed|Segmentation fault|Bus error|Aborted|Illegal instruction|Terminated)"

# One-line events: pattern, kind (None: the group `kind`), where it comes from. The group `text` is the message.
_SINGLE = (
    (re.compile(r"^terminate called after throwing an instance of '(?P<kind>[^']+)'(?P<text>)"), None, "cpp"),
    (re.compile(r"^terminate called (?P<text>without an active exception)"), "terminate called", "cpp"),
    (re.compile(r"raises a std::exception: (?P<kind>[\w:]+)(?P<text>)"), None, "cpp"),
    (re.compile(r"^Fatal Python error: (?P<text>.*)"), "Fatal Python error", "cpp"),
    (re.compile(rf"^(?P<kind>{_SHELL})(?P<text>)(?:\s+\(core dumped\))?\s*$"), None, "line"),
    (re.compile(rf"^\S+: line \d+:\s+\d+ (?P<kind>{_SHELL})\s*(?P<text>.*)"), None, "line"),
    (re.compile(r"^ERROR: (?P<text>Unexpected .* encountered in DataLoader.*)"), "DataLoader", "line"),
    (re.compile(r"^\S*python[\d.]*: (?P<text>(?:can't open file|No module named|Error while finding module).*)"), "python", "line"),
    (re.compile(r"^[\w.-]+: error: (?P<text>.*)"), "usage error", "line"),
    (re.compile(r"NCCL WARN (?P<text>.*)"), "NCCL WARN", "cpp"),
    (re.compile(r"^F\d{4} [\d:.]+ +\d+ \S+\] (?P<text>Check failed.*)"), "Check failed", "cpp"),
)
_HEADERS = ("Exception ignored in", "--- Logging error ---", "Exception in thread")
_CONTAINER = re.compile(r"^Container rank (?P<local>\d+) status (?P<status>\w+) cmd \[.*?\] code (?P<code>-?\d+) log (?P<log>\S+)")

MAX_TRACEBACK = 500  # lines; a recursion error repeats frames but Python cuts it at about 2,000 frames
KEEP = 16  # errors kept before training goes on or the log ends
CONTEXT_BEFORE = 6
CONTEXT_AFTER = 4
CONTEXT_CHARS = 400


def _is_final(match):
    kind = match.group("kind")
    last = kind.rsplit(".", 1)[-1]
    if kind in _NOT_KINDS:
        return False
    if _KNOWN.search(last):
        return True
    # An exception class of the user's own (`BadSample: ...`): has its colon, and looks like a class or a path to one.
    return match.group("text") is not None and ("." in kind or sum(c.isupper() for c in last) >= 2)


class ErrorScan:
    """Feed lines with `line(number, text)`, say `progress()` at every training step, ask `finish()` at the end."""

    def __init__(self):
        self.errors = []  # at most KEEP, since the last training step
        self.count = 0
        self.survived = None  # the first error after which training went on
        self.thread_error = None  # what ended a thread of the trainer: steps go on until the data that is loaded runs out
        self.containers = []  # what the launcher said of its children: {local_rank, code, log}
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
        self._before = deque(maxlen=CONTEXT_BEFORE)

    @property
    def idle(self):
        """True while no event is open, so that only lines with one of LITERALS matter."""
        return self._state is None

    # -- what the caller says --

    def line(self, number, text):
        if self._state is None or not self._state(number, text):
            self._open(number, text)

    def progress(self):
        """A training step was printed: whatever stood in the log before it did not end this rank."""
        if self.errors:
            self.survived = self.survived or dict(self.errors[0], survived=True)
            thread = next((e for e in self.errors if e["thread"]), None)
            self.thread_error = self.thread_error or thread
            self.errors = []

    def finish(self):
        """The error that best explains an end of this rank, or None."""
        if self._state == self._in_traceback:
            self._cut_short()
        self._state = None
        pool = [self._finished(error) for error in self.errors]
        fatal = [error for error in pool if not error["handled"]]
        thread = self._finished(self.thread_error) if self.thread_error else None
        for error in fatal:
            if error["grade"] == "primary" and not (thread and error["cause"] == "worker_died"):
                return error
        if thread:  # `the data reader raises an exception`: that one, and it did end the rank
            return dict(thread, survived=not any(e["cause"] == "worker_died" for e in fatal))
        if fatal:
            return fatal[0]
        rest = ([self._finished(self.survived)] if self.survived else []) + pool
        return next((e for e in rest if e["grade"] == "primary"), rest[0] if rest else None)

    # -- opening an event --

    def _open(self, number, text):
        match = _TRACEBACK.match(text)
        if match:
            # `C++ Traceback` is Paddle's own block. Text before the word means that a handler printed it, except a torn progress bar.
            if not match.group(1).endswith("C++ "):
                self._start_traceback(number, text, bool(match.group(1).strip()) and "%|" not in match.group(1))
            return
        if "Error Message Summary:" in text:
            self._leave_traceback()
            self._begin, self._state = number, self._in_summary
            return
        for pattern, kind, origin in _SINGLE:
            match = pattern.search(text)
            if match:
                self._leave_traceback()
                self._single(number, kind or match.group("kind"), match.group("text"), origin, text)
                return
        if text.startswith(_HEADERS):
            self._leave_traceback()
            self._thread = text.startswith("Exception in thread")
            self._handled, self._begin, self._state = not self._thread, number, self._after_header
            return
        match = _CONTAINER.match(text)
        if match and len(self.containers) < KEEP:
            self.containers.append({"local_rank": int(match.group("local")), "code": int(match.group("code")), "log": match.group("log")})
            return
        frame = _FRAME.match(text)
        if frame and not frame.group("more"):
            # A syntax error in the script itself comes without a header: `  File "train.py", line 3`.
            self._start_traceback(number, text, False)
            self._in_traceback(number, text)

    def _single(self, number, kind, text, origin, line):
        last = self.errors[-1] if self.errors else None
        if last and last["kind"] == kind and not last["text"]:
            last["line"] = number  # Paddle warns of the exception just before the runtime ends the process for it
            last["context"].append(line[:CONTEXT_CHARS])
            self._error = last
        else:
            self._add(number, kind, text, origin, [line])
        self._begin, self._state = number, self._in_after

    def _start_traceback(self, number, text, handled):
        self._leave_traceback()
        last = self.errors[-1] if self.errors else None
        if last and last["text"].endswith(":") and number - last["line"] == 1:
            self._chained, self._thread = (
                last,
                last["thread"],
            )  # `ValueError: DataLoader worker(0) caught ValueError with message:` and then the real one
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
        frame = _FRAME.match(text)
        if frame:
            self._frame = {"file": frame.group("file"), "line": int(frame.group("line"))}
        if not text or text[0] in " \t":
            self._before.append(text)
        else:
            final = _FINAL.match(text)
            if final is None or not _is_final(final):
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
        self._add(number, kind, text, "python", context, frame=self._frame, root=root, **flags)
        self._begin, self._state = number, self._in_after

    def _leave_traceback(self):
        if self._state == self._in_traceback:
            self._cut_short()

    def _cut_short(self):
        """The log ended, or something else began, inside a traceback."""
        if self._chained in self.errors:
            self._chained, self._root, self._handled, self._thread, self._state = None, None, False, False, None
            return  # the chain's first part is whole and says more than a torn second one
        if self._loose is not None:
            number, kind, text = self._loose
            self._end_traceback(number, kind, text, f"{kind}: {text}")
            return
        where = f'cut short after File "{self._frame["file"]}", line {self._frame["line"]}' if self._frame else "cut short"
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
        if _CHAIN.match(text):
            self._chained, self._root, self._handled, self._thread = error, error["root"], error["handled"], error["thread"]
            self._state = self._between_chain
            return True
        info = _TIME_INFO.search(text) or _SIGNAL_INFO.search(text)
        if info:
            error.update({k: int(v) if v.isdigit() else v for k, v in info.groupdict().items()})
        elif _TRACEBACK.match(text) or "Error Message Summary:" in text or text.startswith(_HEADERS) or number - self._begin > 10:
            self._state = None
            return False
        elif any(pattern.search(text) for pattern, _kind, _origin in _SINGLE):
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
        if text and not _TRACEBACK.match(text):
            self._chained, self._root, self._handled, self._thread, self._state = None, None, False, False, None
        return not text

    # -- records --

    def _add(self, number, kind, text, origin, context, frame=None, handled=False, thread=False, root=None):
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
            "root": root,
            "signal": None,
            "sender": None,
            "time": None,
        }
        if len(self.errors) == KEEP:  # the newest always has room: it may be the one that ended the rank
            self.errors.remove(next((e for e in self.errors if e["handled"]), self.errors[-1]))
        self.errors.append(self._error)

    @staticmethod
    def _finished(error):
        error = dict(error, text=error["text"].strip())
        peer = _PEER.search(error["text"])
        error["peer"] = int(peer.group("peer")) if peer else None
        error.update(classify(error["kind"], error["text"], error["origin"]))
        return error
