# SPDX-License-Identifier: Apache-2.0
"""Copies of rank 0's newest checkpoint to this node, while the training goes on.

A unit of its own beside the attempt's (attempts/replica_unit.py). It has an archive of its own and
is no part of agent.pyz, because it runs on one node of a run. Rank 0's node is not trusted: what it
sends is bounded, and taken as a checkpoint only after it was read to its end.

    replicator.pyz ATTEMPT
"""

from __future__ import annotations

import os
import shutil
import sys
import time

from ..agent import attempt_files, priority
from ..checkpoints import finder, replica
from . import bounded_rsync

LOOK_SECONDS = 20
# Looks and copies take at most this share of a processor here, and about as much on rank 0's node,
# unless a pause would be longer than so many seconds.
SHARE = 0.02
MOST_PAUSE_SECONDS = 300
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

    def look(self):
        """Copy the newest complete checkpoint, unless it is here.

        Return the description of a new replica, or None. Raises ReplicaError, OSError.
        """
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
        return bounded_rsync.remote_arguments(self.config, self.source, verb)

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
    """Look again and again until the attempt has ended here.

    replica.json has the newest replica and the problem of the last look, None without one.
    """
    os.umask(0o077)
    replicator, state = Replicator(attempt), {"problem": None}
    while not os.path.exists(os.path.join(attempt, "exit.json")):
        before = processor_seconds()
        try:
            new_state = dict(replicator.look() or state, problem=None)
        except (ReplicaError, OSError) as error:
            new_state = dict(state, problem=str(error))
        if new_state != state:
            state = new_state
            attempt_files.write_if_possible(attempt, "replica.json", state)
            attempt_files.print_if_possible(state["problem"] or describe(state))
        time.sleep(pause_after(processor_seconds() - before))


def processor_seconds():
    """Return the seconds of a processor that this program and its children have taken."""
    return sum(os.times()[:4])


def pause_after(spent):
    """Return the seconds until the next look after one that took some seconds of a processor."""
    return min(max(LOOK_SECONDS, spent / SHARE), MOST_PAUSE_SECONDS)


def describe(state):
    """Return the newest replica as a line of the log."""
    if "name" not in state:
        return "no checkpoint yet"
    return f"{state['name']} of {state['source']}: {state['bytes']} bytes in {state['seconds']} s"


def main(arguments):
    """Run the replicator of an attempt's directory."""
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    priority.lower()
    replicate(arguments[0])


if __name__ == "__main__":
    main(sys.argv[1:])
