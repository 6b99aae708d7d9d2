# SPDX-License-Identifier: Apache-2.0
"""Tell a site's receivers about the events of a run, each once per attempt.

Every message has a process of its own, so that nothing of it delays or fails a run. Two commands of
one controller that follow the same run tell an event once: the first makes a file for it. Commands
of two controllers do not know of each other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    Secrets,
    host_of,
    printable,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.notify import message as notify
from ansible_collections.trainyard.cluster.plugins.module_utils.notify import sender
from ansible_collections.trainyard.cluster.plugins.module_utils.notify.message import (
    Channel,
    Event,
)

# The end of a command waits so long for its messages: two tries and the pause between them.
WAIT_SECONDS = 13
# The verdict waits so long for them, since it is to be the last line.
VERDICT_SECONDS = 3
FOLDER = "notified"


def describe(channel: Channel) -> str:
    """Return a receiver for people, without the secrets of its address."""
    name = f"trainyard_notify[{channel['index']}]"
    if channel["url"]:
        return f"{name} ({host_of(channel['url'])})"
    return f"{name} ({channel['command'][0]})"


class Notifier:
    """Sends events, and keeps the processes that send them."""

    def __init__(self, channels: Sequence[Channel], runs_dir: str) -> None:
        self._channels, self._runs_dir = channels, runs_dir
        self._processes: list[tuple[Channel, subprocess.Popen[bytes]]] = []
        self._warned: set[int] = set()

    def tell(self, event: Event, from_nodes: bool = False) -> int:
        """Start to tell an event to all that want it, and return their number.

        from_nodes: whether the run's nodes tell it to the receivers that want it from there. 0:
        nobody wants it, or it was told before.
        """
        wanting = [
            channel
            for channel in self._channels
            if event["event"] in channel["on"] and not (from_nodes and channel["from_nodes"])
        ]
        if not wanting or not self._is_first(event):
            return 0
        return self.send(wanting, event)

    def send(self, channels: Sequence[Channel], event: Event) -> int:
        """Start to tell an event to some receivers, and return their number."""
        for channel in channels:
            self._processes.append((channel, _start(channel, event)))
        return len(channels)

    def settle(self, seconds: float) -> None:
        """Wait until all messages have arrived or failed, some seconds at the most."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all(process.poll() is not None for _channel, process in self._processes):
                return
            time.sleep(0.05)

    def problems(self, wait: bool = False) -> list[str]:
        """Return a sentence for each receiver that did not take a message, once for each.

        wait: for the messages that are on their way, WAIT_SECONDS at the most.
        """
        deadline, texts, left = time.monotonic(), [], []
        if wait:
            deadline += WAIT_SECONDS
        for channel, process in self._processes:
            if process.poll() is None and not wait:
                left.append((channel, process))
                continue
            problem = _result(process, max(0.1, deadline - time.monotonic()))
            if problem and channel["index"] not in self._warned:
                self._warned.add(channel["index"])
                texts.append(f"{describe(channel)} was not told: {self._mask(problem)}")
        self._processes = left
        return texts

    def _mask(self, text: str) -> str:
        """Return a receiver's words, without what the site keeps secret."""
        values = [channel[key] for channel in self._channels for key in ("url", "secret")]
        return printable(text, *Secrets((), tuple(value for value in values if value)), limit=300)

    def _is_first(self, event: Event) -> bool:
        """Return whether this command is the first one here that tells an event."""
        folder = os.path.join(self._runs_dir, event["run"], FOLDER)
        path = os.path.join(folder, f"{event['attempt']}-{event['event']}")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        except OSError:
            return True  # told twice is better than not at all
        return True


def _start(channel: Channel, event: Event) -> subprocess.Popen[bytes]:
    """Start the process that sends an event. It outlives the command if it has to."""
    message = notify.compose(channel, event, time.time())
    process = subprocess.Popen(
        [sys.executable, "-I", sender.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin
    process.stdin.write(json.dumps(message).encode())
    process.stdin.close()
    process.stdin = None
    return process


def _result(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Return why a message did not arrive, '' where it did."""
    try:
        output = process.communicate(timeout=seconds)[0]
        return str(json.loads(output)["problem"])
    except subprocess.TimeoutExpired:
        return "the answer was not awaited"
    except (ValueError, KeyError, TypeError):
        return f"the sender ended with exit code {process.returncode}"
