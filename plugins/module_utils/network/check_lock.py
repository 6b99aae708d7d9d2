# SPDX-License-Identifier: Apache-2.0
"""Turns of network checks on one node: a lock allows one listener at a time.

A check that ends another's listener leaves a note for it.

Functions take `run_command`, a callable like AnsibleModule.run_command, and the user's runtime
directory, so that they are tested without Ansible. A rival is another check that was met: {id,
seconds it has been there}.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time

from ..base import safe_open
from ..base.locks import try_lock, unlock
from . import client

# Not trainyard-*: a check holds no node, and `stop` has nothing to do with it. Not the limits
# probe's either (unit_limits.py: yardlimits-*).
UNITS = "yardcheck-*.service"
UNIT = re.compile(r"^yardcheck-([0-9a-z]{1,32})\.service\Z")
ID = re.compile(r"^[0-9a-z]{1,32}\Z")
# A listener with which no node has spoken for so many seconds is abandoned: the network's part of a
# check takes seconds.
PATIENCE_SECONDS = 15
# Two checks may wait for each other, each with a listener on a node that the other wants: the one
# with the lower id goes on after so many seconds.
CROSSED_SECONDS = 5
# A check that has waited so many seconds behind checks that are alive gives up.
LONGEST_SECONDS = 45
POLL_SECONDS = 0.25
# The note for a check that was interrupted is never fetched. It is removed after this time.
STALE_SECONDS = 600


class ProofError(Exception):
    """A listener that cannot be started. The message is for the user."""


def unit_of(number):
    """Return the name of a check's unit.

    Raises ProofError for an id that is not valid.
    """
    if not ID.match(number):
        raise ProofError(f"{number!r} is no id of a check")
    return f"yardcheck-{number}.service"


def control_of(runtime, number):
    """Return the path of the socket of a check's listener on its own node."""
    return os.path.join(runtime, unit_of(number)[: -len(".service")], "control")


def ask_listener(runtime, number, **request):
    """Return what the listener of a check answers on its own node.

    Raises OSError or ValueError where no listener answers.
    """
    spec = {"id": number, "node": "", "address": ""}
    call = client.Call(spec, control_of(runtime, number), 0)
    try:
        call.ask(do="hello", id=number, **{"from": ""})
        return call.ask(**request)
    finally:
        call.close()


def list_listeners(run_command):
    """Return {id: True if systemd takes it for alive} of the listeners on this node.

    Raises ProofError where systemd does not answer.
    """
    code, out, err = run_command(
        ["systemctl", "--user", "list-units", "--all", "--plain", "--no-legend", "--full", UNITS]
    )
    if code:
        reason = err.strip() or f"exit code {code}"
        raise ProofError(
            f"the user's systemd does not answer ({reason}); run ansible-playbook"
            " playbooks/provision.yml once"
        )
    listeners = {}
    for line in out.splitlines():
        columns = line.split()
        match = len(columns) > 2 and UNIT.match(columns[0])
        if match:
            listeners[match.group(1)] = columns[2] not in ("failed", "inactive")
    return listeners


def is_abandoned(number, holder, waited, state):
    """Return True if a check may end another's listener.

    number, holder: ids of the check and of the other one. waited: seconds that the check has stood
    behind it. state: what the other one's listener answers, {} for nothing.
    """
    patience = PATIENCE_SECONDS
    if state.get("came") == 0 and number < holder:
        patience = CROSSED_SECONDS
    return min(waited, state.get("idle", waited)) >= patience


def note_path(runtime, number):
    """Return the path of the note that a check's listener was ended.

    The note names the check that did so.
    """
    return os.path.join(runtime, f"{unit_of(number)[: -len('.service')]}.over")


def read_note(runtime, number, forget=False):
    """Return the rival that has ended this check's listener, or None.

    forget: remove the note.
    """
    path = note_path(runtime, number)
    try:
        note = json.loads(safe_open.read_file(path, 1 << 16).decode("utf-8"))
        rival = {"id": note["id"], "seconds": max(0, int(time.time() - note["began"]))}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if forget:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return rival


def _leave_note(runtime, number, holder, began):
    """Note for another check that this one ends its listener.

    began: the time at which this check came.
    """
    with open(note_path(runtime, holder), "w", encoding="utf-8") as handle:
        json.dump({"id": number, "began": began}, handle)


def _end_listener(run_command, holder):
    """End the unit of a check's listener."""
    run_command(["systemctl", "--user", "stop", unit_of(holder)])
    run_command(["systemctl", "--user", "reset-failed", unit_of(holder)])


def _remove_stale_notes(runtime):
    """Remove the notes for checks that were interrupted."""
    for name in os.listdir(runtime):
        path = os.path.join(runtime, name)
        with contextlib.suppress(OSError):
            if (
                name.startswith("yardcheck-")
                and name.endswith(".over")
                and time.time() - os.path.getmtime(path) > STALE_SECONDS
            ):
                os.unlink(path)


def _state(runtime, holder):
    """Return {age, idle, came} of a listener, {} where it says nothing."""
    try:
        return ask_listener(runtime, holder, do="state")
    except (OSError, ValueError, ProofError):
        return {}


def _find_rival(run_command, runtime, number, first_seen):
    """Return (rival, listeners).

    rival: the check to wait for, or None. listeners: {id: alive} of all. first_seen: {id: the
    monotonic time at which a rival was first seen}. New ones are added.
    """
    listeners = list_listeners(run_command)
    for holder in [name for name, alive in listeners.items() if alive and name != number]:
        state = _state(runtime, holder)
        waited = time.monotonic() - first_seen.setdefault(holder, time.monotonic())
        if not is_abandoned(number, holder, waited, state):
            return {"id": holder, "seconds": int(state.get("age", waited))}, listeners
    return None, listeners


@contextlib.contextmanager
def hold_turn(run_command, runtime, number):
    """Wait for this check's turn on the node and hold it.

    Gives None, or the rival behind which it has waited in vain. Raises ProofError where systemd
    does not answer. The lock is on the runtime directory itself, so that nothing is left.
    """
    lock = os.open(runtime, os.O_RDONLY)
    began, started = time.time(), time.monotonic()
    first_seen, rival = {}, {"id": "", "seconds": 0}
    try:
        while rival:
            if try_lock(lock):
                rival, listeners = _find_rival(run_command, runtime, number, first_seen)
                if not rival:
                    _remove_stale_notes(runtime)
                    for holder, alive in listeners.items():
                        if alive and holder != number:
                            _leave_note(runtime, number, holder, began)
                        _end_listener(run_command, holder)
                    break
                unlock(lock)
            if time.monotonic() > started + LONGEST_SECONDS:
                break
            time.sleep(POLL_SECONDS)
        waited = int(time.monotonic() - started)
        yield rival and dict(rival, seconds=max(rival["seconds"], waited))
    finally:
        os.close(lock)
