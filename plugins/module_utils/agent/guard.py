# SPDX-License-Identifier: Apache-2.0
"""Guard of one attempt on one node, against hangs and lost peers.

It notices a neighbour that has vanished and a training that hangs, and ends the attempt everywhere.
It ends this node's part where the lease is over and the supervisor has not done so.
It runs as a unit of its own beside the attempt's, and ends when the attempt's unit has gone. All
times are of the monotonic clock. docs/runbooks/watchdog.md says when it acts, and when it does not.

    agent.pyz guard ATTEMPT NODE
"""

from __future__ import annotations

import os
import re
import select
import stat
import subprocess
import time

from . import attempt_files, heartbeat, peer_monitor, peers, phase_watchdog, systemd

TICK = 1.0
# If the guard was not scheduled for this long, the node was frozen: ignore the gap.
FROZEN_SECONDS = 6.0
KEEP_SECONDS = 10.0
# Time for evidence of a hang on all nodes, and for any other stop.
HANG_SECONDS, STOP_SECONDS = 7.0, 3.0
READ = 1 << 20
NUMBER = re.compile(r"(?<=/attempt-)\d+\Z")
# Keys of a plan with which an attempt has the pace of the one before it.
SAME_PACE = ("endpoints", "settings", "code", "accelerator")
EXIT_OVER = 75  # the unit is not started again after this one
# Seconds after a lease in which the supervisor itself ends the attempt.
LEASE_MARGIN = 2.0
BY_NODES = "the nodes of the run"  # as in attempts/ownership.py


class LogFile:
    """One opened file of a rank's log, with the position up to which it was read."""

    def __init__(self, descriptor, offset, reading):
        self.descriptor, self.offset, self.reading = descriptor, offset, reading

    def read(self):
        """Return (lines that matter, whether it grew, whether part of it was skipped)."""
        size = os.fstat(self.descriptor).st_size
        if size < self.offset:
            self.offset, self.reading.rest = 0, b""
        if size == self.offset:
            return [], False, False
        skipped = size - self.offset > READ
        if skipped:
            self.offset = size - READ
        chunk = os.pread(self.descriptor, READ, self.offset)
        self.offset += len(chunk)
        return self.reading.take(chunk), True, skipped


class Log:
    """A rank's log, also where it is rotated, truncated or removed.

    The guard goes on with a file that it has opened once, and reads the file that has the name now,
    too.
    """

    def __init__(self, path, patterns, saved):
        """Prepare the log.

        patterns: the suite's phase_watchdog.Words. saved: {file: offset} of an earlier guard, or
        None.
        """
        self.path, self.words = path, patterns
        self.kept, self.files = dict(saved or {}), {}

    def add(self, path):
        """Read a file as well, from its beginning or from an earlier guard's position."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        info = os.fstat(descriptor)
        name = self.file_id(info)
        if name in self.files or not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            return
        reading = phase_watchdog.Reading(self.words)
        self.files[name] = LogFile(descriptor, self.kept.get(name, 0), reading)
        for old in list(self.files)[:-3]:
            os.close(self.files.pop(old).descriptor)

    @staticmethod
    def file_id(info):
        """Return the device and inode of a file as text."""
        return f"{info.st_dev}:{info.st_ino}"

    def take(self):
        """Return (lines that matter, whether it grew, whether part of it was skipped)."""
        try:
            if self.file_id(os.stat(self.path)) not in self.files:
                self.add(self.path)
        except OSError:
            pass
        lines, grew, skipped = [], False, False
        for name, file in self.files.items():
            file_lines, file_grew, file_skipped = file.read()
            lines += file_lines
            grew, skipped = grew or file_grew, skipped or file_skipped
            self.kept[name] = file.offset
        return lines, grew, skipped


class Guard:
    """One attempt's guard on one node."""

    def __init__(self, attempt, node):
        self.attempt, self.node = attempt, node
        self.plan, self.record = attempt_files.read_plan(attempt)
        now = time.monotonic()
        self.unit = heartbeat.Unit(self.record["unit"])
        self.neighbour = None
        if len(self.plan["nodes"]) > 1:
            self.neighbour = peer_monitor.Neighbour(self.plan, node, self.record, now)
        self.budgets = self.plan.get("watchdog") or {}
        patterns = phase_watchdog.Words(self.plan["suite"].get("logs"), self.plan["script"])
        # The ranks whose logs show the training: all, or rank 0 alone.
        printers = [
            item for item in self.plan["ranks"] if not (patterns.first_printer and item["rank"])
        ]
        self.mine = [item for item in printers if item["node"] == node]
        self.phases = self.plan_phases(patterns, now)
        self.teardown = self.plan_teardown({item["node"] for item in printers})
        saved = attempt_files.read_mapping(attempt, "guard.json")
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
            self.boot = handle.read().strip()
        if self.phases and saved.get("boot") == self.boot and saved.get("phases"):
            self.phases.again(saved["phases"])
        elif self.phases:
            self.learn_pace()
        self.logs = {
            item["rank"]: Log(os.path.join(attempt, item["log"]), patterns, saved.get("logs"))
            for item in self.mine
        }
        self.noted, self.written_at, self.ticked_at = None, None, now
        # The pids of the started ranks, None for those that have ended, and the size of ranks.jsonl
        # that they are from. over: the launcher has ended.
        self.pids, self.notes_size, self.over = {}, -1, False

    def plan_phases(self, patterns, now):
        """Return the phases to watch here, None where no log or no budget covers them."""
        budgeted = any(self.budgets.get(phase) for phase in phase_watchdog.PHASES)
        if not (self.mine and patterns.step and budgeted):
            return None
        return phase_watchdog.Phases(self.budgets, patterns, now)

    def learn_pace(self):
        """Take over the pace of the attempt before this one, where the same ranks trained alike."""
        number = NUMBER.search(self.attempt)
        if not number:
            return
        earlier = f"{self.attempt[: number.start()]}{int(number.group()) - 1}"
        plan = attempt_files.read_mapping(earlier, "plan.json")
        saved = attempt_files.read_mapping(earlier, "guard.json")
        pace = phase_watchdog.read_pace(saved.get("phases"))
        if pace and all(plan.get(key) == self.plan.get(key) for key in SAME_PACE):
            self.phases.learn(*pace)

    def plan_teardown(self, printer_nodes):
        """Return the watch of the training's end.

        printer_nodes: the nodes with ranks whose logs show the training.
        """
        near = {self.node}
        if self.neighbour:
            near.add(self.neighbour.name)
        return phase_watchdog.Teardown(self.budgets, far=not near & printer_nodes)

    def read_ranks(self):
        """Read the starts and ends of ranks and return whether they have changed."""
        try:
            size = os.stat(os.path.join(self.attempt, "ranks.jsonl")).st_size
        except OSError:
            return False
        if size == self.notes_size:
            return False
        self.notes_size, self.pids, self.over = size, {}, False
        for event in attempt_files.read_events(self.attempt):
            if event.get("event") == "start" and event.get("rank") is not None:
                self.pids[event["rank"]] = event.get("pid")
            elif event.get("event") == "end" and event.get("rank") in self.pids:
                self.pids[event["rank"]] = None
            self.over = self.over or event.get("event") == "launcher_end"
        return True

    def is_silent(self):
        """Return whether every rank of this node that prints has ended."""
        printing = [self.pids[rank] for rank in self.logs if rank in self.pids]
        return bool(printing) and not any(printing)

    def judge_teardown(self, now):
        """Return the content of stall.json where the training's end hangs, or None.

        The end begins when no process is left whose log shows the progress of the training.
        """
        parted = bool(self.neighbour and self.neighbour.done)
        if self.mine:
            parted = self.is_silent()
        ended_ranks = sum(pid is None for pid in self.pids.values())
        self.teardown.look(parted and not self.over, ended_ranks, now)
        stall = self.teardown.stalled(now)
        if not stall:
            return None
        running = sorted(rank for rank, pid in self.pids.items() if pid is not None)
        stall = dict(stall, ranks=running)
        if self.phases:
            stall.update(step=self.phases.last_step, last_line=self.phases.last_line)
        return stall

    def judge_training(self, now):
        """Read the ranks' logs and return the content of stall.json, or None."""
        changed, stall = self.read_ranks(), self.judge_teardown(now)
        if self.phases is None or stall:
            return stall
        if changed:
            self.follow_ranks()
        for log in self.logs.values():
            lines, grew, skipped = log.take()
            if grew:
                self.phases.grew(now)
            if skipped:
                self.phases.spare(now - self.phases.since)
            for kind, groups, line in lines:
                self.phases.take(kind, groups, line, now)
        return self.phases.stalled(now)

    def follow_ranks(self):
        """Read the output of started ranks, also where its name is not the planned one."""
        for rank, pid in self.pids.items():
            if pid is not None and rank in self.logs:
                self.logs[rank].add(f"/proc/{pid:d}/fd/1")
        if any(rank in self.pids for rank in self.logs):
            self.phases.started()
        self.phases.over = self.over or self.is_silent()

    def keep(self, now):
        """Write guard.json now and then.

        It is for a guard that is started again, and for status.yml.
        """
        phase = self.phases and (self.phases.phase, self.phases.joint, self.phases.lines)
        if self.written_at is not None:
            age = now - self.written_at
            if age < TICK or (phase == self.noted and age < KEEP_SECONDS):
                return
        self.noted, self.written_at = phase, now
        value = {
            "boot": self.boot,
            "time": time.time(),
            "neighbour": self.neighbour and self.neighbour.name,
            "phases": None,
        }
        if self.phases:
            budget, name = self.phases.limit()
            offsets = {}
            for log in self.logs.values():
                offsets.update(log.kept)
            value.update(
                phases=self.phases.kept(),
                phase=name,
                budget=budget,
                quiet=round(now - self.phases.since, 1),
                logs=offsets,
            )
        if self.teardown.since is not None:
            value.update(
                phase="teardown",
                budget=self.teardown.budget,
                quiet=round(now - self.teardown.since, 1),
            )
        self.note("guard.json", value)

    def note(self, name, value):
        """Write a file of the attempt.

        Where the disk is full, the attempt is watched and ended all the same.
        """
        try:
            attempt_files.write_json(self.attempt, name, value)
        except OSError as error:
            print(f"trainyard: {name} cannot be written: {error.strerror}", flush=True)

    def tick(self):
        """Look once and return False when the attempt's unit has gone."""
        now = time.monotonic()
        gap, self.ticked_at = now - self.ticked_at, now
        if gap > FROZEN_SECONDS:
            for part in (self.neighbour, self.phases, self.teardown):
                if part:
                    part.spare(gap)
            self.note("pause.json", {"seconds": round(gap, 1), "time": time.time()})
        state = self.unit.state()
        if state not in heartbeat.ACTIVE and state != "unknown":
            return False
        if state == "active":
            stall = self.judge_training(now)
            loss = self.neighbour and self.neighbour.look(now)
            self.keep(now)
            if loss:
                self.end(*loss, now)
            elif stall:
                self.end("hang", stall, now)
            elif self.is_lease_over():
                self.end_here()
        connections = []
        if self.neighbour:
            connections = self.neighbour.descriptor()
        if select.select(connections, [], [], self.pause(now))[0]:
            time.sleep(0.05)  # a closed connection is readable at once, and for ever
        return True

    def pause(self, now):
        """Return the seconds until the next look: a hang is known at the end of its budget."""
        left = self.phases.left(now) if self.phases else TICK
        return left if 0 < left < TICK else TICK

    def end(self, reason, finding, now):
        """Note the reason, keep evidence on all nodes, and end the attempt everywhere.

        reason: hang, lost or peer. finding: the content of stall.json after a hang, else a
        sentence.
        """
        base, lost_peer = {"by": self.node, "time": time.time()}, None
        if reason == "hang":
            source = self.node
            self.note_stall(base, finding)
        else:
            source = self.neighbour.name
            self.note_loss(base, reason, finding, now)
            if reason == "lost" and self.neighbour.failed:
                lost_peer = source
        if not attempt_files.read_stop(self.attempt):
            stop_note = {"by": "guard", "reason": reason, "from": source, "time": base["time"]}
            self.note("stop.json", stop_note)
        names = [item["name"] for item in self.plan["nodes"]]
        calls = [
            self.call_peer(name, reason) for name in names if name not in (self.node, lost_peer)
        ]
        deadline = time.monotonic() + STOP_SECONDS
        if reason == "hang":
            deadline = time.monotonic() + HANG_SECONDS
            peers.keep_evidence(self.attempt)
        self.await_peers(calls, deadline)
        self.systemctl("stop")

    def is_lease_over(self):
        """Return whether the lease is over, and the supervisor has not ended the attempt.

        One of another attempt or boot says nothing.
        """
        folder = os.path.join(os.path.dirname(self.attempt), "supervisor", self.node)
        lease = attempt_files.read_mapping(folder, "lease.json")
        if any(lease.get(key) != self.record.get(key) for key in ("attempt", "boot")):
            return False
        now, ends = time.clock_gettime(time.CLOCK_BOOTTIME), lease.get("ends")
        return isinstance(ends, float) and now > ends + LEASE_MARGIN

    def end_here(self):
        """End this node's part."""
        if not attempt_files.read_stop(self.attempt):
            stop_note = {"by": "peer", "reason": "peer", "from": BY_NODES, "time": time.time()}
            self.note("stop.json", stop_note)
        self.systemctl("kill", "--signal=KILL")  # no time for TERM
        self.systemctl("stop")

    def systemctl(self, *words):
        """Call systemctl for the unit."""
        subprocess.call(
            ["systemctl", "--user", *words, self.record["unit"]],
            env=systemd.manager_environment(),
            stderr=subprocess.DEVNULL,
        )

    def note_stall(self, base, stall):
        """Write stall.json.

        base: the fields that each note has.
        """
        ranks = [item["rank"] for item in self.mine]
        value = dict(base, since=base["time"] - stall["seconds"], ranks=ranks)
        self.note("stall.json", dict(value, **stall))

    def note_loss(self, base, reason, sentence, now):
        """Write loss.json, or ended.json where the neighbour's attempt has ended."""
        silence = round(now - (self.neighbour.bad or self.neighbour.last), 1)
        value = dict(
            base,
            node=self.neighbour.name,
            how=sentence,
            since=base["time"] - silence,
            seconds=silence,
        )
        name = "ended.json"
        if reason == "lost":
            name = "loss.json"
        self.note(name, value)

    def call_peer(self, name, reason):
        """Call a peer to keep its evidence and to stop, and return the call or None."""
        command = f"stop {self.record['attempt']:d} {reason}"
        try:
            return subprocess.Popen(
                peer_monitor.ssh(self.record, name, command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return None

    @staticmethod
    def await_peers(calls, deadline):
        """Wait until each peer has kept its evidence, or until the deadline.

        A peer says a word at that moment. Its own stop does not need this node.
        """
        while calls and time.monotonic() < deadline:
            remaining = max(0.0, deadline - time.monotonic())
            outputs = [call.stdout for call in calls if call]
            ready = select.select(outputs, [], [], remaining)[0]
            calls = [call for call in calls if call and call.stdout not in ready]


def watch(attempt, node):
    """Watch until the attempt's unit has gone and return the exit code."""
    os.umask(0o077)
    guard = Guard(attempt, node)
    while guard.tick():
        pass
    return EXIT_OVER
