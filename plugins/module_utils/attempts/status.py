# SPDX-License-Identifier: Apache-2.0
"""How an attempt stands on one node: its unit, its ranks, the latest training step. Reads only;
cheap enough to be asked every few seconds.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import time

from ..base import processes
from ..base.safe_open import DIRECTORY, open_in, read_in
from ..base.sanitize import printable_data, secrets_of
from ..logs import parser
from . import (
    attempt_dir,
    guard_findings,
    ownership,
)
from .evidence import launcher_notes

MAX_EVENTS = 4 << 20
MAX_JSON = 64 << 20
CONSOLE_BYTES = 8192


def read_events(attempt):
    """Return the events of ranks.jsonl; a line that is not whole yet is left for the next look."""
    try:
        text = read_in(attempt, "ranks.jsonl", MAX_EVENTS).decode("utf-8", "replace")
    except OSError:
        return []
    events = []
    for line in text.split("\n"):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        events += [event] if isinstance(event, dict) else []
    return events


def read_bytes(attempt, name):
    """Return what a file of the attempt's directory holds, or None."""
    try:
        return read_in(attempt, name, MAX_JSON)
    except OSError:
        return None


def read_json(attempt, name):
    """Return the mapping in a JSON file of the attempt's directory, or None."""
    return as_mapping(read_bytes(attempt, name))


def as_mapping(data):
    """Return the mapping that some bytes hold as JSON, or None."""
    try:
        found = json.loads(data.decode("utf-8", "replace")) if data is not None else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def unit_state(run, unit):
    """Return ActiveState of a unit ('inactive' also where systemd has forgotten it)."""
    _code, out, _err = run(
        ["systemctl", "--user", "show", "--property=ActiveState", "--value", unit]
    )
    return out.strip() or "inactive"


def rank_states(attempt, plan, node, events):
    """Return [{rank, local_rank, pid, state, exit_code, signal, step, evaluation, nan, log_bytes,
    log_time, fraction}] of this node's ranks.

    step: the log's latest step record or None. nan: the first step in the log's end whose loss is
    no number, or None. log_time: when the log was last written (unix seconds of the node), or None.
    """
    table = parser.Table(plan["suite"].get("logs"))
    step_table = (plan["suite"].get("logs") or {}).get("step") or {}
    finished = any(
        event.get("event") == "launcher_end" and event.get("exit_code") == 0 for event in events
    )
    ends = {event.get("rank"): event for event in events if event.get("event") == "end"}
    starts = {event.get("rank"): event for event in events if event.get("event") == "start"}
    found = []
    for rank in (item for item in plan["ranks"] if item["node"] == node):
        try:
            with os.fdopen(
                open_in(attempt, rank.get("log") or plan["launcher"]["rank_log"].format(**rank)),
                "rb",
            ) as handle:
                tail = parser.tail_status(handle.fileno(), table)
        except OSError:
            tail = None
        start, end = starts.get(rank["rank"]), ends.get(rank["rank"])
        step = tail and tail["last_step"]
        # A suite that prints steps on its first rank only leaves the others' phase unknown.
        silent = step_table.get("ranks") == "first" and rank["rank"] > 0
        if end:
            # msrun collects its ranks before anybody can see how they ended; where it ended well
            # itself, they did.
            unseen = end.get("exit_code") is None and not end.get("signal")
            state = (
                "done"
                if end.get("exit_code") == 0 or (unseen and finished)
                else ("ended" if unseen else "failed")
            )
        elif not start:
            state = "waiting"
        else:
            state = "training" if step else ("running" if silent else "starting")
        found.append(
            {
                "rank": rank["rank"],
                "local_rank": rank["local_rank"],
                "pid": start and start.get("pid"),
                "state": state,
                "exit_code": end and end.get("exit_code"),
                "signal": end and end.get("signal"),
                "step": step,
                "evaluation": tail and tail["evaluation"],
                "nan": tail and tail["nan"],
                "log_bytes": tail["bytes"] if tail else 0,
                "log_time": tail and tail["mtime"],
                "fraction": parser.fraction(step, plan["suite"].get("logs"), plan.get("epochs")),
            }
        )
    return found


def look(run, base, run_id, number, node):
    """Return the attempt's state on this node; see library/attempt_status.py. An empty run_id means
    the run that holds the node, else the newest.
    """
    known = attempt_dir.runs_on(base)
    if not run_id:
        units = [attempt_dir.parse_unit(item["unit"]) for item in attempt_dir.active_units(run)]
        held = [pair for pair in units if pair[1]]  # attempt 0 is a rehearsal
        if not (held or known):
            return {"found": False, "ended": True, "state": "none", "known": []}
        run_id, number = (held or known)[-1]
    if not number:
        number = max([item[1] for item in known if item[0] == run_id] or [1])
    attempt = attempt_dir.attempt_dir(base, run_id, number)
    text = read_bytes(attempt, "plan.json")
    plan, record = as_mapping(text), read_json(attempt, "attempt.json")
    if not plan or not record:
        return {
            "found": False,
            "ended": True,
            "state": "none",
            "run": run_id,
            "known": [item[0] for item in known][-5:],
            "attempts": numbers_of(base, run_id),
            "noted": noted_of(base, run_id),
            # of a run whose directory is gone, or was never here
            "processes": processes.of_run(run_id),
            "stopped": bool(
                glob.glob(os.path.join(base, "runs", run_id, "attempt-*", "stop.json"))
            ),
        }
    node = node if any(item["name"] == node for item in plan["nodes"]) else record["node"]
    active = unit_state(run, record["unit"])
    ending, events = read_json(attempt, "exit.json"), read_events(attempt)
    ended = active not in attempt_dir.ACTIVE
    if not ended:
        state = "stopping" if active == "deactivating" else "running"
    elif ending is None:
        # the unit is gone and wrote no end: the node was restarted, or the user's manager was
        # killed
        state = "lost"
    elif ending.get("stopped_by") == "user":
        state = "stopped"
    else:
        finished = any(
            event.get("event") == "launcher_end" and event.get("exit_code") == 0 for event in events
        )
        state = (
            "completed"
            if ending.get("service_result") == "success"
            and finished
            and not ending.get("stopped_by")
            else "failed"
        )
    ranks, table = rank_states(attempt, plan, node, events), plan["suite"].get("logs") or {}
    step_table = table.get("step") or {}
    wrong = [
        event
        for event in events
        if event.get("event") == "start" and not event.get("endpoints_as_planned", True)
    ]
    found = {
        "found": True,
        "run": run_id,
        "attempt": number,
        "attempts": numbers_of(base, run_id),
        "noted": noted_of(base, run_id),
        "undone": (read_json(attempt, "stop.json") or {}).get("from") in attempt_dir.UNDONE,
        "node": node,
        "unit": record["unit"],
        "plan_sha256": hashlib.sha256(text).hexdigest(),
        "job": plan["job"]["name"],
        "state": state,
        "lost": how_lost(record, events) if state == "lost" else None,
        "by": record.get("by"),
        "ended": ended,
        "started": record["started"],
        "now": time.time(),
        "exit": ending,
        "ranks": ranks,
        "nodes": [item["name"] for item in plan["nodes"]],
        "endpoints": plan["endpoints"],
        "endpoints_as_planned": not wrong,
        "endpoints_reported": wrong[0].get("endpoints") if wrong else plan["endpoints"],
        "epochs": plan.get("epochs"),
        "first_step": step_table.get("first", {}),
        "unit_of_speed": step_table.get("unit", ""),
        # what the live view says besides: the size of the run, which ranks print, what decides an
        # evaluation, room for logs and checkpoints
        "accelerator": plan.get("accelerator"),
        "ranks_in_all": len(plan["ranks"]),
        "only_first_prints": step_table.get("ranks") == "first",
        "main_figure": (table.get("evaluation") or {}).get("main"),
        "disk": disk_of(attempt),
        "checkpoints": plan["suite"].get("checkpoints"),
        "guard": guarded(attempt),
        "console_tail": (
            console_tail(attempt, plan["launcher"]["console"])
            if state in ("failed", "lost")
            else []
        ),
    }
    # what a console repeats of the environment that the launcher began with is in no plan
    return printable_data(
        found,
        *secrets_of(plan, more=[written_down(attempt, plan)] if found["console_tail"] else []),
    )


def numbers_of(base, run_id):
    """Return the numbers of a run's attempts here, also of starts that were refused: none is used
    twice.
    """
    paths = glob.glob(os.path.join(glob.escape(base), "runs", run_id, "attempt-*"))
    return sorted(
        int(match.group(1))
        for match in (re.search(r"/attempt-([1-9][0-9]{0,5})\Z", path) for path in paths)
        if match
    )


def noted_of(base, run_id):
    """Return the numbers of a run's attempts that a person has stopped before they began here: a
    restart that waits is not to start.
    """
    places = {
        number: attempt_dir.attempt_dir(base, run_id, number) for number in numbers_of(base, run_id)
    }
    notes = {number: read_json(place, "stop.json") or {} for number, place in places.items()}
    return [
        number
        for number, place in places.items()
        if notes[number].get("by") == "user" and not os.path.exists(place + "/attempt.json")
    ]


def how_lost(record, events):
    """Return why an attempt whose unit is gone wrote no end. It holds nothing: only a unit that is
    active does.

    The boot mark tells a restart of the machine (or container) from an end of the user's systemd
    alone; attempts of an older Trainyard have none.
    """
    if record.get("boot") and record["boot"] != ownership.boot_mark():
        return "the node was restarted since it began"
    if not any(event.get("event") == "launched" for event in events):
        return "its start was cut off before anything of it ran"
    why = "the user's systemd was ended there, or what writes the end was killed"
    return why if record.get("boot") else "the node was restarted, or " + why


def guarded(attempt):
    """Return {phase, budget, quiet, stall, loss}: what the attempt's guard here last saw
    (guard.json), and what it ended the attempt for; None for each.
    """
    seen = read_json(attempt, "guard.json") or {}
    ended = guard_findings.found(lambda name: read_json(attempt, name))
    return dict(
        {key: seen.get(key) for key in ("phase", "budget", "quiet")},
        stall=ended["stall"],
        loss=ended["loss"],
    )


def written_down(attempt, plan):
    """Return the environment that Paddle's launcher wrote down in this attempt, {} where it did
    not.
    """
    try:
        root = os.open(attempt, DIRECTORY)
    except OSError:
        return {}
    try:
        return launcher_notes(root, plan["launcher"]["rank_log"].rpartition("/")[0])[1]
    finally:
        os.close(root)


def disk_of(path):
    """Return {free, total}: bytes of the file system of a path, as a user without privileges may
    use them (statvfs), or None.
    """
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return {"free": found.f_bavail * found.f_frsize, "total": found.f_blocks * found.f_frsize}


def console_tail(attempt, name, lines=5):
    """Return the launcher's last lines; the caller makes them safe to show."""
    try:
        text = read_in(attempt, name, CONSOLE_BYTES, end=True)
    except OSError:
        return []
    # a first line that was cut could begin in the middle of a secret
    whole = text.partition(b"\n")[2] if len(text) == CONSOLE_BYTES else text
    return whole.decode("utf-8", "replace").splitlines()[-lines:]
