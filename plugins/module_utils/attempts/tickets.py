# SPDX-License-Identifier: Apache-2.0
"""Tickets of starts that wait for nodes (train.yml -e wait), and their order.

A waiting start has one ticket, and a copy of it on each node that it wants. The ticket is drawn on
its first node: its time is by that node's clock. It may go on when each of its nodes is free, and
no living ticket on them comes before its own. Before it starts it takes a turn: a ticket with a
turn comes before those without.

Why no two starts block each other for ever: tickets have one order, (turn, time, id), and it is the
same on each node, since the copies are equal. So waiting for a ticket has no circle, and the first
of all living tickets waits for no other one. It waits for attempts alone, and an attempt has all
its nodes and waits for nothing. A ticket holds no node. Two starts that go on at once all the same
(a copy was on its way) meet in ownership.run_when_free, as two starts without tickets do.

A ticket lives as long as its controller renews it. Whoever looks removes the others. All times of
this are by the clock of the node that holds the copy.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time

from ..base import commands
from ..base.files import read_mapping, replace_file
from . import attempt_dir

# A ticket ends when it was not renewed for so long.
LEASE_SECONDS = 60.0
# With a turn nothing renews it: so long has a start for its check and its preparation.
TURN_SECONDS = 300.0
# Living tickets that one answer names.
MOST = 200
ID = re.compile(r"^[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4}-[0-9a-f]{16}\Z")
OWNER = re.compile(r"^[^\x00-\x1f\x7f]{0,200}\Z")
_FILE_BYTES = 4096
_LEFT = ".left"  # the ending of the mark of a ticket that was removed


def clock():
    """Return the seconds since this machine's boot, also those that it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def run_of(ticket_id):
    """Return the run of a ticket's id."""
    return ticket_id.rpartition("-")[0]


def check_id(ticket_id):
    """Raise AttemptError for a text that is not the id of a ticket."""
    if not ID.match(ticket_id):
        raise attempt_dir.AttemptError("wait.bad_ticket", f"{ticket_id!r} is not a ticket's id")


def folder_of(base):
    """Return the directory of this machine's tickets, of this user.

    It is not below base where that can be, since machines may share base.
    """
    folder = commands.user_environment(os.getuid())["XDG_RUNTIME_DIR"]
    if os.access(folder, os.W_OK):
        return os.path.join(folder, "trainyard-tickets")
    return os.path.join(base, "tickets")


def order_of(ticket):
    """Return the key by which tickets are sorted. It is equal on each node."""
    return (not ticket["turn"], ticket["since"], ticket["id"])


def renew(folder, ticket, now):
    """Write a ticket's copy, which lives on from now.

    ticket: {id, by (user@controller), since (unix seconds by its first node), turn}. now: see
    clock(). Raises AttemptError and OSError.
    """
    check_id(ticket["id"])
    seconds = LEASE_SECONDS
    if ticket["turn"]:
        seconds = TURN_SECONDS
    record = dict(ticket, renewed=now, expires=now + seconds)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, ticket["id"] + ".json")
    # A ticket ends with its machine, so it need not be on a disk.
    replace_file(path, json.dumps(record, sort_keys=True), sync=False)
    if os.path.exists(os.path.join(folder, ticket["id"] + _LEFT)):
        _unlink(path)


def remove(folder, ticket_id, now):
    """Remove a ticket's copy, so that no renewal which is on its way brings it back.

    now: see clock(). Raises AttemptError and OSError.
    """
    check_id(ticket_id)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    mark = json.dumps({"expires": now + LEASE_SECONDS})
    replace_file(os.path.join(folder, ticket_id + _LEFT), mark, sync=False)
    _unlink(os.path.join(folder, ticket_id + ".json"))


def remove_of_run(folder, run_id):
    """Remove the copies of a run's tickets: it has started."""
    for name in _names(folder):
        ticket_id = name[: -len(".json")]
        if ID.match(ticket_id) and run_of(ticket_id) == run_id:
            _unlink(os.path.join(folder, name))


def list_living(folder, read_clock=clock, change=True):
    """Return the living tickets in their order, as {id, run, by, since, turn}.

    read_clock: see clock(). It is asked after each file was read: to a time from before, a ticket
    that another start has just renewed would seem to be of before a boot.
    change: remove the copies of the others. A file that is not a ticket counts as ended.
    """
    tickets = []
    for name in _names(folder):
        path = os.path.join(folder, name)
        ticket = _read(path, name, read_clock)
        if ticket:
            tickets.append(ticket)
        elif change:
            with contextlib.suppress(OSError):
                os.unlink(path)
    if change:
        _remove_old_marks(folder, read_clock)
    return sorted(tickets, key=order_of)


def _remove_old_marks(folder, read_clock):
    """Remove the marks of tickets that nothing renews any more, and those of before a boot."""
    for name in _names(folder, _LEFT):
        path = os.path.join(folder, name)
        expires = read_mapping(path, _FILE_BYTES).get("expires")
        now = read_clock()
        if not (_is_time(expires) and now < expires <= now + LEASE_SECONDS):
            with contextlib.suppress(OSError):
                os.unlink(path)


def before(tickets, ticket_id):
    """Return the tickets of one node that come before one, all where it is not among them."""
    found = []
    for ticket in tickets:
        if ticket["id"] == ticket_id:
            break
        found.append(ticket)
    return found


def place_of(lists, ticket_id):
    """Return (place, number of starts) of a ticket among those on any of its nodes.

    lists: the living tickets of each node.
    """
    ahead = {item["id"] for tickets in lists for item in before(tickets, ticket_id)}
    known = {item["id"] for tickets in lists for item in tickets}
    return len(ahead) + 1, len(known | {ticket_id})


def _unlink(path):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _names(folder, ending=".json"):
    """Return the file names of the tickets in a directory, which may be missing."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(ending)]
    except FileNotFoundError:
        return []


def _read(path, name, read_clock):
    """Return the living ticket in a file, None for another content.

    A program of this account may have written the file.
    """
    record = read_mapping(path, _FILE_BYTES)
    now = read_clock()
    since, renewed, expires = (record.get(key) for key in ("since", "renewed", "expires"))
    if not all(_is_time(value) for value in (since, renewed, expires)):
        return None
    ticket_id, owner = record.get("id"), record.get("by")
    if not isinstance(ticket_id, str) or not ID.match(ticket_id) or name != ticket_id + ".json":
        return None
    if not isinstance(owner, str) or not OWNER.match(owner):
        return None
    # Later than now is a time before the last boot.
    is_living = renewed <= now < expires <= renewed + TURN_SECONDS
    if not is_living or not isinstance(record.get("turn"), bool):
        return None
    run = run_of(ticket_id)
    return {
        "id": ticket_id,
        "run": run,
        "by": owner,
        "since": float(since),
        "turn": record["turn"],
    }


def _is_time(value):
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and 0 <= value <= 1e11
