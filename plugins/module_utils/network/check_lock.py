# SPDX-License-Identifier: Apache-2.0
"""Checks take turns on a node: one listener at a time, and who ends another's leaves word for it.

Functions take `run`, a callable like AnsibleModule.run_command, and the user's runtime directory,
so that they are tested without Ansible. A rival is another check that was met: {id, seconds it has
been there}.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time

from ..base import safe_open
from . import client

# Not trainyard-*: a check holds no node, and `stop` has nothing to do with it. Not the limits
# probe's either (limits.py: yardlimits-*).
UNITS = "yardcheck-*.service"
UNIT = re.compile(r"^yardcheck-([0-9a-z]{1,32})\.service\Z")
ID = re.compile(r"^[0-9a-z]{1,32}\Z")
# A listener that nobody has spoken to for so long is abandoned: the network's part of a check takes
# seconds.
PATIENCE = 15
# Two checks may wait for each other, each with a listener on a node that the other wants: the one
# with the lower id goes on after so long.
CROSSED = 5
# Who has waited so long behind checks that are alive gives up.
LONGEST = 45
POLL = 0.25
# Word for a check that was interrupted is never fetched.
STALE_SECONDS = 600


class ProofError(Exception):
    """A listener that cannot be started; the message is for the user."""


def unit_of(number):
    """Return the unit's name; raises ProofError for an id that is none."""
    if not ID.match(number):
        raise ProofError(f"{number!r} is no id of a check")
    return f"yardcheck-{number}.service"


def control_of(runtime, number):
    """Return where the listener of a check is spoken to on its own node."""
    return os.path.join(runtime, unit_of(number)[: -len(".service")], "control")


def asked(runtime, number, **word):
    """Return what the listener of a check answers on its own node; raises OSError or ValueError
    where there is none.
    """
    spec = {"id": number, "node": "", "address": ""}
    call = client.Call(spec, control_of(runtime, number), 0)
    try:
        call.ask(do="hello", id=number, **{"from": ""})
        return call.ask(**word)
    finally:
        call.close()


def others(run):
    """Return {id: whether systemd has it for alive} of the listeners that are there."""
    code, out, err = run(
        ["systemctl", "--user", "list-units", "--all", "--plain", "--no-legend", "--full", UNITS]
    )
    if code:
        raise ProofError(
            "the user's systemd does not answer (%s); run playbooks/provision.yml once"
            % (err.strip() or "exit code %d" % code)
        )
    rows = [line.split() for line in out.splitlines()]
    found = [(UNIT.match(row[0]), row[2]) for row in rows if len(row) > 2]
    return {match.group(1): state not in ("failed", "inactive") for match, state in found if match}


def abandoned(number, holder, waited, said):
    """Return whether a check may end another's listener; waited: seconds that it has stood behind
    it; said: what that one answers, {} for nothing.
    """
    crossed = said.get("came") == 0 and number < holder
    return min(waited, said.get("idle", waited)) >= (CROSSED if crossed else PATIENCE)


def word_of(runtime, number):
    """Return where a check finds who has ended its listener."""
    return os.path.join(runtime, "{}.over".format(unit_of(number)[: -len(".service")]))


def superseded(runtime, number, forget=False):
    """Return the rival that has ended this check's listener, or None."""
    path = word_of(runtime, number)
    try:
        said = json.loads(safe_open.read_file(path, 1 << 16).decode("utf-8"))
        rival = {"id": said["id"], "seconds": max(0, int(time.time() - said["began"]))}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if forget:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return rival


def _ended(run, runtime, number, holder, began):
    """End a listener and, where began (the time at which this check came) is given, leave word for
    its check.
    """
    if began and holder != number:
        with open(word_of(runtime, holder), "w", encoding="utf-8") as handle:
            json.dump({"id": number, "began": began}, handle)
    run(["systemctl", "--user", "stop", unit_of(holder)])
    run(["systemctl", "--user", "reset-failed", unit_of(holder)])


def _tidied(runtime):
    """Remove word for checks that were interrupted."""
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
        return asked(runtime, holder, do="state")
    except (OSError, ValueError, ProofError):
        return {}


def _in_the_way(run, runtime, number, met):
    """Return (the rival that this check has to wait for, or None; {id: alive} of the listeners that
    are there); met: {id: when it was first seen}.
    """
    there = others(run)
    for holder in [name for name, alive in there.items() if alive and name != number]:
        said, waited = (
            _state(runtime, holder),
            time.monotonic() - met.setdefault(holder, time.monotonic()),
        )
        if not abandoned(number, holder, waited, said):
            return {"id": holder, "seconds": int(said.get("age", waited))}, there
    return None, there


@contextlib.contextmanager
def turn(run, runtime, number):
    """Wait for this check's turn on the node and hold it; gives None, or the rival behind whom it
    has waited in vain.

    The lock is on the runtime directory itself, so that nothing is left. Raises ProofError where
    systemd does not answer.
    """
    place = os.open(runtime, os.O_RDONLY)
    began, clock, met, rival = time.time(), time.monotonic(), {}, {"id": "", "seconds": 0}
    try:
        while rival:
            if _locked(place):
                rival, there = _in_the_way(run, runtime, number, met)
                if not rival:
                    _tidied(runtime)
                    for holder, alive in there.items():
                        _ended(run, runtime, number, holder, began if alive else None)
                    break
                fcntl.flock(place, fcntl.LOCK_UN)
            if time.monotonic() > clock + LONGEST:
                break
            time.sleep(POLL)
        yield rival and dict(rival, seconds=max(rival["seconds"], int(time.monotonic() - clock)))
    finally:
        os.close(place)


def _locked(place):
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
