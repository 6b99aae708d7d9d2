# SPDX-License-Identifier: Apache-2.0
"""The policy of restarts.

A run that ended badly is started again by the cause of its end. Pure. What a machine or a network
did may be gone at the next try. What a user wrote, what ran out and what a person decided will be
there again. Where the cause says neither, it depends on whether the attempt had trained: what
worked for a while was written and configured rightly.
"""

from __future__ import annotations

from ..records.run_json import NOT_STARTED

# Seconds before the first restart; each one that brings no progress doubles them.
FIRST_DELAY, LONGEST_DELAY = 10, 300
# Seconds by which a controller waits longer that follows an attempt of another controller: that one
# has the first turn, and then its attempt is found.
SECOND_TURN = 30
# So many restarts in a row may bring no newer checkpoint.
FRUITLESS = 3
# Seconds after the attempt's end during which a restart that was decided may be under way: waits
# between five tries, and what each of them brings.
UNDER_WAY = 6 * 3600
# Tries of a restart whose preparation was refused (a node that boots takes its minute): 10, 20, 40,
# ... s apart.
TRIES = 5

AGAIN, TRAINED, NEVER = "again", "trained", "never"
# Every cause of the catalogue (failure_catalogue.py): (class, why). The tests compare this table
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
    "collective_timeout": (AGAIN, "a rank or a network that stalled may go on at the next try"),
    "nccl_cuda_error": (TRAINED, "a device may have failed, or a library may not fit"),
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


def class_of(cause):
    """Return (class, why) of a cause.

    One that is new here counts as unknown.
    """
    return CLASSES.get(cause) or CLASSES["unknown"]


def trained(entry):
    """Return whether an attempt (run.json's entry) had made a step."""
    return any(
        isinstance(rank, dict) and rank.get("last_step") for rank in entry.get("ranks") or ()
    )


def saved(entry):
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


def fruitless(attempts):
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
        return saved(attempts[index])
    return _resume_digest(attempts[index + 1]) != _resume_digest(attempts[index])


def _resume_digest(entry):
    """Return the digest of the point that an attempt resumed from, or None."""
    return (entry.get("resume") or {}).get("digest")


def decide(record, limit, live=True):
    """Return the decision about a restart after a run's newest attempt.

    It is {again, reason, why, delay, number, of, cause}. Return None where the run completed.
    record: run.json (version 2) with the newest attempt's verdict. limit: the job's max_restarts.
    live: whether this command has followed the attempt itself. An end of long ago starts nothing
    automatically. number: of the restart that is meant, from 1. delay: seconds before it. reason:
    max_restarts, no_progress, late or the cause's class, where the run is not started again.
    """
    attempts = sorted(
        (entry for entry in record.get("attempts") or () if isinstance(entry, dict)),
        key=lambda entry: entry.get("number") or 0,
    )
    if not attempts:
        return None
    newest = attempts[-1]
    verdict = newest.get("verdict") or {}
    if not verdict or verdict.get("outcome") == "completed":
        return None
    cause = _cause_of(verdict)
    used = sum(bool((entry.get("again") or {}).get("again")) for entry in attempts[:-1])
    streak = fruitless(attempts)
    decision = {
        "again": False,
        "reason": None,
        "why": class_of(cause)[1],
        "delay": 0,
        "number": used + 1,
        "of": limit,
        "cause": cause,
    }
    refusal = _refuse(newest, cause, limit, used, streak, live)
    if refusal:
        return dict(decision, reason=refusal[0], why=refusal[1])
    delay = min(FIRST_DELAY << min(streak, 8), LONGEST_DELAY)
    if not newest.get("started"):  # (a start is noted on the controller that makes it)
        delay += SECOND_TURN
    return dict(decision, again=True, delay=delay)


def _cause_of(verdict):
    """Return the cause of a verdict that counts for a restart."""
    if verdict.get("outcome") == "stopped":
        return "stopped_by_user"
    return verdict.get("cause") or "unknown"


def _refuse(newest, cause, limit, used, streak, live):
    """Return (reason, why) where a run is not started again, else None.

    newest: its newest attempt. used: restarts so far. streak: those in a row without progress.
    """
    kind, why = class_of(cause)
    if not limit:
        return "max_restarts", "the job's max_restarts is 0"
    if kind == NEVER:
        return NEVER, why
    if kind == TRAINED and not trained(newest):
        return TRAINED, f"{why}, and it had made no step"
    if streak >= FRUITLESS:
        return "no_progress", f"{streak} restarts in a row brought no newer checkpoint"
    if used >= limit:
        return "max_restarts", f"{used} of {limit} restarts were used"
    if not live:
        return "late", "nobody followed it to its end; what is late is not started unasked"
    return None


def waits(record, now):
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
        and abs(now - ended) < UNDER_WAY
    )


def sentence(decided, run):
    """Return the words for a decision, or '' where there is nothing to say."""
    if not decided or not decided.get("of"):
        return ""
    if decided.get("again"):
        return "{} of {} in {} s, because {}".format(
            *(decided.get(key) for key in ("number", "of", "delay", "why"))
        )
    if decided.get("cause") == "stopped_by_user":
        return f"none: {decided.get('why')}"
    return (
        f"none: {decided.get('why')}; by hand: ansible-playbook playbooks/resume.yml -e run={run}"
    )


def next_try(number):
    """Return the seconds before the next try of a restart.

    Its preparation was refused. number: how often it was refused, from 1. None after TRIES.
    """
    if number >= TRIES:
        return None
    return min(FIRST_DELAY << number, LONGEST_DELAY)
