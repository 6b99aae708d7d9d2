# SPDX-License-Identifier: Apache-2.0
"""The state of every run on a node, and the attempts of its other users.

Reads only.
"""

from __future__ import annotations

import os
import re

from ..attempts import attempt_dir, status
from ..base import processes
from ..base.files import read_text
from ..base.sanitize import printable_data

# Of an attempt's unit, anywhere in the path of a control group. Every user may read the path.
_UNIT_IN_GROUP = re.compile(r"/(trainyard-[A-Za-z0-9_.-]+[.]service)(?:/|\n|\Z)")
KEYS = (
    *("run", "attempt", "attempts", "node", "job", "state", "ended", "lost", "by"),
    *("started", "now", "nodes", "epochs", "first_step", "unit_of_speed", "ranks_in_all"),
)


def read_runs(run_command, base, node, most):
    """Return (runs, left_out) of this user on this node, the newest run first.

    run_command: as AnsibleModule.run_command. base: the product's directory. node: the node's name
    in the inventory. most: number of runs that have ended; the others are counted as left_out. An
    attempt that is active is always among them.
    """
    names = sorted({run_id for run_id, _number in attempt_dir.list_attempts(base)}, reverse=True)
    units = [attempt_dir.parse_unit(item["unit"]) for item in attempt_dir.active_units(run_command)]
    active = {run_id for run_id, number in units if number}
    chosen = [name for name in names if name in active]
    ended = [name for name in names if name not in active]
    runs = [_describe(run_command, base, name, node) for name in chosen + ended[:most]]
    runs = [entry for entry in runs if entry]
    return sorted(runs, key=lambda entry: entry["run"], reverse=True), max(0, len(ended) - most)


def _describe(run_command, base, run_id, node):
    """Return the entry of a run, None if it was removed meanwhile."""
    answer = status.read_status(run_command, base, run_id, 0, node)
    if not answer["found"]:
        return None
    entry = {key: answer[key] for key in KEYS}
    ranks = sorted(answer["ranks"], key=lambda rank: rank["rank"])
    stepped = [rank for rank in ranks if rank["step"]]
    entry["log_time"] = max((rank["log_time"] or 0 for rank in ranks), default=0) or None
    entry["step"], entry["rank"], entry["fraction"] = None, None, None
    if stepped:
        first = stepped[0]
        entry.update(step=first["step"], rank=first["rank"], fraction=first["fraction"])
    return entry


def other_users(proc="/proc", own=None):
    """Return [{run, attempt, unit, user}] of attempts that other users run on this machine.

    The control group of a process is open to every user, its files and environment are not. proc:
    where procfs is mounted. own: the uid that is left out, this user's unless given.
    """
    if own is None:
        own = os.getuid()
    found = {}
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        match = _UNIT_IN_GROUP.search(read_text(os.path.join(proc, name, "cgroup"), 4096))
        unit = match and attempt_dir.UNIT.match(match.group(1))
        # A rehearsal is attempt 0. Any user may give a unit such a name, so the name is checked.
        if not unit or unit.group(2) == "0" or not attempt_dir.RUN_ID.match(unit.group(1)):
            continue
        try:
            uid = os.stat(os.path.join(proc, name)).st_uid
        except OSError:
            continue  # it has ended
        if uid != own:
            found[match.group(1)] = {
                "run": unit.group(1),
                "attempt": int(unit.group(2)),
                "unit": match.group(1),
                "user": processes.user_name(uid),
            }
    return printable_data([found[unit] for unit in sorted(found)])
