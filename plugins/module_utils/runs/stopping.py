# SPDX-License-Identifier: Apache-2.0
"""The stop of runs on a node.

It ends with the proof that what they had is free again, and puts the result into words.
"""

from __future__ import annotations

import contextlib
import os
import time
import typing

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
    lists = {key: [] for key in ("stopped", "ended", "left", "kept", "noted", "occupied")}
    result = dict(lists, unit="", attempt_dir=os.path.join(base, "runs"))
    for run_id, number in wanted(held, params):
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
    record = ownership.record_of(base, attempt.run_id, attempt.number)
    return record.get("start") != params["start"]


def _marked_number(number, params):
    """Return the number that marks the processes to be ended.

    It is None for the processes of the whole run.
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
    if was_running or ended:
        result["stopped"].append(run_id)
        result["occupied"] += occupied(run_command, base, run_id, attempt.number, params["node"])


def occupied(run, base, run_id, number, node, settle=SETTLE_S):
    """Return [{what, own, text}] of the attempt's ports and devices in use.

    own: whether it is this run that uses them. settle: seconds that the run's processes may take to
    leave them. Listeners only: a connection that waits for its own end is in nobody's way
    (sockets.py).
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


def ports_of(plan, node):
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
    taken = [port for port in ports_of(plan, node) if port in listening]
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
        user = item.get("user") or "somebody who cannot be seen from here"
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


def planned(runs_dir, run_id, site=None):
    """Return {known, number, nodes, waiting} of a run.

    It is what the controller that started it knows. Its newest attempt may be on its way to the
    nodes. Without a run: waiting, [[run, number of its next attempt, nodes]] of the site's runs
    whose restart may wait. `number` is the attempt in whose place the note lies.
    """
    result = {"changed": False, "known": False, "number": 1, "nodes": [], "waiting": []}
    if not run_id:
        return dict(result, waiting=_waiting(runs_dir, site))
    run_choice.check(run_id)
    number, plan = _newest(os.path.join(runs_dir, run_id))
    nodes = _nodes(plan)
    return dict(result, known=bool(nodes), number=number or 1, nodes=nodes)


def _newest(run_dir):
    """Return (number, plan) of a run's newest attempt, (0, {}) for none.

    It is the newest one that the controller has.
    """
    number = max(run_json.numbers(run_dir), default=0)
    if not number:
        return 0, {}
    return number, run_json.plan_of(run_dir, number) or {}


def _nodes(plan):
    """Return the names of a plan's nodes."""
    return [
        str(node["name"])
        for node in plan.get("nodes") or ()
        if isinstance(node, dict) and "name" in node
    ]


def _waiting(runs_dir, site):
    """Return [[run, number of its next attempt, nodes]] of runs that may wait.

    They are a site's, the newest first.
    """
    if not os.path.isdir(runs_dir):
        return []
    waiting = []
    for run_id in sorted(os.listdir(runs_dir), reverse=True):
        run_dir = os.path.join(runs_dir, run_id)
        if not attempt_dir.RUN_ID.match(run_id) or os.path.islink(run_dir):
            continue
        # a record that is damaged, or a newer Trainyard's, keeps nothing from being stopped
        with contextlib.suppress(AttributeError, KeyError, OSError, TypeError, ValueError):
            record, (number, plan) = run_json.read(run_dir), _newest(run_dir)
            if record and plan.get("site") == site and restart_policy.waits(record, time.time()):
                waiting.append([run_id, number + 1, _nodes(plan)])
    return waiting


class _NodeReport(typing.NamedTuple):
    """The result of a stop on one node."""

    node: str
    text: str
    runs: tuple = ()  # ids of the runs that were stopped there
    is_problem: bool = False  # something runs there still, or may
    is_silent: bool = False  # a member of the run did not answer


def told(results, found, run_id, members):
    """Return {summary, verdict} of what every node said.

    The verdict is {outcome: stopped, nothing or problems, text}, its text the last line. results:
    {node: what the module returned there}. found: {node: what was said where it was first asked}.
    It tells why there is no result. members: the nodes on which something of the run can be.
    """
    reports = [
        _report_node(node, result, found.get(node) or {}, node in members)
        for node, result in results.items()
    ]
    problems = [report.node for report in reports if report.is_problem]
    silent = [report.node for report in reports if report.is_silent]
    stopped = {}
    for report in reports:
        for name in report.runs:
            stopped.setdefault(name, []).append(report.node)
    text = _describe_stop(stopped, _noted_runs(results), found, run_id)
    command = "playbooks/stop.yml"
    if run_id or stopped:
        command += f" -e run={run_id or max(stopped)}"
    text = _prepend_open_nodes(text, problems, silent, command)
    outcome = "nothing"
    if problems or silent:
        outcome = "problems"
    elif stopped:
        outcome = "stopped"
    lines = [""]
    lines += [f"{report.node:<10}  {printable(report.text, limit=2000)}" for report in reports]
    lines.append(printable(text, limit=4000))
    return {"changed": False, "summary": lines, "verdict": {"outcome": outcome, "text": lines[-1]}}


def _prepend_open_nodes(text, problems, silent, command):
    """Return the text, with the nodes before it where something may run."""
    if silent:
        text = (
            f"NO ANSWER from {', '.join(silent)}: what runs there goes on until its neighbours'"
            f" watch ends it; when it answers again: {command}; on the others: {text}"
        )
    if problems:
        text = (
            f"NOT STOPPED on {', '.join(problems)}: mend what is named above, then {command};"
            f" {text}"
        )
    return text


def _report_node(node, result, first_answer, is_member):
    """Return the report of one node.

    result: what the module returned there, or nothing. first_answer: what was said where the node
    was first asked. is_member: whether something of the run can be there.
    """
    answer = result
    if not result or result.get("skipped"):
        answer = first_answer
    if _is_sound(answer):
        return _report_answer(node, answer)
    reason = str(answer.get("msg") or "it could not be asked").replace("Task failed: ", "")
    if not answer.get("unreachable"):
        return _NodeReport(node, f"not stopped: {reason}", is_problem=True)
    text = f"no answer: {reason}"
    if not is_member:
        text += "; it has no part in this run"
    return _NodeReport(node, text, is_silent=is_member)


def _noted_runs(results):
    """Return the ids of the runs that the nodes have noted as stopped, sorted."""
    return sorted(
        {
            name
            for result in results.values()
            if _is_sound(result)
            for name in result.get("noted") or ()
            if run_choice.is_run(name)
        }
    )


def _describe_stop(stopped, noted, found, run_id):
    """Return the verdict's text as if all nodes had answered.

    stopped: {run: its nodes}. noted: the runs whose start or restart gives up.
    """
    runs = "; ".join(f"{name} on {', '.join(nodes)}" for name, nodes in sorted(stopped.items()))
    if runs:
        text = f"STOPPED {runs}"
    elif run_id:
        text = f"NOTHING TO STOP: nothing of {run_id} runs"
    elif noted:
        text = "NOTHING TO STOP: no run of yours holds a node"
    else:
        text = "NOTHING TO STOP: no run of yours was found" + _elsewhere(found)
    if not noted:
        return text
    names = ", ".join(noted)
    if noted == [run_id]:
        names = "it"
    return f"{text}; a start or restart of {names} that is under way gives up"


def _elsewhere(found):
    """Return words about the newest run that has failed, '' where there is none.

    Another controller may wait for its restart, which holds no node. Only its name can stop that.
    """
    statuses = [answer.get("status") or {} for answer in found.values()]
    failed = max(
        [
            status["run"]
            for status in statuses
            if run_choice.is_run(status.get("run")) and status.get("state") in ("failed", "lost")
        ],
        default="",
    )
    if not failed:
        return ""
    return f"; should {failed} wait for its restart: playbooks/stop.yml -e run={failed}"


def _is_sound(answer):
    """Return whether a node's answer says what a stop did there."""
    lists = [(answer or {}).get(key) for key in ("stopped", "ended", "left", "occupied")]
    return (
        all(isinstance(items, list) for items in lists)
        and isinstance(answer.get("noted") or [], list)
        and all(isinstance(name, str) for name in answer["stopped"])
        and all(
            isinstance(item, dict) and {"pid", "signal", "command"} <= set(item)
            for item in answer["ended"]
        )
        and all(
            isinstance(item, dict) and {"own", "text"} <= set(item) for item in answer["occupied"]
        )
    )


def _report_answer(node, answer):
    """Return the report of a node that answered.

    What is left there of the run is a problem.
    """
    of_run = [item["text"] for item in answer["occupied"] if item["own"]]
    others = [item["text"] for item in answer["occupied"] if not item["own"]]
    outside = ["pid {pid} ({signal}) {command}".format(**item) for item in answer["ended"]]
    left = [f"pid {pid}" for pid in answer["left"]] + of_run
    parts = ["nothing ran"]
    if answer["stopped"]:
        parts = ["stopped " + ", ".join(dict.fromkeys(answer["stopped"]))]
    if outside:
        parts.append("ended outside of its unit: " + ", ".join(outside))
    if left:
        parts.append("still there: " + ", ".join(left))
    if others:
        parts.append("not of this run and left alone: " + ", ".join(others))
    runs = tuple(filter(run_choice.is_run, answer["stopped"]))
    return _NodeReport(node, "; ".join(parts), runs=runs, is_problem=bool(left))
