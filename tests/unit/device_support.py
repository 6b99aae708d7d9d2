# SPDX-License-Identifier: Apache-2.0
"""What the tests of devices need: texts of the tools, a server that answers as NCCL's RAS does."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures" / "device_report"
TABLES = Path(__file__).parents[1] / "fixtures" / "nvidia_smi"


def text_of(name):
    """Return a text of a tool."""
    folder = FIXTURES if (FIXTURES / name).exists() else TABLES
    return (folder / name).read_text(encoding="utf-8")


def report_of(moment="end", **answers):
    """Return a devices.json as agent/device_report.py writes it.

    answers: {name: (command, code, text)}.
    """
    return {
        "time": 1795166910.0,
        "moment": moment,
        "answers": {
            name: value and dict(zip(("command", "code", "text"), value))
            for name, value in answers.items()
        },
    }


class RasServer:
    """NCCL's RAS of a rank: it takes lines, and closes the connection after a status."""

    def __init__(self, text, silent=False):
        self.text, self.silent, self.asked = text, silent, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                call, _from = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(call,), daemon=True).start()

    def _answer(self, call):
        with call:
            for line in call.makefile("r", encoding="ascii"):
                self.asked.append(line.strip())
                if self.silent:
                    continue
                if line.startswith("TIMEOUT "):
                    call.sendall(b"OK\n")
                elif line == "VERBOSE STATUS\n":
                    call.sendall(self.text.encode())
                    return
