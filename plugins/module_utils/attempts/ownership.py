# SPDX-License-Identifier: Apache-2.0
"""Who holds a node: which attempt of this user, since when, begun by whom; and which of two starts
at once gives way.

A hold is a unit that is active in its user's systemd, and nothing else. What a controller that was
killed, a lost connection or a reboot leaves on the disk holds nothing, so a hold cannot outlive its
owner; and while systemd does not answer or still ends a unit, the node counts as held.
"""

from __future__ import annotations

import os
import time

from ..base import manifest, processes
from ..base.sanitize import printable
from . import attempt_dir

# A start that meets a younger one, which began so many seconds ago at most, waits so long for it to
# give way.
FRESH_S = 60.0
PATIENCE_S = 10.0
_STEP_S = 0.5


def boot_mark():
    """Return what changes with every boot: the kernel's boot id, and when PID 1 started (a
    container's differs, its boot id is the host's).
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
        boot = handle.read().strip()
    with open("/proc/1/stat", "rb") as handle:
        return "{}/{}".format(boot, handle.read().rpartition(b")")[2].split()[19].decode())


def record_of(base, run_id, number):
    """Return attempt.json of an attempt on this node; {} where there is none that can be read."""
    try:
        return manifest.read_mapping(
            os.path.join(attempt_dir.attempt_dir(base, run_id, number), "attempt.json")
        )
    except attempt_dir.AttemptError:
        return {}


def holders(run, base):
    """Return [{unit, state, description, run, attempt, user, mine, age_s, since, by, start}] of
    this user's attempts that hold this node.

    Another user's training may have devices of its own here; orphans.py names it, ports.py and
    devices.py say what it has taken.

    age_s (seconds) and since (unix seconds) by this node's clock; by: user@controller of the start;
    start: its token. What is not known is None. Raises AttemptError where the user's own systemd
    does not answer: such a node is not free.
    """
    now, found = time.time(), []
    for item in attempt_dir.active_units(run):
        match = attempt_dir.UNIT.match(item["unit"])
        run_id, number = (match.group(1), int(match.group(2))) if match else (None, None)
        record = record_of(base, run_id, number) if match else {}
        since = record.get("started") if isinstance(record.get("started"), (int, float)) else None
        found.append(dict(
            item, run=run_id, attempt=number, user=processes.user_name(os.getuid()), mine=True, since=since,
            age_s=None if since is None else max(0.0, now - since), by=record.get("by"), start=record.get("start"),
        ))  # fmt: skip
    return found


def since_words(item):
    """Return since when a hold is there and who began it, as words that go on a sentence: ',
    started 12 min ago (... UTC) by alice@desk'.
    """
    words = ""
    if item.get("age_s") is not None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(item["since"]))
        words = ", started {} ago ({} UTC)".format(processes.age(item["age_s"]), stamp)
    by = item.get("by") or ""
    return words + (f" by {printable(str(by), limit=100)}" if by else "")


def remedy(item):
    """Return what can be done about a hold."""
    return "follow it or stop it: playbooks/stop.yml%s" % (
        " -e run={}".format(item["run"]) if item.get("run") else ""
    )


def words(node, items):
    """Return a sentence on who holds a node."""
    said = [
        "{} ({}, {}){}".format(item["description"], item["unit"], item["state"], since_words(item))
        for item in items
    ]
    return "{} is held by {}; {}".format(
        node,
        "; ".join(said),
        "; ".join(dict.fromkeys(remedy(item) for item in items)),
    )


def gives_way(item, run_id):
    """Whether the start that holds a node will leave it to the run `run_id`: of two starts at once,
    the one whose run has the smaller id stays.

    A run's id begins with its time, so the older one wins, wherever the two met: each looks at it
    in the same way, without a word between them. The younger one fails on the node that the older
    one has, and its rescue frees the others.
    """
    young = item.get("age_s") is not None and item["age_s"] < FRESH_S
    return bool(young and item.get("run") and item.get("attempt") and item["run"] > run_id)


def free(run, base, run_id, number, start, node, act, patience=PATIENCE_S):
    """Call act() while nobody holds this node, and return what it returns; None where the attempt
    is here already by the same start.

    act is called under the lock that lets one start at a time look at the node. Raises
    AttemptError, which says who holds the node since when.
    """
    unit, deadline = attempt_dir.unit_name(run_id, number), time.monotonic() + patience
    while True:
        with attempt_dir.hold(base):
            held = holders(run, base)
            mine = [item for item in held if item["mine"] and item["unit"] == unit]
            if (
                mine
                and len(held) == 1
                and (not start or not mine[0]["start"] or mine[0]["start"] == start)
            ):
                return None
            if not held:
                return act()
            if time.monotonic() >= deadline or not all(gives_way(item, run_id) for item in held):
                raise attempt_dir.AttemptError(words(node, held))
        time.sleep(_STEP_S)
