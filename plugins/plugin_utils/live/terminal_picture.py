# SPDX-License-Identifier: GPL-3.0-or-later
"""Live view on a terminal, redrawn in place, with other output above it."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from ansible import constants as C
from ansible.utils.color import stringc
from ansible.utils.display import Display
from ansible_collections.trainyard.cluster.plugins.module_utils.base import sanitize

from ..base import text_columns
from . import screen

# (text, style)
Part = tuple[str, "str | None"]

COLOURS: dict[str | None, str] = {
    "good": C.COLOR_OK,  # type: ignore[attr-defined]
    "bad": C.COLOR_ERROR,  # type: ignore[attr-defined]
    "warn": C.COLOR_WARN,  # type: ignore[attr-defined]
    "gone": C.COLOR_UNREACHABLE,  # type: ignore[attr-defined]
    "quiet": C.COLOR_SKIP,  # type: ignore[attr-defined]
}


class Picture:
    """The live view on the terminal.

    The next picture is drawn over it. It makes room before other output is printed.
    """

    def __init__(self, display: Display) -> None:
        self._display, self._lock, self._pid = display, threading.RLock(), os.getpid()
        # The widths of the lines on the terminal, the time of the last picture, and whether a new
        # one is due.
        self._widths: list[int] = []
        self.when, self.due = 0.0, False

    def look(self) -> screen.Look:
        """Return the terminal's size now, and whether it shows more than ASCII."""
        try:
            size: tuple[int, int] = os.get_terminal_size(sys.stdout.fileno())
        except (AttributeError, OSError, ValueError):
            size = (0, 0)
        if not all(size):
            size = shutil.get_terminal_size((100, 24))
        encoding = str(getattr(sys.stdout, "encoding", "utf-8")).lower().replace("-", "")
        # The kernel's console has no font for more than ASCII.
        return screen.Look(*size, encoding == "utf8" and os.environ.get("TERM") != "linux")

    def draw(self, lines: Sequence[Sequence[Part]], look: screen.Look) -> None:
        """Draw lines of (text, style) over the picture on the terminal."""
        if not look.utf8:
            lines = [
                [(text.encode("ascii", "replace").decode(), style) for text, style in line]
                for line in lines
            ]
        painted = [
            "".join(paint(sanitize.escape(text), COLOURS.get(style)) for text, style in line)
            for line in lines
        ]
        with self._lock:
            self._display.display = self._display_beside  # type: ignore[method-assign]
            self._write(screen.repaint(self._widths, look.columns, painted))
            self._widths = [
                sum(text_columns.width(text) for text, _style in line) for line in lines
            ]
            self.when, self.due = time.monotonic(), False

    def _display_beside(self, *args: Any, **kwargs: Any) -> None:
        """Replace Ansible's display() while a picture is on the terminal.

        Warnings and errors come from everywhere, not from callbacks alone.
        """
        if os.getpid() != self._pid:  # a worker hands it to this process
            return type(self._display).display(self._display, *args, **kwargs)
        with self._lock:
            if self._widths:
                self._write(screen.repaint(self._widths, self.look().columns, ()))
                self._widths, self.due = [], True
            return type(self._display).display(self._display, *args, **kwargs)

    def leave(self) -> None:
        """Leave the picture on the terminal, and draw the next one below other output."""
        with self._lock:
            self._widths, self.due = [], False
            self._display.__dict__.pop("display", None)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def paint(text: str, colour: str | None) -> str:
    """Return text in a colour, unless Ansible's settings or NO_COLOR forbid it.

    NO_COLOR counts with any value (no-color.org).
    """
    if colour and not os.environ.get("NO_COLOR"):
        return stringc(text, colour)
    return text
