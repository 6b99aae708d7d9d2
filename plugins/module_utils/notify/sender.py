# SPDX-License-Identifier: Apache-2.0
"""Sends one notification. It runs as a process of its own, so that no receiver delays a run.

Standard input is JSON: {url, headers, body} or {command, body}, seconds for a try, and perhaps
pauses between tries. Standard output is {problem: text}, '' where the receiver took it. Addresses
come on standard input, since every user of a machine may see a command line. Only the standard
library is imported, so it starts fast.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any, NoReturn

PAUSES = (1,)  # seconds between two tries
MOST_BYTES = 65536
# Keys with which the services of China say that they did not take a message. 0 means success.
STATUS_KEYS = ("errcode", "code", "StatusCode")


class Refused(Exception):
    """The receiver answered that it does not take the message. Another try is of no use."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the next host would get the message, and a GET has none."""

    def redirect_request(self, *_arguments: Any, **_named: Any) -> None:
        """Follow no redirect."""


def _expire(_signal: int, _frame: Any) -> NoReturn:
    raise TimeoutError


def post(message: dict[str, Any]) -> None:
    """Send a POST. Raises Refused, OSError or ValueError."""
    opener = urllib.request.build_opener(_NoRedirect())
    request = urllib.request.Request(
        message["url"], message["body"].encode(), message["headers"], method="POST"
    )
    try:
        with opener.open(request, timeout=message["seconds"]) as response:
            answer = response.read(MOST_BYTES)
    except urllib.error.HTTPError as error:
        if error.code >= 500 or error.code == 429:
            raise OSError(f"HTTP status {error.code}") from error
        if 300 <= error.code < 400:
            raise Refused(
                f"HTTP status {error.code}: redirects are not followed; give the address that it"
                " leads to"
            ) from error
        raise Refused(f"HTTP status {error.code}") from error
    _check_answer(answer)


def _check_answer(answer: bytes) -> None:
    """Raise Refused where a service says in its answer that it did not take the message."""
    try:
        content = json.loads(answer)
    except (ValueError, RecursionError):
        return
    if not isinstance(content, dict):
        return
    for key in STATUS_KEYS:
        if isinstance(content.get(key), int) and content[key] != 0:
            words = content.get("errmsg") or content.get("msg") or ""
            raise Refused(f"{key} {content[key]} {words}".strip())


def execute(message: dict[str, Any]) -> None:
    """Start a command with the event on its standard input. Raises OSError."""
    with subprocess.Popen(
        message["command"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            process.communicate(message["body"].encode(), timeout=message["seconds"])
        except (subprocess.TimeoutExpired, TimeoutError) as error:
            process.kill()
            raise TimeoutError from error
    if process.returncode:
        raise OSError(f"exit code {process.returncode}")


def deliver(message: dict[str, Any]) -> str:
    """Send a message, again after each pause, and return why it did not arrive, or ''."""
    send = post
    if message.get("command"):
        send = execute
    problem = ""
    for pause in (0, *message.get("pauses", PAUSES)):
        time.sleep(pause)
        # A server that answers a byte at a time passes the timeout of a socket.
        signal.setitimer(signal.ITIMER_REAL, message["seconds"] + 0.5)
        try:
            send(message)
            return ""
        except Refused as error:
            return str(error)
        except TimeoutError:
            problem = f"no answer within {message['seconds']} s"
        except (OSError, ValueError) as error:
            problem = _describe(error, message["seconds"])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return problem


def _describe(error: Exception, seconds: float) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, TimeoutError):
        return f"no answer within {seconds} s"
    return str(reason or error) or type(error).__name__


def main(_arguments: Any = ()) -> int:
    """Send the message of standard input and print the result."""
    signal.signal(signal.SIGALRM, _expire)
    # Ctrl-C is for the command that started this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    problem = deliver(json.load(sys.stdin))
    json.dump({"problem": problem}, sys.stdout)
    return 0


if __name__ == "__main__":
    main()
