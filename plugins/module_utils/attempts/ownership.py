# SPDX-License-Identifier: Apache-2.0
"""Ownership of a node by an attempt, and the order of two starts at once.

A node is held by a unit that is active in its user's systemd, and by nothing else. The files of a
controller that was killed, of a lost connection or of before a reboot hold nothing, so ownership
cannot outlive its owner. While systemd does not answer or still ends a unit, the node counts as
held.
"""

from __future__ import annotations

import os
import time

from ..base import processes
from ..base.files import read_mapping
from ..base.sanitize import printable
from ..base.units import format_duration
from . import attempt_dir

# A start that meets a younger one waits PATIENCE_SECONDS for it to give way. A younger one began at
# most FRESH_SECONDS ago.
FRESH_SECONDS = 60.0
PATIENCE_SECONDS = 10.0
_STEP_SECONDS = 0.5
BY_NODES = "the nodes of the run"  # what attempt.json has as `by` where no person began it


def boot_mark():
    """Return a text that changes with each boot of the machine or container.

    It is the kernel's boot id and the start time of PID 1. A container has a start time of its own,
    but its boot id is the host's.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
        boot = handle.read().strip()
    started = processes.start_of(1)
    if started is None:
        raise OSError("/proc/1/stat cannot be read")
    return f"{boot}/{started}"


def read_record(base, run_id, number):
    """Return attempt.json of an attempt on this node, {} where it cannot be read."""
    try:
        return read_mapping(
            os.path.join(attempt_dir.attempt_dir(base, run_id, number), "attempt.json")
        )
    except attempt_dir.AttemptError:
        return {}


def list_owners(run_command, base):
    """Return a list with an entry for each of this user's attempts on this node.

    Keys: {unit, state, description, run, attempt, user, mine, age_s, since, by, start}. age_s
    (seconds) and since (unix seconds) are by this node's clock. by: user@controller of the start.
    start: its token. An unknown value is missing (None). Another user's training may have devices
    of its own here: orphans.py names it, ports.py and devices.py show what it has taken. Raises
    AttemptError where the user's own systemd does not answer: such a node is not free.
    """
    now, entries = time.time(), []
    for item in attempt_dir.active_units(run_command):
        run_id, number, record = None, None, {}
        match = attempt_dir.UNIT.match(item["unit"])
        if match:
            run_id, number = match.group(1), int(match.group(2))
            record = read_record(base, run_id, number)
        since, age = record.get("started"), None
        if isinstance(since, (int, float)):
            age = max(0.0, now - since)
        else:
            since = None
        entry = dict(item, run=run_id, attempt=number, since=since, age_s=age)
        entry.update(user=processes.user_name(os.getuid()), mine=True)
        entry.update(by=record.get("by"), start=record.get("start"))
        entries.append(entry)
    return entries


def describe_start(item):
    """Return the time and the author of a start, as words that go on a sentence.

    For example ', started 12 min ago (... UTC) by alice@desk'.
    """
    text = ""
    if item.get("age_s") is not None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(item["since"]))
        text = f", started {format_duration(item['age_s'])} ago ({stamp} UTC)"
    if item.get("by"):
        text += f" by {printable(str(item['by']), limit=100)}"
    return text


def describe_remedy(item):
    """Return the remedy for a node that is held."""
    text = "follow it or stop it: ansible-playbook playbooks/stop.yml"
    if item.get("run"):
        text += f" -e run={item['run']}"
    return text


def describe_owners(node, items):
    """Return a sentence about the attempts that hold a node."""
    owners = [
        f"{item['description']} ({item['unit']}, {item['state']}){describe_start(item)}"
        for item in items
    ]
    remedies = dict.fromkeys(describe_remedy(item) for item in items)
    return f"{node} is held by {'; '.join(owners)}; {'; '.join(remedies)}"


def will_yield(item, run_id):
    """Return whether the start that holds a node will leave it to the run `run_id`.

    Of two starts at once, the one whose run has the smaller id stays. A run's id begins with its
    time, so the older one wins, wherever the two met: each decides in the same way, without a
    message between them. The younger one fails on the node that the older one has, and its rescue
    frees the others.
    """
    young = item.get("age_s") is not None and item["age_s"] < FRESH_SECONDS
    return bool(young and item.get("run") and item.get("attempt") and item["run"] > run_id)


def run_when_free(run_command, base, run_id, number, start, node, act, patience=PATIENCE_SECONDS):
    """Call act() while no attempt holds this node, and return its result.

    Return None where the attempt runs already by the same start. act is called under the lock that
    lets one start at a time look at the node. patience: seconds to wait for a younger start. Raises
    AttemptError, which names the attempt that holds the node, and its start.
    """
    unit, deadline = attempt_dir.unit_name(run_id, number), time.monotonic() + patience
    while True:
        with attempt_dir.lock_node(base):
            owners = list_owners(run_command, base)
            if not owners:
                return act()
            if len(owners) == 1 and _is_same_start(owners[0], unit, start):
                return None
            if time.monotonic() >= deadline or not all(will_yield(item, run_id) for item in owners):
                raise attempt_dir.AttemptError("attempt.node_held", describe_owners(node, owners))
        time.sleep(_STEP_SECONDS)


def _is_same_start(item, unit, start):
    """Return whether a node is held by this unit, from the same start if known."""
    if not item["mine"] or item["unit"] != unit:
        return False
    return not start or not item["start"] or item["start"] == start
