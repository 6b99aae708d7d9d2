# SPDX-License-Identifier: Apache-2.0
"""A drill's eye on a node: what the files of a run and /proc show, several times a second, as JSON
lines. It needs nothing but Python >= 3.8.

It is sent to the node over the connection that it answers on, reads only, and ends when that
connection does. It bears no mark of the run, so that it is none of the processes that are looked
for.

python3 -I -c BOOT RUN BASE SIGN < this file's bytes        SIGN: a pattern that a rank's log says
when the fault has been done; may be empty
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time

# Reads as many bytes of source as its first argument says, and goes on as that program.
BOOT = (
    "import sys; s = sys.stdin.buffer.read(int(sys.argv[1])); exec(compile(s, 'drill_watch',"
    " 'exec'), {'__name__': '__main__'})"
)
EVERY = 0.25
# A look is printed when it differs from the one before, and at least so often (seconds).
BEAT = 2.0
NOTES = {"exit": "exit.json", "stop": "stop.json", "stall": "stall.json", "loss": "loss.json"}
MARK = b"TRAINYARD_ATTEMPT="


def read(path):
    """Return a file's text, '' where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def mapping(path):
    """Return the mapping in a JSON file; None where there is none, or not yet whole."""
    try:
        found = json.loads(read(path))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def marked(run):
    """Return {attempt: number of processes} that bear the run's mark, and the set of their pids."""
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
    """A rank's log, read on from where the last look ended; one that was truncated or replaced is
    read from its beginning.
    """

    def __init__(self, path):
        self.path, self.at, self.rest, self.steps, self.saved, self.sign = path, 0, "", 0, 0, False

    def look(self, step, saved, sign):
        try:
            with open(self.path, "rb") as handle:
                size = os.fstat(handle.fileno()).st_size
                self.at, self.rest = (self.at, self.rest) if size >= self.at else (0, "")
                handle.seek(self.at)
                raw = handle.read(1 << 22)
                self.at += len(raw)
        except OSError:
            return
        lines = (self.rest + raw.decode("utf-8", "replace")).split("\n")
        self.rest = lines.pop()[-65536:]
        for line in lines:
            line = line[:65536]
            self.steps += bool(step and step.search(line))
            self.saved += any(one.search(line) for one in saved)
            self.sign = self.sign or bool(sign and sign.search(line))


class Attempt:
    """What one attempt's directory shows."""

    def __init__(self, place):
        self.place, self.plan, self.logs = place, None, {}
        self.step, self.saved = None, []

    def prepare(self):
        """Learn from the plan which logs there are and how a step looks; wait for the plan."""
        plan = mapping(os.path.join(self.place, "plan.json"))
        if plan:
            self.plan, table = plan, plan["suite"].get("logs") or {}
            self.step = re.compile(table["step"]["line"]) if table.get("step") else None
            self.saved = [re.compile(line) for line in (table.get("saved") or {}).get("lines", ())]

    def look(self, sign, counts, pids):
        if self.plan is None:
            self.prepare()
        found = {name: mapping(os.path.join(self.place, file)) for name, file in NOTES.items()}
        events = []
        for line in read(os.path.join(self.place, "ranks.jsonl")).splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        starts = {
            event.get("rank"): event.get("pid") for event in events if event.get("event") == "start"
        }
        for rank in (self.plan or {}).get("ranks", ()):
            if rank["rank"] in starts:
                log = self.logs.setdefault(rank["rank"], Log(os.path.join(self.place, rank["log"])))
                log.look(self.step, self.saved, sign)
        number = self.place.rpartition("-")[2]
        found.update(
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
        return found


def main():
    run, base, sign = sys.argv[2:5]
    folder = os.path.join(os.path.expanduser("~"), base, "runs", run)
    sign, known, last, said = re.compile(sign) if sign else None, {}, None, 0.0
    while True:
        counts, pids = marked(run)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if re.match(r"attempt-[1-9][0-9]*\Z", name):
                known.setdefault(name[8:], Attempt(os.path.join(folder, name)))
        look = {
            "attempts": {
                number: attempt.look(sign, counts, pids)
                for number, attempt in sorted(known.items())
            }
        }
        for number in counts:
            look["attempts"].setdefault(number, {"marked": counts[number]})
        if look != last or time.monotonic() - said >= BEAT:
            last, said = look, time.monotonic()
            print(json.dumps(look), flush=True)
        # Who asked is gone when there is nothing more to read. A container's engine tells of it in
        # no other way: it goes on taking what is printed.
        if select.select([0], [], [], EVERY)[0] and not os.read(0, 1):
            return


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(0)
