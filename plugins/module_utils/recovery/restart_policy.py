# SPDX-License-Identifier: Apache-2.0
"""The policy of restarts.

A run that ended badly is started again by the cause of its end. Pure. What a machine or a network
did may be gone at the next try. What a user wrote, what ran out and what a person decided will be
there again. Where the cause says neither, it depends on whether the attempt had trained: what
worked for a while was written and configured rightly.
"""

from __future__ import annotations

import enum
import typing

from ..attempts.states import Outcome
from ..records.run_json import NO_PROGRESS, NOT_STARTED

# The delay before the first restart. Each restart that brings no progress doubles it.
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 10, 300
# A controller that follows an attempt of another controller waits longer by this time: the other
# one has the first turn, and then its attempt is found.
SECOND_TURN_SECONDS = 30
# So many restarts in a row may bring no newer checkpoint.
MAX_FRUITLESS_RESTARTS = 3
# For so long after the attempt's end, a restart that was decided may be pending: waits between five
# tries, and the preparation of each.
PENDING_SECONDS = 6 * 3600
# Tries of a restart whose preparation was refused (a node that boots takes its minute): 10, 20, 40,
# ... s apart.
MAX_TRIES = 5


class RestartClass(str, enum.Enum):
    """The kind of a cause, as far as a restart is concerned."""

    AGAIN = "again"  # the run is started again
    TRAINED = "trained"  # only where the attempt had made a step
    NEVER = "never"


class RestartDecision(typing.TypedDict):
    """The decision about a restart, as run.json keeps it."""

    again: bool
    by: str  # who starts it again: controller, or the run's nodes
    reason: str | None  # None where the run is started again
    why: str
    code: str
    delay: int  # seconds before the restart
    number: int  # of the restart that is meant, from 1
    of: int  # the job's max_restarts
    cause: str


class _Refusal(typing.NamedTuple):
    """A refusal to start a run again: message code, reason in run.json, and a clause."""

    code: str
    reason: str
    why: str


AGAIN, TRAINED, NEVER = RestartClass
# Every cause of the catalogue (failure_catalogue/): (class, why). The tests compare this table
# with the catalogue, and docs/runbooks/resume.md with it.
CLASSES = {
    # --- between the ranks
    "seen_by_launcher": (TRAINED, "the launcher does not say what happened"),
    "port_in_use": (NEVER, "whatever listens on the port is a matter for a person"),
    "loopback_address": (NEVER, "the node's host name leads to itself, and will again"),
    "bad_interface": (NEVER, "the interface's name has to be fixed"),
    "duplicate_rank": (NEVER, "two processes with one rank are a matter for a person"),
    "version_skew": (NEVER, "the nodes have to be made equal first"),
    "rank_table": (NEVER, "the rank table has to be fixed"),
    "hccl_setting": (NEVER, "the setting has to be fixed"),
    "collective_mismatch": (NEVER, "the ranks run different code or settings"),
    "device_busy": (AGAIN, "what holds the device may have gone meanwhile"),
    "hccl_link": (AGAIN, "links between devices fail and come back"),
    "collective_error": (TRAINED, "the library does not say why; a rank or a link may have failed"),
    "collective_timeout": (AGAIN, "a rank or a network that stalled may go on at the next try"),
    "nccl_cuda_error": (TRAINED, "a device may have failed, or a library may not fit"),
    "cluster_setting": (NEVER, "the launcher has to be changed"),
    "rdma_error": (AGAIN, "links and adapters fail and come back"),
    "nccl_usage": (NEVER, "two ranks use one device"),
    "nccl_system_error": (AGAIN, "sockets and network devices fail and come back"),
    "cluster_timeout": (AGAIN, "the ranks lost each other"),
    "mpi_start": (
        TRAINED,
        "a daemon of Open MPI went; where it never started, a person has to look",
    ),
    "mpi_slots": (NEVER, "the host list has to be fixed"),
    "mpi_abort": (NEVER, "the training's own code ended it"),
    "mpi_runtime": (TRAINED, "Open MPI does not say what happened"),
    "store_timeout": (AGAIN, "the ranks did not meet; the network is proven before the next start"),
    "connection_lost": (AGAIN, "the ranks lost contact"),
    # --- nodes and devices
    "node_lost": (AGAIN, "a node vanished"),
    "unreachable": (AGAIN, "a node did not answer"),
    "no_end_recorded": (AGAIN, "a node was restarted, or the user's manager there was killed"),
    "device_error": (AGAIN, "a device failed; it may come back, or another node takes its place"),
    "kernel_error": (TRAINED, "the code or the data of one step may be wrong, seldom the device"),
    "accelerator_call": (TRAINED, "the code of the failed call does not say why"),
    "device_assert": (NEVER, "the same data fails again"),
    "device_setting": (NEVER, "the setting or the operator has to be fixed"),
    "device_unavailable": (NEVER, "the device or its service has to be brought back first"),
    "peer_to_peer": (NEVER, "the devices cannot read each other's memory the next time either"),
    "bus_error": (NEVER, "shared memory runs out again"),
    "disk_full": (NEVER, "the disk is as full the next time"),
    "read_only": (NEVER, "the file system has to be fixed"),
    "resource_limit": (NEVER, "the limit is the same the next time"),
    "device_out_of_memory": (NEVER, "the model needs as much memory the next time"),
    "out_of_memory": (NEVER, "the training needs as much memory the next time"),
    # --- processes
    "killed": (AGAIN, "something from outside ended it"),
    "sigterm": (AGAIN, "something from outside ended it"),
    "terminated": (AGAIN, "something from outside ended it"),
    "silent_end": (AGAIN, "it went as after SIGKILL"),
    "aborted": (TRAINED, "an abort says not whose fault it was"),
    "segfault": (TRAINED, "a crash may be of the memory or of the code"),
    "worker_died": (TRAINED, "a loader's process was killed or failed"),
    "hang": (
        TRAINED,
        "a stall after steps is mostly the network's or a device's, one before them mostly the"
        " configuration's",
    ),
    "device_memory_full": (TRAINED, "memory that was enough for steps may be enough again"),
    "ended_early": (NEVER, "the training's own code ends it again"),
    "silent_exit": (TRAINED, "the process does not say why it ended"),
    "launcher_failed": (TRAINED, "the launcher does not say why it ended"),
    "stopped_by_peer": (TRAINED, "the node that stopped the others does not say why"),
    "rank_missing": (NEVER, "launcher and plan do not agree"),
    "endpoints": (NEVER, "the launcher does not take what was planned"),
    "unknown": (TRAINED, "no evidence decides where it began"),
    # --- what a user wrote or gave
    "python_exception": (NEVER, "the same code raises it again"),
    "cpp_exception": (NEVER, "the same input raises it again"),
    "import_error": (NEVER, "the environment lacks the module"),
    "version_mismatch": (NEVER, "the environment does not fit the code"),
    "bad_argument": (NEVER, "the command line has to be fixed"),
    "bad_config": (NEVER, "the config has to be fixed"),
    "data_missing": (NEVER, "the data is not there"),
    "data_corrupt": (NEVER, "the data is damaged"),
    "download_failed": (NEVER, "the nodes fetch nothing: bring it with the site's weights or data"),
    "checkpoint_damaged": (NEVER, "the file is damaged"),
    "permission": (NEVER, "the rights have to be fixed"),
    "nan": (NEVER, "the loss was no number; the same settings lead there again"),
    "no_step": (NEVER, "there was nothing to train"),
    "stopped_by_user": (NEVER, "a person stopped it"),
}


def restart_class(cause):
    """Return (class, why) of a cause. A cause that the table lacks counts as unknown."""
    return CLASSES.get(cause) or CLASSES["unknown"]


def has_trained(entry):
    """Return whether an attempt (run.json's entry) had made a step."""
    return any(
        isinstance(rank, dict) and rank.get("last_step") for rank in entry.get("ranks") or ()
    )


def has_saved(entry):
    """Return whether an attempt's logs say that it saved a checkpoint."""
    return any(
        isinstance(rank, dict) and (rank.get("saved_count") or rank.get("saved"))
        for rank in entry.get("ranks") or ()
    )


def _was_started(entry):
    """Return whether an attempt ran.

    What was refused before says nothing about progress.
    """
    return (entry.get("verdict") or {}).get("cause") != NOT_STARTED


def count_fruitless(attempts):
    """Return the number of restarts in a row without a newer checkpoint.

    They are counted up to the newest attempt. attempts: run.json's, in order. The progress of an
    attempt shows in the point that the next one resumed from, and that of the newest one in its
    logs.
    """
    attempts = [entry for entry in attempts if _was_started(entry)]
    count = 0
    for index in range(len(attempts) - 1, 0, -1):
        if _made_progress(attempts, index):
            break
        count += 1
    return count


def _made_progress(attempts, index):
    """Return whether an attempt brought a newer checkpoint.

    It is compared with the one that the attempt resumed from.
    """
    if index == len(attempts) - 1:
        return has_saved(attempts[index])
    return _resume_digest(attempts[index + 1]) != _resume_digest(attempts[index])


def _resume_digest(entry):
    """Return the digest of the point that an attempt resumed from, or None."""
    return (entry.get("resume") or {}).get("digest")


def decide(record, limit, followed=True):
    """Return the RestartDecision after a run's newest attempt, None where the run completed.

    record: run.json (version 2) with the newest attempt's verdict. limit: the job's max_restarts.
    followed: whether this command has followed the attempt itself. An end of long ago starts
    nothing automatically. The decision's reason is max_restarts, no_progress, late or the cause's
    class.
    """
    attempts = sorted(
        (entry for entry in record.get("attempts") or () if isinstance(entry, dict)),
        key=lambda entry: entry.get("number") or 0,
    )
    if not attempts:
        return None
    newest = attempts[-1]
    verdict = newest.get("verdict") or {}
    if not verdict or verdict.get("outcome") == Outcome.COMPLETED:
        return None
    cause = _cause_of(verdict)
    used = sum(bool((entry.get("again") or {}).get("again")) for entry in attempts[:-1])
    streak = count_fruitless(attempts)
    decision = RestartDecision(
        again=False,
        by="controller",
        reason=None,
        why=restart_class(cause)[1],
        code="restart.decided",
        delay=0,
        number=used + 1,
        of=limit,
        cause=cause,
    )
    refusal = _find_refusal(newest, cause, limit, used, streak, followed)
    if refusal:
        return dict(decision, **refusal._asdict())
    delay = min(FIRST_DELAY_SECONDS << min(streak, 8), LONGEST_DELAY_SECONDS)
    if not newest.get("started"):  # (a start is noted on the controller that makes it)
        delay += SECOND_TURN_SECONDS
    return dict(decision, again=True, delay=delay)


def _cause_of(verdict):
    """Return the cause of a verdict that counts for a restart."""
    if verdict.get("outcome") == Outcome.STOPPED:
        return "stopped_by_user"
    return verdict.get("cause") or "unknown"


def _find_refusal(newest, cause, limit, used, streak, followed):
    """Return the _Refusal to start a run again, or None.

    newest: its newest attempt. used: restarts so far. streak: those in a row without progress.
    """
    kind, why = restart_class(cause)
    if not limit:
        return _Refusal("restart.not_requested", "max_restarts", "the job's max_restarts is 0")
    if kind == NEVER:
        return _Refusal("restart.cause_remains", NEVER.value, why)
    if kind == TRAINED and not has_trained(newest):
        return _Refusal("restart.no_step", TRAINED.value, f"{why}, and it had made no step")
    if streak >= MAX_FRUITLESS_RESTARTS:
        why = f"{streak} restarts in a row brought no newer checkpoint"
        return _Refusal("restart.no_progress", NO_PROGRESS, why)
    if used >= limit:
        why = f"{used} of {limit} restarts were used"
        return _Refusal("restart.limit_reached", "max_restarts", why)
    if not followed:
        why = "no command followed it to its end, and a late restart needs a person's command"
        return _Refusal("restart.not_followed", "late", why)
    return None


def is_pending(record, now):
    """Return whether a decided restart may still wait or be under way.

    record: run.json. now: unix seconds. The waiting command is a process of its own, perhaps of
    another controller. That it was given up meanwhile is not known here.
    """
    begun = [entry for entry in record["attempts"] if _was_started(entry)]
    newest = max(begun, key=lambda entry: entry["number"], default={})
    ended = newest.get("ended")
    return (
        bool((newest.get("again") or {}).get("again"))
        and isinstance(ended, (int, float))
        and abs(now - ended) < PENDING_SECONDS
    )


def describe(decision, run, supervised=False):
    """Return the sentence about a decision, '' where the job wants no restarts.

    decision: as run.json keeps it. One of an earlier version has no code. supervised: whether the
    nodes restart the run themselves.
    """
    if not decision or not decision.get("of"):
        return ""
    why = decision.get("why")
    if decision.get("again"):
        number, limit, delay = (decision.get(key) for key in ("number", "of", "delay"))
        if supervised:
            return f"{number} of {limit} by its nodes, because {why}"
        return f"{number} of {limit} in {delay} s, because {why}"
    code = ""
    if decision.get("code"):
        code = f" ({decision['code']})"
    if decision.get("cause") == "stopped_by_user":
        return f"none{code}: {why}"
    return f"none{code}: {why}; by hand: ansible-playbook playbooks/resume.yml -e run={run}"


def next_delay(number):
    """Return the seconds before the next try of a restart, None after MAX_TRIES.

    number: how often its preparation was refused, from 1.
    """
    if number >= MAX_TRIES:
        return None
    return min(FIRST_DELAY_SECONDS << number, LONGEST_DELAY_SECONDS)
