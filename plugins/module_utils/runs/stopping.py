# SPDX-License-Identifier: Apache-2.0
"""The stop of runs on a node.

It ends with the proof that what they had is free again.
"""

from __future__ import annotations

import os
import time
import typing

from ..attempts import (
    attempt_dir,
    ownership,
    status,
    supervisor_installation,
)
from ..base import processes
from ..base.sanitize import printable
from ..preflight import devices, sockets

# A driver lists a process for a moment after its end.
SETTLE_S = 3.0
_LISTENS = "0A"


def select_attempts(held, params):
    """Return [(run id, attempt)] to be stopped here.

    held: the attempts that hold the node. A run that is named is stopped, else what holds this
    node. Where a person stops a run, every attempt of it that holds the node is stopped. A peer
    ends the attempt that both are in. What holds other nodes of the site, or is on its way to this
    one, is stopped, too (`also`).
    """
    chosen = list(held)
    if params["run_id"]:
        chosen = [(params["run_id"], params["number"])]
    if params["reason"] == "user":
        chosen += [item for item in held if item[0] == params["run_id"] and item not in chosen]
    for run_id, number, nodes in params.get("also") or ():
        if params["node"] in nodes and (str(run_id), int(number)) not in chosen:
            chosen.append((str(run_id), int(number)))
    return chosen


def takes_part(run_id, params):
    """Return whether a run that is named is, or may come to be, on this node.

    A node that never was part of it gets no note of its end.
    """
    nodes = [also[2] for also in params.get("also") or () if also[0] == run_id]
    return not nodes or any(params["node"] in names for names in nodes)


class _Attempt(typing.NamedTuple):
    """One attempt that is to be stopped here."""

    run_id: str
    number: int
    directory: str
    unit: str


def stop(run, base, params, write=True):
    """Stop on this node what is asked.

    Return the module's result. The result is that of the module attempt in its state stopped. run:
    runs a command. base: the product's directory on the node. params: of the module. write: False
    where the result is only to be foretold.
    """
    try:
        units = [item["unit"] for item in attempt_dir.active_units(run)]
    except attempt_dir.AttemptError:
        if not params["run_id"]:
            raise
        units = []  # what is named is ended all the same
    held = [attempt_dir.parse_unit(unit) for unit in units]
    lists = {
        key: [] for key in ("stopped", "ended", "left", "kept", "noted", "occupied", "unconfirmed")
    }
    result = dict(lists, unit="", attempt_dir=os.path.join(base, "runs"))
    for run_id, number in select_attempts(held, params):
        attempt = _Attempt(
            run_id,
            number,
            attempt_dir.attempt_dir(base, run_id, number),
            attempt_dir.unit_name(run_id, number),
        )
        is_active = attempt.unit in units
        if _is_other_start(base, attempt, params):
            result["kept"].append(run_id)
        elif write:
            _end_attempt(run, base, params, attempt, is_active, result)
        elif is_active or processes.of_run(run_id, _marked_number(number, params)):
            result["stopped"].append(run_id)
    return dict(result, changed=bool(result["stopped"]))


def _is_other_start(base, attempt, params):
    """Return whether an attempt is not the one that a failed start takes back.

    Such a start takes back its own alone. Another command's attempt stays.
    """
    if not params.get("start"):
        return False
    record = ownership.read_record(base, attempt.run_id, attempt.number)
    return record.get("start") != params["start"]


def _marked_number(number, params):
    """Return the number that marks the processes to be ended.

    None stands for the processes of the whole run.
    """
    if params["reason"] == "user":
        return None
    return number


def _end_attempt(run_command, base, params, attempt, is_active, result):
    """End one attempt on this node and add what became of it to the result.

    is_active: whether the attempt's unit is.
    """
    run_id = attempt.run_id
    marked = _marked_number(attempt.number, params)
    home = os.path.expanduser("~")
    is_asked = params["reason"] == "user" and supervisor_installation.ask_to_stop(
        home, base, run_id, params["node"], params["by"]
    )
    if params.get("start"):
        supervisor_installation.remove(
            run_command, home, base, run_id, params["node"], params["start"]
        )
    # A start that is under way waits for the lock or finds the note that stop leaves.
    was_running = (is_active or takes_part(run_id, params)) and attempt_dir.stop(
        run_command,
        attempt.directory,
        attempt.unit,
        params["reason"],
        params["by"],
        params["node"],
    )
    was_started = os.path.exists(os.path.join(attempt.directory, "attempt.json"))
    if not was_started and os.path.exists(os.path.join(attempt.directory, "stop.json")):
        result["noted"].append(run_id)
    ended = processes.end(run_id, marked)
    result["ended"] += ended
    result["left"] += processes.of_run(run_id, marked)
    if is_asked and not _is_final(run_command, home, base, run_id, params):
        result["unconfirmed"].append(run_id)
    if was_running or ended or is_asked:
        result["stopped"].append(run_id)
        result["occupied"] += find_occupied(
            run_command, base, run_id, attempt.number, params["node"]
        )


def _is_final(run_command, home, base, run_id, params):
    """Return whether the run's nodes can begin no attempt of it any more."""
    node, lost = params["node"], params.get("lost") or ()
    if supervisor_installation.await_final(home, base, run_id, node):
        return True
    return supervisor_installation.leave(run_command, home, base, run_id, node, lost)


def find_occupied(run, base, run_id, number, node, settle=SETTLE_S):
    """Return [{what, own, text}] of the attempt's ports and devices in use.

    own: whether it is this run that uses them. settle: seconds that the run's processes may take to
    leave them. Listeners only: a connection that waits for its own end blocks nothing (sockets.py).
    """
    plan = status.read_json(attempt_dir.attempt_dir(base, run_id, number), "plan.json")
    planned_node = next(
        (item for item in (plan or {}).get("nodes", ()) if item.get("name") == node), None
    )
    if planned_node is None:
        return []
    deadline = time.monotonic() + settle
    while True:
        users = _port_users(plan, node, run_id)
        users += _device_users(run, base, plan, planned_node, run_id)
        if not any(item["own"] for item in users) or time.monotonic() >= deadline:
            return users
        time.sleep(0.5)


def planned_ports(plan, node):
    """Return the ports on which a plan's processes listen on a node.

    They are known as far as the plan says. A port of * is the launcher's own choice.
    """
    ports = [
        rank["endpoint"].rpartition(":")[2]
        for rank in plan.get("ranks", ())
        if rank.get("node") == node and rank.get("endpoint")
    ]
    if plan["nodes"][0]["name"] == node:
        ports.append(str((plan.get("ports") or {}).get("start") or ""))
    return sorted({int(port) for port in ports if port.isdigit()})


def _port_users(plan, node, run_id):
    """Return [{what, own, text}] of the plan's ports on a node that have a listener."""
    rows = [row for row in sockets.sockets() if row[3] == _LISTENS]
    listening = {row[0] for row in rows}
    taken = [port for port in planned_ports(plan, node) if port in listening]
    users = []
    for port, owner in sorted(sockets.owners(taken, rows).items()):
        owner_text = sockets.owner_words(dict(owner, error="EADDRINUSE"))
        users.append(
            {
                "what": f"port {port}",
                "own": owner["run"] == run_id,
                "text": f"port {port}: {owner_text}",
            }
        )
    return users


def _device_users(run_command, base, plan, planned_node, run_id):
    """Return [{what, own, text}] of the plan's devices on a node that a process uses."""
    if plan.get("accelerator") not in ("gpu", "ascend"):
        return []
    planned_devices = [str(device) for device in planned_node["devices"]]
    observed = devices.look(run_command, base, {"accelerator": plan["accelerator"]})
    users = []
    for item in observed["processes"]:
        if item["device"] is not None and str(item["device"]) not in planned_devices:
            continue
        user = item.get("user") or "a user that is not visible here"
        if item.get("run"):
            user = f"the run {item['run']}"
        text = f"device {item['device']}: used by {user}, pid {item['pid']}: {item['command']}"
        users.append(
            {
                "what": f"device {item['device']}",
                "own": item.get("run") == run_id,
                "text": printable(text, limit=300),
            }
        )
    return users
