# SPDX-License-Identifier: Apache-2.0
"""A node's neighbour, as its guard sees it: one held connection over the mesh, and calls at its SSH
port when that falls silent.

Shipped beside guard.py and complete in itself. Each node of an attempt watches the next one, the
last the first. Times are monotonic seconds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time

# A neighbour that says nothing for LISTEN is called at its SSH port; it has vanished when it has
# been silent for SILENT and FAILED calls in a row found nobody who says or closes anything within
# CALL. A port that is refused or a login that fails is a node that lives.
LISTEN, SILENT, CALL, FAILED = 5.0, 15.0, 6.0, 2
# How long a neighbour's attempt may have been over, or gone, before this node ends its part: it is
# told by the others long before.
AFTER_END = 10.0
# How long a neighbour may take to start at all.
NEVER = 300.0
# Bytes of a neighbour that are taken at a look, and the longest line.
TAKEN = 1 << 16
# Characters of a word of its that are kept.
WORD = 64
# Between two logins that come to nothing, at the least and at the most.
AGAIN, RARELY = 2.0, 60.0


def ssh(record, peer, words):
    """Return the command that calls the gate of a peer with the key of this attempt."""
    return ["ssh", "-F", record.get("mesh") or os.devnull, peer, words]


def beat_of(said):
    """Return {state, holds, ended} of what a neighbour says, in types and lengths of ours.

    Raises ValueError, TypeError, KeyError or RecursionError for what is no beat.
    """
    ended = dict(said["ended"] or {})
    over = {"ok": bool(ended.get("ok")), "by": str(ended.get("by") or "")[:WORD]} if ended else None
    return {"state": str(said["state"])[:WORD], "holds": bool(said["holds"]), "ended": over}


def call_port(host, port, seconds):
    """Return '' where a server at host:port says a word, hangs up or refuses: somebody is there;
    else why nobody is.
    """
    until = time.monotonic() + seconds
    try:
        with socket.create_connection((host, port), timeout=seconds) as line:
            line.settimeout(max(0.1, until - time.monotonic()))
            line.recv(4)  # a node that is frozen takes the connection, and says nothing
            return ""
    except (ConnectionRefusedError, ConnectionResetError):
        return ""
    except socket.timeout:
        return "nobody answered within %d s" % seconds
    except OSError as error:
        return error.strerror or str(error)


class Neighbour:
    """The node that this one watches: one held connection, and calls at its port when that falls
    silent.
    """

    def __init__(self, plan, node, record, now):
        """Watch the node that follows this one in the plan."""
        names = [item["name"] for item in plan["nodes"]]
        self.entry = plan["nodes"][(names.index(node) + 1) % len(names)]
        self.name, self.begun, self.last, self.heard = self.entry["name"], now, now, None
        self.argv, self.place = ssh(record, self.name, "beat %d" % record["attempt"]), None
        self.seen, self.done, self.bad, self.next, self.failed, self.why = (
            False,
            False,
            None,
            now,
            0,
            "",
        )
        self.call, self.rest, self.caller, self.quiet, self.wait = None, b"", None, now, AGAIN

    def connect(self, now):
        """Begin to listen; that it does not work shows by silence."""
        self.next, self.wait = now + self.wait, min(RARELY, 2 * self.wait)
        self.rest, self.quiet = b"", now
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
        """Give the connection up."""
        call, self.call = self.call, None
        if call is not None:
            call.kill()
            call.stdout.close()
            call.wait()

    def descriptor(self):
        """Return what select may wait for, [] where nothing is connected."""
        return [self.call.stdout] if self.call is not None else []

    def listen(self, now):
        """Take in what the neighbour has said since the last look."""
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
                continue  # a login may say something of its own
            self.last, self.failed, self.wait = now, 0, AGAIN

    def where(self):
        """Return (host, port) of the neighbour's SSH server as the mesh's configuration has it."""
        if self.place is None:
            done = subprocess.run(
                self.argv[:1] + ["-G"] + self.argv[1:4],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=10,
            )
            told = dict(
                line.split(" ", 1)
                for line in done.stdout.decode("utf-8", "replace").splitlines()
                if " " in line
            )
            self.place = told.get("hostname") or self.entry["address"], int(told.get("port") or 22)
        return self.place

    def _ask(self):
        try:
            why = call_port(*self.where(), CALL)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return  # this node cannot even ask; nothing is known of the other
        self.failed, self.why = (self.failed + 1, why) if why else (0, "")

    def look(self, now):
        """Listen, connect again, call; return why the attempt is to end: (reason, words) or None."""
        self.listen(now)
        if self.done:
            return None
        if self.call is None and now >= self.next:
            self.connect(now)
        elif self.call is not None and now - max(self.last, self.quiet) > 3 * SILENT:
            self.hang_up()  # it is connected to somebody who says nothing, while the node lives
        if now - self.last > LISTEN:
            if self.caller is None or not self.caller.is_alive():
                if self.failed >= FAILED and now - self.last >= SILENT:
                    return (
                        "lost",
                        (
                            f"it says nothing for {now - self.last:.0f} s, and at its SSH port:"
                            f" {self.why}"
                        ),
                    )
                self.caller = threading.Thread(target=self._ask, daemon=True)
                self.caller.start()
            return None
        self.failed = 0
        return self.judge(now)

    def judge(self, now):
        """Return why the attempt is to end after what the neighbour itself says, or None."""
        heard = self.heard
        if heard is None:
            return None
        self.seen = self.seen or heard["state"] == "active"
        ended = heard["ended"]
        if ended and ended.get("ok"):
            self.done = True
            self.hang_up()
        if self.done or heard["holds"]:
            self.bad = None
            return None
        self.bad = now if self.bad is None else self.bad
        if ended and now - self.bad >= AFTER_END:
            by = ", stopped by {}".format(ended["by"]) if ended.get("by") else ""
            return "peer", f"its attempt has been over for {now - self.bad:.0f} s{by}"
        if not ended and self.seen and now - self.bad >= AFTER_END:
            return (
                "lost",
                (
                    "its attempt is gone without an end: the node or the user's systemd there was"
                    " started anew"
                ),
            )
        if not ended and not self.seen and now - self.begun >= NEVER:
            return "lost", f"its attempt did not start within {NEVER:.0f} s"
        return None

    def spare(self, seconds):
        """Leave a time out in which this node stood still."""
        self.last, self.quiet, self.begun = (
            self.last + seconds,
            self.quiet + seconds,
            self.begun + seconds,
        )
        self.bad, self.failed = None, 0
