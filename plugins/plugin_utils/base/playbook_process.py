# SPDX-License-Identifier: Apache-2.0
"""A playbook in a process of its own, as a user starts it, for commands that start others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

# After each signal that ends it.
END_SECONDS = 20


class PlaybookProcess:
    """A command with a session of its own, no terminal, and its output in a file.

    Ctrl-C of the command that starts it does not reach it. argv, environment: of the command.
    output: path of the file. folder: where it is started, by default here. Raises OSError.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        output: str,
        folder: str | None = None,
    ) -> None:
        self.output = output
        with open(output, "wb") as handle:
            self.process = subprocess.Popen(
                argv,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        """Return the output up to now."""
        with open(self.output, encoding="utf-8", errors="replace") as handle:
            return handle.read()

    def has_ended(self) -> bool:
        """Return whether the command has ended."""
        return self.process.poll() is not None

    def signal(self, name: str) -> None:
        """Send a signal to it and its workers, as a terminal does.

        KILL goes to the command alone, as from the kernel.
        """
        if name == "KILL":
            os.kill(self.process.pid, signal.SIGKILL)
        else:
            os.killpg(self.process.pid, getattr(signal, "SIG" + name))

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, None where it still runs after so many seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End it, if it still runs, as Ctrl-C does, and where that is not enough with SIGKILL."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if not self.has_ended():
                os.killpg(self.process.pid, number)
                self.wait(END_SECONDS)
