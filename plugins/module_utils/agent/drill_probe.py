# SPDX-License-Identifier: Apache-2.0
"""Probe of a drill on a node: the state of a run several times per second.

It prints what the files of a run and /proc show, as JSON lines. It is sent to the node over the
connection that it answers on (stdin_boot.py), reads only, and ends when that connection does. It
does not have the mark of the run, so that it is not among the processes that it counts.

python3 -I -c BOOT RUN BASE SIGN
    SIGN: a pattern of a line in a rank's log after the fault; may be empty
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import time

EVERY = 0.25
# A state is printed when it differs from the one before, and at least so often (seconds).
BEAT = 2.0
NOTES = {"exit": "exit.json", "stop": "stop.json", "stall": "stall.json", "loss": "loss.json"}
MARK = b"TRAINYARD_ATTEMPT="


def read(path):
    """Return a file's text, '' without the file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def mapping(path):
    """Return the mapping in a JSON file, None where it is missing or incomplete."""
    try:
        value = json.loads(read(path))
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    return value


def marked(run):
    """Return ({attempt: number of processes}, pids) of a run's marked processes."""
    counts, pids = {}, set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as handle:
                words = handle.read().split(b"\0")
        except OSError:
            continue
        for word in words:
            if word.startswith(MARK + run.encode() + b"/"):
                attempt = word.rpartition(b"/")[2].decode("ascii", "replace")
                counts[attempt] = counts.get(attempt, 0) + 1
                pids.add(int(name))
    return counts, pids


class Log:
    """A rank's log, with the numbers of steps and saved checkpoints in it.

    Each look goes on at the end of the last one. A log that was truncated or replaced is read from
    its beginning.
    """

    def __init__(self, path):
        self.path, self.offset, self.rest = path, 0, ""
        self.steps, self.saved, self.sign = 0, 0, False

    def look(self, step, saved, sign):
        """Read the new lines.

        step, sign: compiled patterns or None. saved: a list of compiled patterns.
        """
        try:
            with open(self.path, "rb") as handle:
                if os.fstat(handle.fileno()).st_size < self.offset:
                    self.offset, self.rest = 0, ""
                handle.seek(self.offset)
                raw = handle.read(1 << 22)
                self.offset += len(raw)
        except OSError:
            return
        lines = (self.rest + raw.decode("utf-8", "replace")).split("\n")
        self.rest = lines.pop()[-65536:]
        for line in lines:
            line = line[:65536]
            self.steps += bool(step and step.search(line))
            self.saved += any(pattern.search(line) for pattern in saved)
            self.sign = self.sign or bool(sign and sign.search(line))


class Attempt:
    """State of one attempt's directory."""

    def __init__(self, directory):
        self.directory, self.plan, self.logs = directory, None, {}
        self.step, self.saved = None, []

    def prepare(self):
        """Read the logs' names and patterns from the plan, once that is there."""
        plan = mapping(os.path.join(self.directory, "plan.json"))
        if plan:
            self.plan, table = plan, plan["suite"].get("logs") or {}
            if table.get("step"):
                self.step = re.compile(table["step"]["line"])
            self.saved = [re.compile(line) for line in (table.get("saved") or {}).get("lines", ())]

    def read_events(self):
        """Return the events of ranks.jsonl."""
        events = []
        for line in read(os.path.join(self.directory, "ranks.jsonl")).splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return events

    def read_logs(self, ranks, sign):
        """Read the new lines in the logs of these ranks."""
        for entry in (self.plan or {}).get("ranks", ()):
            if entry["rank"] in ranks:
                path = os.path.join(self.directory, entry["log"])
                log = self.logs.setdefault(entry["rank"], Log(path))
                log.look(self.step, self.saved, sign)

    def look(self, sign, counts, pids):
        """Return the present state.

        sign: a compiled pattern or None. counts, pids: the processes as `marked` returns them.
        """
        if self.plan is None:
            self.prepare()
        state = {name: mapping(os.path.join(self.directory, file)) for name, file in NOTES.items()}
        events = self.read_events()
        starts = {
            event.get("rank"): event.get("pid") for event in events if event.get("event") == "start"
        }
        self.read_logs(starts, sign)
        number = self.directory.rpartition("-")[2]
        state.update(
            events=[event for event in events if event.get("event") in ("end", "launcher_end")],
            ranks=[
                {"rank": rank, "pid": pid, "alive": pid in pids}
                for rank, pid in sorted(starts.items(), key=str)
            ],
            steps=max([log.steps for log in self.logs.values()] or [0]),
            saved=max([log.saved for log in self.logs.values()] or [0]),
            sign=any(log.sign for log in self.logs.values()),
            marked=counts.get(number, 0),
        )
        return state


def attempt_names(folder):
    """Return the names of a run's attempts, [] where the run has no directory."""
    if not os.path.isdir(folder):
        return []
    return [name for name in os.listdir(folder) if re.match(r"attempt-[1-9][0-9]*\Z", name)]


def main(arguments):
    """Print the run's state until standard input ends, or the reader has gone.

    arguments: run, base and sign, as the module says.
    """
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        watch(*arguments)


def watch(run, base, sign):
    """Print the state of a run until standard input ends."""
    folder = os.path.join(os.path.expanduser("~"), base, "runs", run)
    known, last, printed_at = {}, None, 0.0
    sign_pattern = None
    if sign:
        sign_pattern = re.compile(sign)
    while True:
        counts, pids = marked(run)
        for name in attempt_names(folder):
            known.setdefault(name[8:], Attempt(os.path.join(folder, name)))
        states = {
            number: attempt.look(sign_pattern, counts, pids)
            for number, attempt in sorted(known.items())
        }
        for number in counts:
            states.setdefault(number, {"marked": counts[number]})
        if states != last or time.monotonic() - printed_at >= BEAT:
            last, printed_at = states, time.monotonic()
            print(json.dumps({"attempts": states}), flush=True)
        # The caller is gone when there is nothing more to read. A container's engine gives no other
        # sign of that: it goes on taking the output.
        if select.select([0], [], [], EVERY)[0] and not os.read(0, 1):
            return
