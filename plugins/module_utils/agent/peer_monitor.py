# SPDX-License-Identifier: Apache-2.0
"""Watch of a node's neighbour, for the guard.

The guard keeps one connection over the mesh, and calls the neighbour's SSH port when that is
silent. Each node of an attempt watches the next one, the last the first. Times are monotonic
seconds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time

# A neighbour that is silent for LISTEN seconds is called at its SSH port. It has vanished when it
# was silent for SILENT seconds, and FAILED calls in a row got no byte and no end of the connection
# within CALL seconds. A port that is refused or a login that fails is a node that lives.
LISTEN, SILENT, CALL = 5.0, 15.0, 6.0
FAILED = 2
# Seconds for which a neighbour's attempt may have been over, or gone, before this node ends its
# part. The other nodes report it long before.
AFTER_END = 10.0
# Seconds that a neighbour may take to start at all.
NEVER = 300.0
# Bytes of a neighbour that are read at once, and the longest line.
TAKEN = 1 << 16
# Characters of a neighbour's word that are kept.
WORD = 64
# Seconds between two logins that fail, at the least and at the most.
AGAIN, RARELY = 2.0, 60.0


def ssh(record, peer, words):
    """Return the command that calls the gate of a peer with the key of this attempt."""
    return ["ssh", "-F", record.get("mesh") or os.devnull, peer, words]


def beat_of(answer):
    """Return {state, holds, ended} of a neighbour's line, in safe types and lengths.

    Raises ValueError, TypeError, KeyError or RecursionError for a line that is not a beat.
    """
    ended = dict(answer["ended"] or {})
    beat = {"state": str(answer["state"])[:WORD], "holds": bool(answer["holds"]), "ended": None}
    if ended:
        beat["ended"] = {"ok": bool(ended.get("ok")), "by": str(ended.get("by") or "")[:WORD]}
    return beat


def call_port(host, port, seconds):
    """Return '' where a server at host:port is alive, else a reason against it.

    A server that sends a word, hangs up or refuses is alive.
    """
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            connection.recv(4)  # a node that is frozen takes the connection, and sends nothing
            return ""
    except (ConnectionRefusedError, ConnectionResetError):
        return ""
    except socket.timeout:
        return f"nobody answered within {int(seconds)} s"
    except OSError as error:
        return error.strerror or str(error)


class Neighbour:
    """Node that this one watches, by a connection and by calls at its SSH port."""

    def __init__(self, plan, node, record, now):
        """Watch the node that follows this one in the plan."""
        names = [item["name"] for item in plan["nodes"]]
        self.entry = plan["nodes"][(names.index(node) + 1) % len(names)]
        self.name, self.begun = self.entry["name"], now
        # The connection: its process and the rest of its output, the time of its begin, the time
        # of the next one and the wait after that.
        self.argv = ssh(record, self.name, f"beat {record['attempt']:d}")
        self.call, self.rest, self.connected_at = None, b"", now
        self.next, self.wait = now, AGAIN
        # The latest beat and its time. seen: the neighbour's attempt was active once. done: it has
        # succeeded. bad: the time since which it does not hold its node.
        self.heard, self.last = None, now
        self.seen, self.done, self.bad = False, False, None
        # The calls at the SSH port: their address, the running thread, the failures in a row and
        # the reason of the latest.
        self.address, self.caller = None, None
        self.failed, self.reason = 0, ""

    def connect(self, now):
        """Begin to listen.

        A failure shows by silence.
        """
        self.next, self.wait = now + self.wait, min(RARELY, 2 * self.wait)
        self.rest, self.connected_at = b"", now
        try:
            self.call = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            os.set_blocking(self.call.stdout.fileno(), False)
        except OSError:
            return

    def hang_up(self):
        """End the connection."""
        call, self.call = self.call, None
        if call is not None:
            call.kill()
            call.stdout.close()
            call.wait()

    def descriptor(self):
        """Return a list for select, [] without a connection."""
        if self.call is None:
            return []
        return [self.call.stdout]

    def listen(self, now):
        """Read the neighbour's new beats."""
        if self.call is None:
            return
        try:
            data = os.read(self.call.stdout.fileno(), TAKEN)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self.rest) > TAKEN:
            self.hang_up()
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            try:
                self.heard = beat_of(json.loads(line))
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # a login may print something of its own
            self.last, self.failed, self.wait = now, 0, AGAIN

    def ssh_address(self):
        """Return (host, port) of the neighbour's SSH server, from ssh's configuration."""
        if self.address is None:
            done = subprocess.run(
                self.argv[:1] + ["-G"] + self.argv[1:4],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=10,
            )
            options = dict(
                line.split(" ", 1)
                for line in done.stdout.decode("utf-8", "replace").splitlines()
                if " " in line
            )
            host = options.get("hostname") or self.entry["address"]
            self.address = host, int(options.get("port") or 22)
        return self.address

    def _call_port(self):
        """Call the SSH port once, and note the result."""
        try:
            reason = call_port(*self.ssh_address(), CALL)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return  # this node cannot even call, so nothing is known of the other
        self.reason = reason
        if reason:
            self.failed += 1
        else:
            self.failed = 0

    def look(self, now):
        """Listen, connect again and call the port, as needed.

        Return (reason, sentence) where the attempt has to end, or None.
        """
        self.listen(now)
        if self.done:
            return None
        if self.call is None and now >= self.next:
            self.connect(now)
        elif self.call is not None and now - max(self.last, self.connected_at) > 3 * SILENT:
            self.hang_up()  # the other end of the connection is silent, while the node lives
        if now - self.last > LISTEN:
            return self.judge_silence(now)
        self.failed = 0
        return self.judge(now)

    def judge_silence(self, now):
        """Call the port again, or return (reason, sentence) after too many failures."""
        if self.caller is not None and self.caller.is_alive():
            return None
        silence = now - self.last
        if self.failed >= FAILED and silence >= SILENT:
            return (
                "lost",
                f"it says nothing for {silence:.0f} s, and at its SSH port: {self.reason}",
            )
        self.caller = threading.Thread(target=self._call_port, daemon=True)
        self.caller.start()
        return None

    def judge(self, now):
        """Return (reason, sentence) where the attempt has to end after a beat, or None."""
        beat = self.heard
        if beat is None:
            return None
        self.seen = self.seen or beat["state"] == "active"
        ended = beat["ended"]
        if ended and ended.get("ok"):
            self.done = True
            self.hang_up()
        if self.done or beat["holds"]:
            self.bad = None
            return None
        if self.bad is None:
            self.bad = now
        if ended:
            return self.judge_end(now, ended.get("by"))
        return self.judge_absence(now)

    def judge_end(self, now, stopped_by):
        """Return (reason, sentence) where the neighbour's attempt has been over too long."""
        if now - self.bad < AFTER_END:
            return None
        sentence = f"its attempt has been over for {now - self.bad:.0f} s"
        if stopped_by:
            sentence += f", stopped by {stopped_by}"
        return "peer", sentence

    def judge_absence(self, now):
        """Return (reason, sentence) where the neighbour's attempt is missing too long."""
        if self.seen and now - self.bad >= AFTER_END:
            return (
                "lost",
                "its attempt is gone without an end: the node or the user's systemd there was"
                " started anew",
            )
        if not self.seen and now - self.begun >= NEVER:
            return "lost", f"its attempt did not start within {NEVER:.0f} s"
        return None

    def spare(self, seconds):
        """Leave out a time in which this node was frozen."""
        self.last += seconds
        self.connected_at += seconds
        self.begun += seconds
        self.bad, self.failed = None, 0
