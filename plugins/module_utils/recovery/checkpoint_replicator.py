# SPDX-License-Identifier: Apache-2.0
"""Copies of rank 0's newest checkpoint to this node, while the training goes on.

A unit of its own beside the attempt's (attempts/replica_unit.py). It has an archive of its own and
is no part of agent.pyz, because it runs on one node of a run. Rank 0's node is not trusted: what it
sends is bounded, and taken as a checkpoint only after it was read to its end.

    replicator.pyz ATTEMPT
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

from ..agent import attempt_files, priority
from ..checkpoints import finder, replica
from . import bounded_rsync

LOOK_SECONDS = 20
# Between two readings of what the supervisor here knows. It costs no connection.
NEWS_SECONDS = 1
STATUS_SECONDS = 30  # the age at which a supervisor that says nothing is taken for gone
MOST_NEWS_SECONDS = 120  # between two looks without news
# Looks and copies take at most this share of a processor here, and about as much on rank 0's node.
# The ranks wait for each other, so a step may take longer by both. No pause is longer than so many
# seconds.
SHARE = 0.006
MOST_PAUSE_SECONDS = 300
MOST_ATTEMPTS = 10  # earlier attempts whose last copies count for the pause
LIST_SECONDS = 60
MOST_SECONDS = 6 * 3600


class ReplicaError(Exception):
    """A look that made no replica. The message says why."""


class Replicator:
    """The replica of one attempt."""

    def __init__(self, attempt):
        plan, record = attempt_files.read_plan(attempt)
        self.attempt, self.number = attempt, record["attempt"]
        self.config, self.source = record["mesh"], plan["nodes"][0]["name"]
        self.rule, self.rate = plan["suite"]["resume"], plan["replica"]["rate"]
        self.folders = replica.saved_folders(plan["suite"]["checkpoints"]["folders"])
        self.supervisor = os.path.join(
            os.path.dirname(attempt), "supervisor", plan["replica"]["node"]
        )
        # The socket by which all calls of a look use one connection.
        self.shared = None
        self.state = {"problem": None}
        # What the supervisors knew at the last look and know now, and the times of the next look.
        self.seen, self.news = None, None
        self.due = time.monotonic() + self.earlier_pause()
        self.late = self.due + MOST_NEWS_SECONDS

    def earlier_pause(self):
        """Return the seconds that are left of the pause after an earlier attempt's last copy.

        The time from the start of the run to its first copy counts as one. A run that is restarted
        often would copy more often otherwise. A training can write the files, so no pause is longer
        than MOST_PAUSE_SECONDS.
        """
        run, left = os.path.dirname(self.attempt), [0.0]
        with contextlib.suppress(OSError):
            start = os.lstat(os.path.join(run, "attempt-1", "plan.json")).st_mtime
            left.append(start + replica.FIRST_SECONDS - time.time())
        for number in range(max(1, self.number - MOST_ATTEMPTS), self.number):
            state = attempt_files.read_mapping(run, f"attempt-{number}/replica.json")
            due = state.get("next")
            if isinstance(due, float):
                left.append(due - time.time())
        return min(max(left), MOST_PAUSE_SECONDS)

    def is_due(self, now):
        """Return whether a look may be made, and may find something.

        What the supervisors know only says when to look: a training can write the file. Without a
        supervisor here every look may find something. now: seconds of the monotonic clock.
        """
        if now < self.due:
            return False
        status = attempt_files.read_mapping(self.supervisor, "status.json")
        self.news, written = status.get("point"), status.get("time")
        if not isinstance(written, float) or abs(time.time() - written) > STATUS_SECONDS:
            return True
        point = self.news
        is_of_attempt = isinstance(point, dict) and point.get("attempt") == self.number
        return now >= self.late or (is_of_attempt and point != self.seen)

    def update(self, now):
        """Look once, and note the newest replica and the problem in replica.json."""
        news, began, before = self.news, time.monotonic(), processor_seconds()
        try:
            copied = self.look()
            state = dict(copied or self.state, problem=None)
        except (ReplicaError, OSError) as error:
            copied, news, state = None, None, dict(self.state, problem=str(error))
        except SystemExit:  # the attempt has ended under the copy, whose cost counts all the same
            pause = pause_after(time.monotonic() - began, processor_seconds() - before)
            state = dict(self.state, next=time.time() + pause)
            attempt_files.write_if_possible(self.attempt, "replica.json", state)
            raise
        seconds = time.monotonic() - began
        pause, ended = pause_after(seconds, processor_seconds() - before), now + seconds
        if copied:
            state["next"] = time.time() + pause
        if state != self.state:
            self.state = state
            attempt_files.write_if_possible(self.attempt, "replica.json", state)
            attempt_files.print_if_possible(state["problem"] or describe(state))
        self.seen, self.due = news, ended + pause
        self.late = ended + max(pause, MOST_NEWS_SECONDS)

    def look(self):
        """Copy the newest complete checkpoint, unless it is here.

        Return the description of a new replica, or None. Raises ReplicaError, OSError.
        """
        with bounded_rsync.share_connection(self.config, self.source) as self.shared:
            return self.copy_newest()

    def copy_newest(self):
        """Do what a look does, by its connection."""
        newest = replica.choose_newest(
            {folder: self.list_files(folder) for folder in self.folders}, self.rule
        )
        if not newest or replica.find_slot(self.attempt, newest[0], newest[2]):
            return None
        began = time.monotonic()
        point = self.copy(*newest)
        return {
            "source": self.source,
            "name": point["name"],
            "epoch": point["epoch"],
            "step": point["step"],
            "saved": point["saved"],
            "copied": time.time(),
            "bytes": sum(size for size, _saved in newest[2].values()),
            "seconds": round(time.monotonic() - began, 1),
        }

    def list_files(self, folder):
        """Return {path: (bytes, time)} of a folder of checkpoints on rank 0's node."""
        files, problem = bounded_rsync.list_files(self.arguments(folder), LIST_SECONDS)
        if problem:
            raise ReplicaError(f"{self.source}: {problem}")
        return files

    def arguments(self, folder):
        """Return the arguments of rsync that lead to a folder on rank 0's node."""
        verb = f"pull {self.number} {folder}"
        return bounded_rsync.remote_arguments(self.config, self.source, verb, self.shared)

    def copy(self, folder, name, files):
        """Put a checkpoint into a slot and return its description. Raises ReplicaError."""
        root = os.path.join(self.attempt, replica.STAGING)
        shutil.rmtree(root, ignore_errors=True)
        staging = os.path.join(root, folder)
        os.makedirs(staging, mode=0o700)
        announced = {path: ["f", size, ""] for path, (size, _saved) in files.items()}
        problem = bounded_rsync.space_problem(self.attempt, staging, announced)
        if not problem:
            limit = f"--bwlimit={max(1, self.rate >> 10)}"
            arguments = [limit, *self.arguments(folder)]
            problem = bounded_rsync.copy(arguments, staging, announced, MOST_SECONDS)
        if problem:
            raise ReplicaError(f"{name} of {self.source}: {problem}")
        # The suite may have written the files anew under the copy.
        after = self.list_files(folder)
        if {path: after.get(path) for path in files} != files:
            raise ReplicaError(f"{name} of {self.source} was saved again while it was copied")
        below = f"{replica.STAGING}/{folder}"
        point, skipped = finder.find_in_attempt(self.attempt, self.number, [below], self.rule)
        if not point or point["name"] != name:
            reasons = "; ".join(row["why"] for row in skipped) or "not complete"
            raise ReplicaError(f"{name} of {self.source}: {reasons}")
        slot = os.path.join(self.attempt, replica.free_slot(self.attempt))
        shutil.rmtree(slot, ignore_errors=True)
        os.rename(root, slot)
        return point


def replicate(attempt):
    """Keep the replica until the attempt has ended here.

    replica.json has the newest replica and the problem of the last look, None without one.
    """
    os.umask(0o077)
    replicator = Replicator(attempt)
    while not os.path.exists(os.path.join(attempt, "exit.json")):
        now = time.monotonic()
        if replicator.is_due(now):
            replicator.update(now)
        else:
            time.sleep(NEWS_SECONDS)


def processor_seconds():
    """Return the seconds of a processor that this program and its children have taken."""
    return sum(os.times()[:4])


def pause_after(seconds, spent):
    """Return the seconds from the end of a look to the next one.

    seconds: that it took. spent: seconds of a processor.
    """
    return min(max(LOOK_SECONDS, spent / SHARE - seconds), MOST_PAUSE_SECONDS)


def describe(state):
    """Return the newest replica as a line of the log."""
    if "name" not in state:
        return "no checkpoint yet"
    return f"{state['name']} of {state['source']}: {state['bytes']} bytes in {state['seconds']} s"


def main(arguments):
    """Run the replicator of an attempt's directory."""
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    # What a look has begun is taken away also where systemd ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    priority.lower()
    replicate(arguments[0])


if __name__ == "__main__":
    main(sys.argv[1:])
