# SPDX-License-Identifier: Apache-2.0
"""Programs of the node: run one, and get its exit code and its output as text."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from typing import Any, Callable, Tuple

# run_command(argv) -> (exit code, stdout, stderr). No code (None): the program was ended.
RunCommand = Callable[..., Tuple[Any, str, str]]
# So much a program may write on each of its two outputs: a peer may be behind it.
MOST_BYTES = 1 << 20


def user_environment(uid):
    """Return the environment variables of systemctl and systemd-run.

    With them the two find the user's manager over SSH (facts, 'Nodes in Docker').
    """
    return {"XDG_RUNTIME_DIR": f"/run/user/{uid}"}


def command_runner(module, handle_exceptions=True, **variables):
    """Return run_command(argv, data=None) -> (exit code, stdout, stderr) of an Ansible module.

    Programs speak English and find the user's own systemd. handle_exceptions: False to raise
    OSError where a program is missing. variables: others of its environment.
    """
    environment = {**user_environment(os.getuid()), "LANG": "C", "LC_ALL": "C", **variables}

    def run_command(argv, data=None):
        return module.run_command(
            argv, data=data, environ_update=environment, handle_exceptions=handle_exceptions
        )

    return run_command


def run_program(argv, timeout=20):
    """Run a program without terminal and input.

    Returns (exit code, stdout, stderr). A program that runs longer than timeout seconds, or writes
    more than MOST_BYTES, is ended. Its code is missing (None). stderr is empty where the time was
    over.
    """
    environ = dict(os.environ, LC_ALL="C", LANGUAGE="C")
    until = time.monotonic() + timeout
    try:
        call = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
        )
    except OSError as problem:
        return 127, "", f"{argv[0]}: {problem.strerror}"
    try:
        out, err = read_outputs(call, until)
        return call.wait(max(0.1, until - time.monotonic())), out, err
    except subprocess.TimeoutExpired:
        return None, "", ""
    except OverflowError:
        return None, "", f"{argv[0]}: more than {MOST_BYTES} bytes"
    finally:
        call.kill()
        call.stdout.close()
        call.stderr.close()
        call.wait()


def read_outputs(call, until):
    """Return (stdout, stderr) of a process that was started with two pipes, as text.

    Raises subprocess.TimeoutExpired at `until`, a time of the monotonic clock, and OverflowError
    where one of the two is longer than MOST_BYTES.
    """
    outputs = {call.stdout: bytearray(), call.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream in outputs:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            remaining = until - time.monotonic()
            ready = []
            if remaining > 0:
                ready = selector.select(remaining)
            if not ready:
                raise subprocess.TimeoutExpired(call.args, 0)
            for key, _events in ready:
                piece = os.read(key.fd, 1 << 16)
                outputs[key.fileobj] += piece
                if not piece:
                    selector.unregister(key.fileobj)
                elif len(outputs[key.fileobj]) > MOST_BYTES:
                    raise OverflowError
    return tuple(text.decode("utf-8", "replace") for text in outputs.values())
