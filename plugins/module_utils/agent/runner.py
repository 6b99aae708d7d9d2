# SPDX-License-Identifier: Apache-2.0
"""Runner of an attempt on one node.

It starts the plan's command, follows it until it ends or has to be ended, and returns the exit code
of the unit. It exists because the first failing node stops its peers (docs/design.md, 4) and
because the launcher hides how a rank ends (rank_watch.py).
"""

from __future__ import annotations

import os
import resource
import signal
import time

from . import attempt_files, launcher, memory_killer, rank_watch

SCAN_SECONDS = 0.25
SCHEDULER_SECONDS = 5


def raise_limits():
    """Raise the soft limits to the hard limits.

    The training gets what the node allows: a unit's soft limit of open files is 1024, whatever its
    hard limit is.
    """
    for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        _soft, hard = resource.getrlimit(name)
        resource.setrlimit(name, (hard, hard))


def exit_event(event, status):
    """Return an event of ranks.jsonl about the end of a child.

    status: as subprocess gives it.
    """
    code, name = rank_watch.split_status(status)
    return {"event": event, "exit_code": code, "signal": name, "time": time.time()}


def run(attempt, node):
    """Run the plan's command of a node to its end and return systemd's exit code."""
    plan, record = attempt_files.read_plan(attempt)
    mine = attempt_files.planned_node(plan, node)
    marker = f"{record['run']}/{record['attempt']}"
    stop_times = []
    signal.signal(signal.SIGTERM, lambda *_: stop_times.append(time.monotonic()))
    now = time.time()
    left = plan["launcher"].get("head_start", 0) - max(0, now - record.get("told", now))
    while mine["rank"] and not stop_times and left > 0:
        time.sleep(0.1)
        left -= 0.1
    if stop_times or attempt_files.read_stop(attempt):
        # The stop came while this node waited, or before this unit was there to be stopped.
        print("trainyard: stopped before it began", flush=True)
        return 0
    os.chdir(os.path.join(attempt, "work"))
    raise_limits()
    kills_before = memory_killer.count_kills()
    try:
        environment = dict(plan["env"], **mine["env"], TRAINYARD_ATTEMPT=marker)
        if plan.get("accelerator") == "ascend" and "ASCEND_WORK_PATH" not in environment:
            # CANN's own logs. Its default folder has those of all processes of the user.
            environment.setdefault("ASCEND_PROCESS_LOG_PATH", attempt + "/ascend/log")
        scheduler, command = launcher.start_processes(attempt, plan, node, environment)
    except OSError as error:
        return report_failed_start(attempt, error.filename, error.strerror)
    except ValueError as error:
        # No process can be given a variable with "=" in its name, or a NUL.
        return report_failed_start(attempt, "the plan's command", error)
    attempt_files.append_event(
        attempt,
        {
            "event": "launched",
            "pid": command.processes[0].pid,
            "time": time.time(),
            "oom_kills": kills_before,
        },
    )
    by_rank = {item["rank"]: item for item in attempt_files.planned_ranks(plan, node)}
    watch = rank_watch.RankWatch(attempt, plan, marker, by_rank)
    for pid, rank in command.started.items():
        watch.follow(pid, rank, {})
    execution = Execution(attempt, plan, command, scheduler, watch)
    execution.follow(stop_times)
    if stop_times:
        return 0
    return execution.exit_code()


def report_failed_start(attempt, subject, reason):
    """Note that the command cannot be started and return the exit code for systemd."""
    print(f"trainyard: {subject} cannot be started: {reason}", flush=True)
    attempt_files.append_event(attempt, exit_event("launcher_end", 127))
    return 127


class Execution:
    """The started command of this node until its end: launcher, scheduler and ranks."""

    def __init__(self, attempt, plan, launcher, scheduler, watch):
        self.attempt, self.plan = attempt, plan
        self.launcher, self.scheduler, self.watch = launcher, scheduler, watch
        self.scanned_at = 0.0
        # The launcher's exit status and the time of its end, None while it runs.
        self.status, self.ended_at = None, None
        self.scheduler_lost_at = None

    def follow(self, stop_times):
        """Follow the command until it ends or has to be ended.

        stop_times: gets an entry with SIGTERM. From then on systemd ends the unit.
        """
        while True:
            now = time.monotonic()
            self.scan_when_due(now)
            self.watch.reap()
            self.poll_launcher()
            if self.has_ended():
                break
            if not stop_times:
                self.check_scheduler(now)
            if not stop_times and self.grace_is_over():
                # The launcher takes up to 30 s to end the others (fact 8). systemd ends all that is
                # in the unit.
                break
            if self.end_idle_launcher(stop_times):
                break
        self.watch.note_unseen_ends(last=True)
        if self.scheduler is not None and self.scheduler.poll() is None:
            self.scheduler.terminate()

    def scan_when_due(self, now):
        """Look for new ranks, more often while some are missing."""
        interval, count = SCAN_SECONDS, len(self.watch.by_rank)
        if len(self.watch.live) >= count:
            interval = 8.0
        elif len(self.watch.known) >= count:
            interval = 2.0
        if now - self.scanned_at >= interval:
            self.watch.scan()
            self.scanned_at = now

    def poll_launcher(self):
        """Note the launcher's end once."""
        self.status = self.launcher.poll(self.watch.live)
        if self.status is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
            attempt_files.append_event(self.attempt, exit_event("launcher_end", self.status))

    def has_ended(self):
        """Return whether the launcher has ended and its ranks have ended too.

        The ranks have a second for it.
        """
        if self.ended_at is None:
            return False
        return not self.watch.live or time.monotonic() - self.ended_at > 1

    def end_idle_launcher(self, stop_times):
        """End a launcher whose ranks have all ended, and return whether that was done.

        It has nothing left to end, and would need up to a second to see that. One whose ranks have
        ended well, or which was stopped from outside, has to say what came of it.
        """
        is_over = self.watch.failed_at or (stop_times and attempt_files.read_stop(self.attempt))
        if not is_over or not self.watch.have_ended() or not self.launcher.kill():
            return False
        # How it ended says nothing about the training.
        event = {"event": "launcher_end", "exit_code": None, "signal": None, "time": time.time()}
        attempt_files.append_event(self.attempt, event)
        return True

    def check_scheduler(self, now):
        """Note a scheduler that ended before its ranks as a failure.

        It ends automatically when all ranks have left it. Without it, ranks that have not left it
        wait in silence.
        """
        if self.watch.failed_at is not None:
            return
        if self.scheduler is None or self.scheduler.poll() is None:
            return
        code = self.scheduler.returncode
        self.scheduler_lost_at = self.scheduler_lost_at or now
        if not self.watch.known or (code and now - self.scheduler_lost_at > SCHEDULER_SECONDS):
            attempt_files.append_event(self.attempt, exit_event("scheduler_end", code))
            log = self.plan["scheduler"]["log"]
            print(f"trainyard: the scheduler ended with {code}; its log is {log}", flush=True)
            self.watch.failed_at = now

    def grace_is_over(self):
        """Return whether a failure is older than the plan's grace time."""
        failed_at = self.watch.failed_at
        return failed_at is not None and time.monotonic() - failed_at > self.plan["stop"]["grace"]

    def exit_code(self):
        """Return the exit code for systemd, never 0 after a failure."""
        if self.status is not None and self.watch.failed_at is None:
            return self.status % 256
        return (self.status or 1) % 256 or 1
