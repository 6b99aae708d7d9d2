# SPDX-License-Identifier: Apache-2.0
"""Whether a run that ended badly is started again, by the cause of its end. Pure.

What a machine or a network did may be gone at the next try; what a user wrote, what ran out and
what a person decided will be there again. Where the cause says neither, it depends on whether the
attempt had trained: what worked for a while was written and configured rightly.
"""

from __future__ import annotations

from ..records.run_json import NOT_STARTED

# Seconds before the first restart; each one that brings no progress doubles them.
FIRST_DELAY, LONGEST_DELAY = 10, 300
# Whoever follows an attempt that another controller has started leaves that one the first turn, and
# then finds its attempt.
SECOND_TURN = 30
# So many restarts in a row may bring no newer checkpoint.
FRUITLESS = 3
# A restart that was decided may be under way for so many seconds after the attempt's end: waits
# between five tries, and what each of them brings.
UNDER_WAY = 6 * 3600
# So often a restart is tried whose preparation was refused (a node that boots takes its minute):
# 10, 20, 40, ... s apart.
TRIES = 5

AGAIN, TRAINED, NEVER = "again", "trained", "never"
# Every cause of the catalogue (causes.py): (class, why). The tests hold this table against the
# catalogue, and docs/runbooks/resume.md against it.
CLASSES = {
    # --- between the ranks
    "seen_by_launcher": (TRAINED, "the launcher does not say what happened"),
    "port_in_use": (NEVER, "whatever listens on the port is a matter for a person"),
    "loopback_address": (NEVER, "the node's host name leads to itself, and will again"),
    "bad_interface": (NEVER, "the interface's name has to be mended"),
    "duplicate_rank": (NEVER, "two processes with one rank are a matter for a person"),
    "version_skew": (NEVER, "the nodes have to be made equal first"),
    "rank_table": (NEVER, "the rank table has to be mended"),
    "hccl_setting": (NEVER, "the setting has to be mended"),
    "collective_mismatch": (NEVER, "the ranks run different code or settings"),
    "device_busy": (AGAIN, "what holds the device may have gone meanwhile"),
    "hccl_link": (AGAIN, "links between devices fail and come back"),
    "collective_timeout": (AGAIN, "a rank or a network that stalled may go on at the next try"),
    "nccl_cuda_error": (TRAINED, "a device may have failed, or a library may not fit"),
    "nccl_usage": (NEVER, "two ranks use one device"),
    "nccl_system_error": (AGAIN, "sockets and network devices fail and come back"),
    "cluster_timeout": (AGAIN, "the ranks lost each other"),
    "mpi_start": (TRAINED, "a daemon of Open MPI went; where it never started, a person has to look"),
    "mpi_slots": (NEVER, "the host list has to be mended"),
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
    "read_only": (NEVER, "the file system has to be mended"),
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
    "hang": (TRAINED, "a stall after steps is mostly the network's or a device's, one before them mostly the configuration's"),
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
    "bad_argument": (NEVER, "the command line has to be mended"),
    "bad_config": (NEVER, "the config has to be mended"),
    "data_missing": (NEVER, "the data is not there"),
    "data_corrupt": (NEVER, "the data is damaged"),
    "download_failed": (NEVER, "the nodes fetch nothing: bring it with the site's weights or data"),
    "checkpoint_damaged": (NEVER, "the file is damaged"),
    "permission": (NEVER, "the rights have to be mended"),
    "nan": (NEVER, "the loss was no number; the same settings lead there again"),
    "no_step": (NEVER, "there was nothing to train"),
    "stopped_by_user": (NEVER, "a person stopped it"),
}  # fmt: skip


def class_of(cause):
    """Return (class, why) of a cause; one that is new here counts as unknown."""
    return CLASSES.get(cause) or CLASSES["unknown"]


def trained(entry):
    """Whether an attempt (run.json's entry) had made a step."""
    return any(
        isinstance(rank, dict) and rank.get("last_step") for rank in entry.get("ranks") or ()
    )


def saved(entry):
    """Whether an attempt's logs say that it saved a checkpoint."""
    return any(
        isinstance(rank, dict) and (rank.get("saved_count") or rank.get("saved"))
        for rank in entry.get("ranks") or ()
    )


def fruitless(attempts):
    """Return how many restarts in a row, up to the newest attempt, brought no newer checkpoint.

    attempts: run.json's, in order. What an attempt brought shows in the point that the next one
    resumed from, and of the newest one in its logs.
    """
    # what was refused before anything ran says nothing about progress
    attempts = [
        item for item in attempts if (item.get("verdict") or {}).get("cause") != NOT_STARTED
    ]
    count = 0
    for index in range(len(attempts) - 1, 0, -1):
        own = (attempts[index].get("resume") or {}).get("digest")
        newest = index == len(attempts) - 1
        moved = (
            saved(attempts[index])
            if newest
            else (attempts[index + 1].get("resume") or {}).get("digest") != own
        )
        if moved:
            break
        count += 1
    return count


def decide(record, limit, live=True):
    """Return {again, reason, why, delay, number, of} after the newest attempt of a run; None where
    it completed.

    record: run.json (version 2) with the newest attempt's verdict. limit: the job's max_restarts.
    live: whether whoever asks has followed the attempt itself; an end of long ago starts nothing by
    itself. number: of the restart that is meant, from 1; delay: seconds before it. reason:
    max_restarts, no_progress, late or the cause's class, where it is not started again.
    """
    attempts = sorted(
        (item for item in record.get("attempts") or () if isinstance(item, dict)),
        key=lambda item: item.get("number") or 0,
    )
    verdict = (attempts[-1].get("verdict") or {}) if attempts else {}
    if not verdict or verdict.get("outcome") == "completed":
        return None
    cause = (
        "stopped_by_user"
        if verdict.get("outcome") == "stopped"
        else verdict.get("cause") or "unknown"
    )
    kind, why = class_of(cause)
    used = sum(bool((item.get("again") or {}).get("again")) for item in attempts[:-1])
    without = fruitless(attempts)
    found = {
        "again": False,
        "reason": None,
        "why": why,
        "delay": 0,
        "number": used + 1,
        "of": limit,
        "cause": cause,
    }
    if not limit:
        return dict(found, reason="max_restarts", why="the job's max_restarts is 0")
    if kind == NEVER:
        return dict(found, reason=NEVER)
    if kind == TRAINED and not trained(attempts[-1]):
        return dict(found, reason=TRAINED, why=f"{why}, and it had made no step")
    if without >= FRUITLESS:
        return dict(
            found,
            reason="no_progress",
            why="%d restarts in a row brought no newer checkpoint" % without,
        )
    if used >= limit:
        return dict(found, reason="max_restarts", why="%d of %d restarts were used" % (used, limit))
    if not live:
        return dict(
            found,
            reason="late",
            why="nobody followed it to its end; what is late is not started unasked",
        )
    turn = 0 if attempts[-1].get("started") else SECOND_TURN  # (a start is noted where it is made)
    return dict(found, again=True, delay=min(FIRST_DELAY << min(without, 8), LONGEST_DELAY) + turn)


def waits(record, now):
    """Whether a restart of a run was decided and may still wait or be under way. record: run.json.
    now: unix seconds.

    Whoever waits is a process of its own, perhaps of another controller; that it was given up
    meanwhile is not known here.
    """
    begun = [
        item
        for item in record["attempts"]
        if (item.get("verdict") or {}).get("cause") != NOT_STARTED
    ]
    newest = max(begun, key=lambda item: item["number"], default={})
    ended = newest.get("ended")
    return (
        bool((newest.get("again") or {}).get("again"))
        and isinstance(ended, (int, float))
        and abs(now - ended) < UNDER_WAY
    )


def sentence(decided, run):
    """Return what people are told of a decision, or '' where there is nothing to say."""
    if not decided or not decided.get("of"):
        return ""
    if decided.get("again"):
        return "{} of {} in {} s, because {}".format(
            *tuple(decided.get(key) for key in ("number", "of", "delay", "why"))
        )
    by_hand = f"; by hand: ansible-playbook playbooks/resume.yml -e run={run}"
    return "none: {}{}".format(
        decided.get("why"),
        "" if decided.get("cause") == "stopped_by_user" else by_hand,
    )


def next_try(number):
    """Return the seconds before a restart is tried again whose preparation was refused for the
    number-th time (from 1), or None after TRIES.
    """
    return min(FIRST_DELAY << number, LONGEST_DELAY) if number < TRIES else None
