# SPDX-License-Identifier: Apache-2.0
"""A terminal for tests: what its screen shows after the bytes that were written to it, on a real
pseudo-terminal.

It knows what the product may say to a terminal and nothing else: an unknown sequence is an error.
Lines are wrapped anew when its width changes, as VTE, kitty, iTerm2, tmux and Windows Terminal do.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import unicodedata

_BEGUN = re.compile(
    r"(?:\x1b(?:\[[0-9;]*)?)?\Z"
)  # what came of a sequence whose rest is still on its way
_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])")


class Screen:
    """Rows of cells, a cursor, what has scrolled away; sizes as (columns, rows)."""

    def __init__(self, columns, rows):
        self.columns, self.height = columns, rows
        self.lines, self.wraps = (
            [[]],
            [False],
        )  # cells of each row; whether the row goes on in the next one
        self.row = self.column = self.top = (
            # of the cursor, counted from the first row that ever was; top: the first row that is
            # seen
            0
        )
        self.style, self.colours = "0", set()

    def feed(self, text):
        position = 0
        while position < len(text):
            match = _SEQUENCE.match(text, position)
            if match:
                self._obey(match.group(2), match.group(1))
                position = match.end()
                continue
            self._put(text[position])
            position += 1

    def _obey(self, kind, argument):
        if kind == "m":
            self.style = argument or "0"
            self.colours.add(self.style)
        elif kind == "A":
            self.row = max(self.top, self.row - int(argument or 1))
        elif kind == "J" and argument in ("", "0"):
            del self.lines[self.row + 1 :], self.wraps[self.row + 1 :]
            self._obey("K", "")
        elif kind == "K" and argument in ("", "0"):
            del self.lines[self.row][self.column :]
            self.wraps[self.row] = False
        else:
            raise AssertionError(
                f"a sequence that this terminal does not know: ESC [ {argument} {kind}"
            )

    def _put(self, char):
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self._down(False)
        elif char != "\0":
            assert char.isprintable(), f"a control character: {char!r}"
            size = (
                0
                if unicodedata.combining(char)
                else 2
                if unicodedata.east_asian_width(char) in "WF"
                else 1
            )
            if self.column + size > self.columns:
                self._down(True)
                self.column = 0
            line = self.lines[self.row]
            line += [" "] * (self.column - len(line))
            line[self.column : self.column + size] = [char, ""][:size]
            self.column += size

    def _down(self, wraps):
        self.wraps[self.row] = wraps
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])
            self.wraps.append(False)
        self.top = max(self.top, self.row - self.height + 1)

    def resize(self, columns, rows):
        """Wrap what was written anew; the cursor stays at its place in the text."""
        lines, wraps, whole, row, place = [], [], [], 0, 0
        for index, line in enumerate(self.lines):
            if index == self.row:
                row, place = len(lines), len(whole) + self.column
            whole = whole + line
            if self.wraps[index]:
                continue
            pieces = [whole[at : at + columns] for at in range(0, len(whole), columns)] or [[]]
            lines += pieces
            wraps += [True] * (len(pieces) - 1) + [False]
            whole = []
        self.columns, self.height, self.lines, self.wraps = columns, rows, lines, wraps
        self.row, self.column = row + place // columns, place % columns
        self.top = max(0, self.row - rows + 1)

    def text(self):
        """The rows that are seen, without blanks at their ends and without empty rows below."""
        shown = ["".join(line).rstrip() for line in self.lines[self.top : self.top + self.height]]
        while shown and not shown[-1]:
            shown.pop()
        return shown


class Terminal:
    """A pseudo-terminal with a Screen behind it; `stream` is the program's side, as sys.stdout
    would be.
    """

    def __init__(self, columns=80, rows=24, echo=False):
        self.screen = Screen(columns, rows)
        self.master, self.slave = pty.openpty()
        modes = termios.tcgetattr(self.slave)
        modes[3] = modes[3] | termios.ECHO if echo else modes[3] & ~termios.ECHO
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self.stream = os.fdopen(os.dup(self.slave), "w", encoding="utf-8", newline="")
        self._marks, self._sent, self._wrong, self._news = 0, 0, None, threading.Condition()
        self._tell(columns, rows)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _tell(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def size(self, columns, rows):
        """Change the terminal's size, as a window manager does, after everything that was written
        has been shown.
        """
        self.shown()
        with self._news:
            self._tell(columns, rows)
            self.screen.resize(columns, rows)

    def _read(self):
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        while True:
            try:
                text = rest + decoder.decode(os.read(self.master, 65536))
            except OSError:
                return
            rest = _BEGUN.search(text).group()
            with self._news:
                try:
                    self.screen.feed(text[: len(text) - len(rest)])
                except AssertionError as error:
                    self._wrong = (
                        self._wrong or error
                    )  # and read on: who writes must not wait for ever
                self._marks += text.count("\0")
                self._news.notify_all()

    def start(self, argv, **options):
        """Start a program whose terminal this is, as a shell would; Ctrl-C reaches it as a
        signal.
        """

        def own():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        return subprocess.Popen(
            argv, stdin=self.slave, stdout=self.slave, stderr=self.slave, preexec_fn=own, **options
        )

    def wait(self, condition, seconds=90):
        """Wait until the screen's rows fulfil a condition; return them."""
        with self._news:
            met = self._news.wait_for(
                lambda: self._wrong or condition(self.screen.text()), timeout=seconds
            )
            if self._wrong:
                raise self._wrong
            assert met, "\n".join(self.screen.text())
            return self.screen.text()

    def shown(self):
        """The screen after everything that was written so far: a NUL, which terminals pass over, is
        the mark.
        """
        self.stream.write("\0")
        self.stream.flush()
        self._sent += 1
        return self.wait(lambda _rows: self._marks >= self._sent)

    def close(self):
        self.stream.close()
        os.close(self.slave)
        self._reader.join(
            30
        )  # its next read must not meet another terminal that has got the number of this one's descriptor
        os.close(self.master)
