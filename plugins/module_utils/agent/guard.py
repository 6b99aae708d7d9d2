# SPDX-License-Identifier: Apache-2.0
"""A node's guard of one attempt: it notices a neighbour that has vanished and a training that
hangs, and ends the attempt everywhere.

It is shipped with the attempt, runs as a unit of its own beside the attempt's, needs nothing but
Python >= 3.8 and what is shipped beside it, and goes when the attempt's unit has gone. All times
are of the monotonic clock. docs/runbooks/watchdog.md says when it acts, and when it does not.

    guard.py watch ATTEMPT NODE
"""

from __future__ import annotations

import importlib.util
import os
import select
import stat
import subprocess
import sys
import time

TICK = 1.0
# A guard that was not run for so long stood still with its node; what went by meanwhile is held
# against nobody.
STOOD = 6.0
KEEP_SECONDS = 10.0
# Evidence of a hang on all nodes, and what a stop waits for besides.
HANG_SECONDS, STOP_SECONDS = 7.0, 3.0
READ = 1 << 20
EXIT_OVER = 75  # the unit is not started again after this one


def beside(name):
    """Return a program that was shipped beside this one; with -I Python does not look here by
    itself.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


agent, phases, beats, neighbours = (
    beside(name) for name in ("agent", "guard_phases", "guard_beat", "guard_neighbour")
)


class Log:
    """A rank's log, also where it is rotated, truncated or removed: what was opened once is read
    on, and what has its name now, too.
    """

    def __init__(self, path, words, kept):
        self.path, self.words, self.kept, self.files = path, words, dict(kept or {}), {}

    def add(self, path):
        """Read a file as well, from its beginning or from where an earlier guard was."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        info = os.fstat(descriptor)
        name = "%d:%d" % (info.st_dev, info.st_ino)
        if name in self.files or not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            return
        self.files[name] = [descriptor, self.kept.get(name, 0), phases.Reading(self.words)]
        for old in list(self.files)[:-3]:
            os.close(self.files.pop(old)[0])

    def take(self):
        """Return (lines that matter, whether it grew, whether part of it went by unread)."""
        lines, grew, passed = [], False, False
        try:
            info = os.stat(self.path)
            if "%d:%d" % (info.st_dev, info.st_ino) not in self.files:
                self.add(self.path)
        except OSError:
            pass
        for name, entry in self.files.items():
            descriptor, offset, reading = entry
            size = os.fstat(descriptor).st_size
            if size < offset:
                offset, reading.rest = 0, b""
            if size > offset:
                grew, over = True, size - offset > READ
                passed, offset = passed or over, size - READ if over else offset
                chunk = os.pread(descriptor, READ, offset)
                offset += len(chunk)
                lines += reading.take(chunk)
            entry[1] = self.kept[name] = offset
        return lines, grew, passed


class Guard:
    """One attempt's guard on one node."""

    def __init__(self, attempt, node):
        self.attempt, self.node = attempt, node
        self.plan, self.record = agent.read_plan(attempt)
        now = time.monotonic()
        self.unit = beats.Unit(self.record["unit"])
        self.neighbour = (
            neighbours.Neighbour(self.plan, node, self.record, now)
            if len(self.plan["nodes"]) > 1
            else None
        )
        words = phases.Words(self.plan["suite"].get("logs"), self.plan["script"])
        self.mine = [
            item
            for item in self.plan["ranks"]
            if item["node"] == node and not (words.first_printer and item["rank"])
        ]
        budgets = self.plan.get("watchdog") or {}
        watched = self.mine and words.step and any(budgets.get(phase) for phase in phases.PHASES)
        self.phases = phases.Phases(budgets, words, now) if watched else None
        printers = [
            item["node"]
            for item in self.plan["ranks"]
            if not words.first_printer or item["rank"] == 0
        ]
        self.teardown = phases.Teardown(
            budgets, far=not {node, self.neighbour and self.neighbour.name} & set(printers)
        )
        kept = beats.load(attempt, "guard.json")
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
            self.boot = handle.read().strip()
        if self.phases and kept.get("boot") == self.boot and kept.get("phases"):
            self.phases.again(kept["phases"])
        self.logs = {
            item["rank"]: Log(os.path.join(attempt, item["log"]), words, kept.get("logs"))
            for item in self.mine
        }
        self.noted, self.written, self.before, self.known = None, None, now, -1
        self.going, self.over = {}, False

    def ranks(self):
        """Take in which ranks were started and have ended; return whether that has changed."""
        try:
            size = os.stat(os.path.join(self.attempt, "ranks.jsonl")).st_size
        except OSError:
            return False
        if size == self.known:
            return False
        self.known, self.going, self.over = size, {}, False
        for event in agent.read_notes(self.attempt):
            if event.get("event") == "start" and event.get("rank") is not None:
                self.going[event["rank"]] = event.get("pid")
            elif event.get("event") == "end" and event.get("rank") in self.going:
                self.going[event["rank"]] = None
            self.over = self.over or event.get("event") == "launcher_end"
        return True

    def silent(self):
        """Whether every rank of this node that prints has ended."""
        own = [self.going[rank] for rank in self.logs if rank in self.going]
        return bool(own) and not any(own)

    def closing(self, now):
        """Whether nobody is left who says how the training goes on, and for how long; return what
        stall.json is to say, or None.
        """
        parted = self.silent() if self.mine else bool(self.neighbour and self.neighbour.done)
        self.teardown.look(
            parted and not self.over, sum(pid is None for pid in self.going.values()), now
        )
        found = self.teardown.stalled(now)
        known = (
            {"step": self.phases.last_step, "last_line": self.phases.last_line}
            if self.phases
            else {}
        )
        return found and dict(
            found,
            ranks=sorted(rank for rank, pid in self.going.items() if pid is not None),
            **known,
        )

    def training(self, now):
        """Look at the ranks' logs; return what stall.json is to say, or None."""
        changed, closing = self.ranks(), self.closing(now)
        if self.phases is None or closing:
            return closing
        if changed:
            for rank, pid in self.going.items():
                if pid is not None and rank in self.logs:
                    self.logs[rank].add("/proc/%d/fd/1" % pid)
            if any(rank in self.going for rank in self.logs):
                self.phases.started()
            self.phases.over = self.over or self.silent()
        for log in self.logs.values():
            lines, grew, passed = log.take()
            if grew:
                self.phases.grew(now)
            if passed:
                self.phases.spare(now - self.phases.since)
            for kind, groups, line in lines:
                self.phases.take(kind, groups, line, now)
        return self.phases.stalled(now)

    def keep(self, now):
        """Note what a guard that is started again must know, and what status.yml shows."""
        phase = self.phases and (self.phases.phase, self.phases.joint, self.phases.lines)
        if (
            self.written is not None
            and (phase == self.noted or now - self.written < TICK)
            and now - self.written < KEEP_SECONDS
        ):
            return
        self.noted, self.written = phase, now
        value = {
            "boot": self.boot,
            "time": time.time(),
            "neighbour": self.neighbour and self.neighbour.name,
            "phases": None,
        }
        if self.phases:
            budget, name = self.phases.limit()
            value.update(phases=self.phases.kept(), phase=name, budget=budget, quiet=round(now - self.phases.since, 1),
                         logs={name: offset for log in self.logs.values() for name, offset in log.kept.items()})  # fmt: skip
        if self.teardown.since is not None:
            value.update(
                phase="teardown",
                budget=self.teardown.budget,
                quiet=round(now - self.teardown.since, 1),
            )
        self.note("guard.json", value)

    def note(self, name, value):
        """Write a file of the attempt; where the disk is full the attempt is watched, and ended,
        all the same.
        """
        try:
            agent.write(self.attempt, name, value)
        except OSError as error:
            print(f"trainyard: {name} cannot be written: {error.strerror}", flush=True)

    def tick(self):
        """Look once; return False when the attempt's unit has gone."""
        now = time.monotonic()
        stood, self.before = now - self.before, now
        if stood > STOOD:
            for watched in (self.neighbour, self.phases, self.teardown):
                if watched:
                    watched.spare(stood)
        state = self.unit.state()
        if state not in beats.ACTIVE and state != "unknown":
            return False
        if state == "active":
            stall = self.training(now)
            lost = self.neighbour and self.neighbour.look(now)
            self.keep(now)
            if lost or stall:
                self.end(*(("hang", stall) if stall and not lost else lost), now)
        waited = select.select(self.neighbour.descriptor() if self.neighbour else [], [], [], TICK)
        if waited[0]:
            time.sleep(0.05)  # a closed connection is readable at once, and for ever
        return True

    def end(self, reason, said, now):
        """Note why, keep evidence here and on the peers, end the attempt everywhere."""
        base, about = {"by": self.node, "time": time.time()}, self.node
        if reason == "hang":
            about_it = dict({"ranks": [item["rank"] for item in self.mine]}, **said)
            self.note("stall.json", dict(base, since=base["time"] - said["seconds"], **about_it))
        else:
            about, silent = (
                self.neighbour.name,
                round(now - (self.neighbour.bad or self.neighbour.last), 1),
            )
            told = dict(base, node=about, how=said, since=base["time"] - silent, seconds=silent)
            self.note("loss.json" if reason == "lost" else "ended.json", told)
        if not agent.read_stop(self.attempt):
            self.note(
                "stop.json", {"by": "guard", "reason": reason, "from": about, "time": base["time"]}
            )
        away = [self.neighbour.name] if reason == "lost" and self.neighbour.failed else []
        calls = {
            item["name"]: self.tell(item, reason)
            for item in self.plan["nodes"]
            if item["name"] not in [self.node, *away]
        }
        until = time.monotonic() + (HANG_SECONDS if reason == "hang" else STOP_SECONDS)
        if reason == "hang":
            agent.keep_evidence(self.attempt)
        while calls and time.monotonic() < until:
            # A peer says a word when its evidence is kept; its own stop goes on without us.
            ready = select.select(
                [call.stdout for call in calls.values() if call],
                [],
                [],
                max(0.0, until - time.monotonic()),
            )[0]
            calls = {
                name: call for name, call in calls.items() if call and call.stdout not in ready
            }
        environment = dict(os.environ, XDG_RUNTIME_DIR="/run/user/%d" % os.getuid())
        subprocess.call(
            ["systemctl", "--user", "stop", self.record["unit"]],
            env=environment,
            stderr=subprocess.DEVNULL,
        )

    def tell(self, peer, reason):
        """Tell a peer to keep its evidence and to stop; return the call, or None where it could not
        be made.
        """
        words = "stop %d %s" % (self.record["attempt"], reason)
        quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
        try:
            return subprocess.Popen(
                neighbours.ssh(self.record, peer["name"], words),
                stdin=quiet,
                stdout=pipe,
                stderr=quiet,
            )
        except OSError:
            return None


def main(arguments):
    """Watch until the attempt's unit has gone."""
    os.umask(0o077)
    guard = Guard(arguments[1], arguments[2])
    while guard.tick():
        pass
    return EXIT_OVER


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
