# SPDX-License-Identifier: Apache-2.0
"""A member of a run that lies: it uses the run's credential on its node, as a training could.

It claims to lead the supervisors. Then it orders what no controller has compiled.

The supervisor of its node is stopped and stays so.

    liar.py RUN NODE PEER POINT     prints what the peer answered, as JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time

ORDERS = "\x1b]52;c;cHduZWQ=\x07\x1b[2J\x9b31m\u202etxt"
LONG = "sk-." * 100_000  # takes minutes where all of it is searched for tokens
NEWEST = 1 << 61  # no true checkpoint has a number so high
NOISE = (
    b"[" * 200000,
    b'{"kind":' * 5000,
    b"7",
    b"\xff\xfe\x00",
    b'{"kind": "append"}',
    b'{"kind": "run", "argv": ["touch", "/tmp/trainyard-lying-pwned"]}',
    b'{"kind": "request", "value": {"kind": "plan", "attempt": 9, "members": ["localhost"]}}',
)


class Line:
    """A connection to the supervisor of the peer, and what came over it."""

    def __init__(self, config, peer):
        argv = ["ssh", "-F", config, peer, "talk 1"]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.rest, self.received = b"", []

    def send(self, message):
        """Send bytes, or a mapping as JSON."""
        if not isinstance(message, bytes):
            message = json.dumps(message).encode()
        self.process.stdin.write(message + b"\n")

    def flood(self):
        """Send a line that does not end, until the peer hangs up."""
        with contextlib.suppress(OSError):
            while True:
                self.process.stdin.write(b"7" * 65536)
        self.process.wait()

    def read(self, seconds):
        """Return the messages of so many seconds."""
        new, until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            if not select.select([self.process.stdout], [], [], 0.1)[0]:
                continue
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise EOFError("the peer has ended the connection")
            *lines, self.rest = (self.rest + piece).split(b"\n")
            new += [json.loads(line) for line in lines]
        self.received += new
        return new

    def grant(self, attempt, append):
        """Claim to lead and to let the peer train, until it has failed to start an attempt."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            self.send(append)
            for message in self.read(0.5):
                if message["kind"] != "ask_lease":
                    continue
                self.send({"kind": "lease", "nonce": message["nonce"], "attempt": attempt})
                number, *_rest, finding, _can_join = message["report"]
                if number == attempt and finding:
                    return


def forged(node, peer, step, point):
    """Return the entries that the liar wants to have agreed on.

    step: of the run's checkpoint. point: the description of one that lies outside of the run.
    """
    text = {"outcome": "failed", "cause": "killed", "node": peer, "rank": 0, "text": ORDERS}
    verdict = {
        "kind": "verdict", "attempt": 1, "again": True, "delay": 0, "verdict": text,
        "decision": {"again": True, "why": ORDERS + LONG}, "failed": [peer], "broken": [],
    }  # fmt: skip
    plan = {"kind": "plan", "generation": 1, "by": node}
    return [
        {"kind": "supersede", "attempt": 1},
        {"kind": "ended", "attempt": 1, "node": node},
        {"kind": "ended", "attempt": 1, "node": peer},
        verdict,
        # No controller has compiled a plan for the peer alone.
        dict(plan, attempt=2, members=[peer], step=step),
        {"kind": "supersede", "attempt": 2},
        {"kind": "ended", "attempt": 2, "node": peer},
        dict(verdict, attempt=2, newer={"step": NEWEST, "point": point}),
        # This one begins from the checkpoint that lies outside of the run.
        dict(plan, attempt=3, members=[peer, node], step=NEWEST),
    ]


def lie(line, state, node, peer, point):
    """Claim to lead, contradict what is agreed on, and order two attempts."""
    term, log = state["term"] + 1000, state["log"]
    append = {"kind": "append", "term": term, "commit": 0, "round": 1, "entries": []}
    append.update(prev_index=0, prev_term=0, entries=[[term, {"kind": "done", "attempt": 1}]])
    line.send(append)
    line.read(1)
    steps = [value["step"] for _term, value in log if value and "step" in value]
    wanted = forged(node, peer, max(steps), point)
    append.update(prev_index=len(log), prev_term=log[-1][0], round=2)
    for attempt, number in ((2, 5), (3, 9)):
        entries = [[term, value] for value in wanted[:number]]
        append.update(entries=entries, commit=len(log) + number)
        line.grant(attempt, append)


def main(run, node, peer, point):
    own = os.path.expanduser(f"~/.trainyard/runs/{run}/supervisor/{node}")
    unit = f"yardsupervisor-{run}-1-{node}.service"
    subprocess.run(["systemctl", "--user", "stop", unit], check=True)
    with open(f"{own}/order.json", encoding="utf-8") as handle:
        config = json.load(handle)["mesh"]
    with open(f"{own}/state.json", encoding="utf-8") as handle:
        state = json.load(handle)
    line = Line(config, peer)
    for noise in NOISE:
        line.send(noise)
    line.flood()
    line = Line(config, peer)
    lie(line, state, node, peer, json.loads(point))
    print(json.dumps(line.received))


main(*sys.argv[1:])
