# SPDX-License-Identifier: Apache-2.0
"""A program on a node that answers questions over a connection that stays open.

A question and an answer are one line of JSON each. The node is not trusted: an answer has a largest
size and a longest time, and whoever asks validates it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from . import zipapp

MOST_BYTES = 1 << 20  # of one answer
START_SECONDS = 20.0  # for the archive to travel
SEND_SECONDS = 5.0  # for one question
_PART = 64 << 10


class HeldError(Exception):
    """The program has ended, was too slow, or answered something other than a line of JSON."""


class HeldProgram:
    """A program of module_utils on a node, until close() or the end of this process.

    argv: what starts a Python with zipapp.BOOT on the node. program: the module's name below
    module_utils. spec: its first line. Raises HeldError, OSError.
    """

    def __init__(self, argv: Sequence[str], program: str, spec: Any) -> None:
        self._rest, first = b"", zipapp.stdin_bytes(program) + _line(spec)
        inner_input, self._input = os.pipe2(os.O_CLOEXEC)
        self._output, inner_output = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                argv, stdin=inner_input, stdout=inner_output, stderr=subprocess.DEVNULL
            )
        except OSError:
            os.close(self._input)
            os.close(self._output)
            raise
        finally:
            os.close(inner_input)
            os.close(inner_output)
        os.set_blocking(self._input, False)
        try:
            self._send(first, START_SECONDS)
        except HeldError:
            self.close()
            raise

    def ask(self, question: Any, seconds: float) -> Any:
        """Return the answer to a question. seconds: for which it is waited.

        Raises HeldError. Nothing may be asked afterwards, since the answer may come later.
        """
        self._send(_line(question), SEND_SECONDS)
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            self._rest += self._receive(until)
            if len(self._rest) > MOST_BYTES:
                raise HeldError(f"the answer is longer than {MOST_BYTES} bytes")
        answer, self._rest = self._rest.split(b"\n", 1)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            raise HeldError("the answer is no JSON") from None

    def close(self) -> None:
        """End the connection, and with it the program."""
        self._process.kill()
        self._process.wait()
        os.close(self._input)
        os.close(self._output)

    def _send(self, data: bytes, seconds: float) -> None:
        until, left = time.monotonic() + seconds, memoryview(data)
        while left:
            if not select.select([], [self._input], [], max(0.0, until - time.monotonic()))[1]:
                raise HeldError("the question was not taken in time")
            try:
                left = left[os.write(self._input, left[:_PART]) :]
            except OSError as error:
                raise HeldError(f"the program has ended: {error.strerror}") from None

    def _receive(self, until: float) -> bytes:
        if not select.select([self._output], [], [], max(0.0, until - time.monotonic()))[0]:
            raise HeldError("no answer came in time")
        data = os.read(self._output, _PART)
        if not data:
            raise HeldError("the program has ended")
        return data


def _line(value: Any) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"
