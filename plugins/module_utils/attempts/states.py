# SPDX-License-Identifier: Apache-2.0
"""States of attempts and ranks, and outcomes of verdicts.

The values are those of answers and of run.json. A member is equal to its value, so a status that
came as JSON can be compared with it. What a module or an action returns holds `.value`: Ansible
takes plain texts only.
"""

from __future__ import annotations

import enum


class AttemptState(str, enum.Enum):
    """The state of an attempt on one node."""

    NONE = "none"  # the node does not have the attempt
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"  # the unit is gone and wrote no end


class RankState(str, enum.Enum):
    """The state of one rank."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"  # it runs, and prints no steps
    TRAINING = "training"
    DONE = "done"
    ENDED = "ended"  # its exit code is not known
    FAILED = "failed"
    KILLED = "killed"
    STOPPED = "stopped"


class Outcome(str, enum.Enum):
    """The outcome of an attempt, as its verdict says, or of a run."""

    RUNNING = "running"  # of a run only
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"  # of an attempt only
    STOPPED = "stopped"
    UNKNOWN = "unknown"
