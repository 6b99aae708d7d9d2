# SPDX-License-Identifier: Apache-2.0
"""Stop runs on a node, prove that what they had is free again, and put what became of it on all
nodes into words.
"""

from __future__ import annotations

import contextlib
import os
import time

from ..attempts import (
    attempt_dir,
    ownership,
    status,
)
from ..base import processes
from ..base.sanitize import printable
from ..preflight import devices, sockets
from ..records import run_choice, run_json
from ..recovery import restart_policy

# A driver lists a process for a moment after its end.
SETTLE_S = 3.0
_LISTENS = "0A"


def wanted(held, params):
    """Return [(run id, attempt)] to be stopped here; held: those that hold the node.

    A run that is named, else what holds this node; of the same run every attempt that holds the
    node, where a person stops it (a peer ends the attempt that both are in); and what holds other
    nodes of the site, or is on its way to this one (`also`).
    """
    found = [(params["run_id"], params["number"])] if params["run_id"] else list(held)
    if params["reason"] == "user":
        found += [item for item in held if item[0] == params["run_id"] and item not in found]
    for run_id, number, nodes in params.get("also") or ():
        if params["node"] in nodes and (str(run_id), int(number)) not in found:
            found.append((str(run_id), int(number)))
    return found


def takes_part(run_id, params):
    """Whether a run that is named is, or may come to be, on this node: a node that never was part
    of it gets no note of its end.
    """
    nodes = [also[2] for also in params.get("also") or () if also[0] == run_id]
    return not nodes or any(params["node"] in names for names in nodes)


def stop(run, base, params, write=True):
    """Stop on this node what is asked; return the result of the module attempt in its state
    stopped.
    """
    try:
        units = [item["unit"] for item in attempt_dir.active_units(run)]
    except attempt_dir.AttemptError:
        if not params["run_id"]:
            raise
        units = []  # what is named is ended all the same
    held = [attempt_dir.parse_unit(unit) for unit in units]
    lists = {key: [] for key in ("stopped", "ended", "left", "kept", "noted", "occupied")}
    result = dict(lists, unit="", attempt_dir=os.path.join(base, "runs"))
    for run_id, number in wanted(held, params):
        unit, place = (
            attempt_dir.unit_name(run_id, number),
            attempt_dir.attempt_dir(base, run_id, number),
        )
        marked = None if params["reason"] == "user" else number
        if (
            params.get("start")
            and ownership.record_of(base, run_id, number).get("start") != params["start"]
        ):
            result["kept"].append(
                run_id
            )  # another command's, or nothing: a start that failed takes back its own alone
            continue
        if not write:
            result["stopped"] += (
                [run_id] if unit in units or processes.of_run(run_id, marked) else []
            )
            continue
        # A start that is under way waits for the lock or finds the note that stop leaves.
        known = unit in units or takes_part(run_id, params)
        was_running = known and attempt_dir.stop(
            run, place, unit, params["reason"], params["by"], params["node"]
        )
        if not os.path.exists(os.path.join(place, "attempt.json")):
            result["noted"] += [run_id] * os.path.exists(os.path.join(place, "stop.json"))
        found = processes.end(run_id, marked)
        result["stopped"] += [run_id] if was_running or found else []
        result["ended"] += found
        result["left"] += processes.of_run(run_id, marked)
        if was_running or found:
            result["occupied"] += occupied(run, base, run_id, number, params["node"])
    return dict(result, changed=bool(result["stopped"]))


def occupied(run, base, run_id, number, node, settle=SETTLE_S):
    """Return [{what, own, text}]: the attempt's ports and devices on this node that somebody still
    has; own: whether it is this run.

    Listeners only: a connection that waits for its own end is in nobody's way (sockets.py).
    """
    plan = status.read_json(attempt_dir.attempt_dir(base, run_id, number), "plan.json")
    mine = next((item for item in (plan or {}).get("nodes", ()) if item.get("name") == node), None)
    if mine is None:
        return []
    deadline = time.monotonic() + settle
    while True:
        found = _listeners(plan, node, run_id) + _on_devices(run, base, plan, mine, run_id)
        if not any(item["own"] for item in found) or time.monotonic() >= deadline:
            return found
        time.sleep(0.5)


def ports_of(plan, node):
    """Return the ports on which a plan's processes listen on a node, as far as the plan says; a
    port of * is the launcher's own choice.
    """
    found = [
        rank["endpoint"].rpartition(":")[2]
        for rank in plan.get("ranks", ())
        if rank.get("node") == node and rank.get("endpoint")
    ]
    if plan["nodes"][0]["name"] == node:
        found.append(str((plan.get("ports") or {}).get("start") or ""))
    return sorted({int(port) for port in found if port.isdigit()})


def _listeners(plan, node, run_id):
    rows = [row for row in sockets.sockets() if row[3] == _LISTENS]
    taken = [port for port in ports_of(plan, node) if any(row[0] == port for row in rows)]
    found = []
    for port, owner in sorted(sockets.owners(taken, rows).items()):
        text = "port %d: %s" % (port, sockets.owner_words(dict(owner, error="EADDRINUSE")))
        found.append({"what": "port %d" % port, "own": owner["run"] == run_id, "text": text})
    return found


def _on_devices(run, base, plan, mine, run_id):
    if plan.get("accelerator") not in ("gpu", "ascend"):
        return []
    found = []
    for item in devices.look(run, base, {"accelerator": plan["accelerator"]})["processes"]:
        if item["device"] is None or str(item["device"]) in [
            str(device) for device in mine["devices"]
        ]:
            who = (
                "the run {}".format(item["run"])
                if item.get("run")
                else item.get("user") or "somebody who cannot be seen from here"
            )
            text = "device {}: used by {}, pid {}: {}".format(
                item["device"],
                who,
                item["pid"],
                item["command"],
            )
            found.append(
                {
                    "what": "device {}".format(item["device"]),
                    "own": item.get("run") == run_id,
                    "text": printable(text, limit=300),
                }
            )
    return found


def planned(runs_dir, run_id, site=None):
    """Return {known, number, nodes, waiting} of a run as the controller that started it knows it:
    its newest attempt may be on its way to the nodes.

    Without a run: waiting, [[run, number of its next attempt, nodes]] of the site's runs whose
    restart may wait; `number` is the place of the note.
    """
    if not run_id:
        return {
            "changed": False,
            "known": False,
            "number": 1,
            "nodes": [],
            "waiting": _waiting(runs_dir, site),
        }
    run_choice.check(run_id)
    number, plan = _newest(os.path.join(runs_dir, run_id))
    nodes = _nodes(plan)
    return {
        "changed": False,
        "known": bool(nodes),
        "number": number or 1,
        "nodes": nodes,
        "waiting": [],
    }


def _newest(run_dir):
    numbers = run_json.numbers(run_dir)
    return (numbers[-1], run_json.plan_of(run_dir, numbers[-1]) or {}) if numbers else (0, {})


def _nodes(plan):
    return [
        str(node["name"])
        for node in plan.get("nodes") or ()
        if isinstance(node, dict) and "name" in node
    ]


def _waiting(runs_dir, site):
    found = []
    for run_id in sorted(os.listdir(runs_dir), reverse=True) if os.path.isdir(runs_dir) else ():
        if not attempt_dir.RUN_ID.match(run_id) or os.path.islink(os.path.join(runs_dir, run_id)):
            continue
        run_dir = os.path.join(runs_dir, run_id)
        # a record that is damaged, or a newer Trainyard's, keeps nothing from being stopped
        with contextlib.suppress(AttributeError, KeyError, OSError, TypeError, ValueError):
            record, (number, plan) = run_json.read(run_dir), _newest(run_dir)
            if record and plan.get("site") == site and restart_policy.waits(record, time.time()):
                found.append([run_id, number + 1, _nodes(plan)])
    return found


def told(results, found, run_id, members):
    """Return {summary, verdict} of what every node said; the verdict is {outcome: stopped, nothing
    or problems, text}, its text the last line.

    results: {node: what the module returned there}. found: {node: what was said where it was first
    asked}; it tells why there is no result. members: the nodes on which something of the run can
    be.
    """
    lines, did, problems, silent = [], {}, [], []
    for node, result in results.items():
        said = (found.get(node) or {}) if not result or result.get("skipped") else result
        if not _sound(said):
            lost = bool(said.get("unreachable"))
            if node in members or not lost:
                (silent if lost else problems).append(node)
            why = str(said.get("msg") or "it could not be asked").replace("Task failed: ", "")
            words = "{}: {}".format("no answer" if lost else "not stopped", why)
            words += "" if node in members or not lost else "; it has no part in this run"
        else:
            for name in filter(run_choice.is_run, said["stopped"]):
                did.setdefault(name, []).append(node)
            words, whole = _of_node(said)
            problems += [] if whole else [node]
        lines.append("%-10s  %s" % (node, printable(words, limit=2000)))
    what = "; ".join(
        "{} on {}".format(name, ", ".join(nodes)) for name, nodes in sorted(did.items())
    )
    name = run_id or (sorted(did) or [""])[-1]
    again = "playbooks/stop.yml" + (f" -e run={name}" if name else "")
    noted = sorted(
        {
            name
            for said in results.values()
            if _sound(said)
            for name in said.get("noted") or ()
            if run_choice.is_run(name)
        }
    )
    nothing = (
        f"nothing of {run_id} runs"
        if run_id
        else (
            "no run of yours holds a node"
            if noted
            else "no run of yours was found" + _elsewhere(found)
        )
    )
    text = f"STOPPED {what}" if what else f"NOTHING TO STOP: {nothing}"
    text += (
        "; a start or restart of %s that is under way gives up"
        % ("it" if noted == [run_id] else ", ".join(noted))
        if noted
        else ""
    )
    if silent:
        remedy = (
            "what runs there goes on until its neighbours' watch ends it; when it answers again:"
            f" {again}"
        )
        text = "NO ANSWER from {}: {}; on the others: {}".format(", ".join(silent), remedy, text)
    if problems:
        text = "NOT STOPPED on {}: mend what is named above, then {}; {}".format(
            ", ".join(problems),
            again,
            text,
        )
    outcome = "problems" if problems or silent else "stopped" if what else "nothing"
    lines = [""] + lines + [printable(text, limit=4000)]
    return {"changed": False, "summary": lines, "verdict": {"outcome": outcome, "text": lines[-1]}}


def _elsewhere(found):
    """Return words about the newest run that has failed: another controller may wait for its
    restart, which holds no node, so only its name can stop that.
    """
    known = [said.get("status") or {} for said in found.values()]
    failed = max(
        [
            status["run"]
            for status in known
            if run_choice.is_run(status.get("run")) and status.get("state") in ("failed", "lost")
        ],
        default="",
    )
    return (
        f"; should {failed} wait for its restart: playbooks/stop.yml -e run={failed}"
        if failed
        else ""
    )


def _sound(said):
    """Return whether a node's answer says what a stop did there."""
    lists = [(said or {}).get(key) for key in ("stopped", "ended", "left", "occupied")]
    return (
        all(isinstance(found, list) for found in lists)
        and isinstance(said.get("noted") or [], list)
        and all(isinstance(name, str) for name in said["stopped"])
        and all(
            isinstance(item, dict) and {"pid", "signal", "command"} <= set(item)
            for item in said["ended"]
        )
        and all(
            isinstance(item, dict) and {"own", "text"} <= set(item) for item in said["occupied"]
        )
    )


def _of_node(said):
    """Return (words, whether nothing is left) of a node that answered."""
    words = (
        "stopped {}".format(", ".join(dict.fromkeys(said["stopped"])))
        if said["stopped"]
        else "nothing ran"
    )
    outside = ["pid {pid} ({signal}) {command}".format(**item) for item in said["ended"]]
    words += "; ended outside of its unit: {}".format(", ".join(outside)) if outside else ""
    own = [f"pid {pid}" for pid in said["left"]] + [
        item["text"] for item in said["occupied"] if item["own"]
    ]
    words += "; still there: {}".format(", ".join(own)) if own else ""
    others = [item["text"] for item in said["occupied"] if not item["own"]]
    words += "; not of this run and left alone: {}".format(", ".join(others)) if others else ""
    return words, not own
