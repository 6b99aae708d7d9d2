# SPDX-License-Identifier: Apache-2.0
"""State of an attempt on one node: unit, ranks and latest training step.

The module only reads. It is cheap enough to be called every few seconds.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import time
import typing

from ..base import processes
from ..base.safe_open import DIRECTORY, open_in, read_in
from ..base.sanitize import printable_data, secrets_of
from ..logs import parser
from . import (
    attempt_dir,
    guard_findings,
    ownership,
)
from .evidence import read_launcher_log
from .states import AttemptState, RankState

MAX_EVENTS = 4 << 20
MAX_JSON = 64 << 20
CONSOLE_BYTES = 8192
AWAIT_SECONDS = 0.1  # between two looks for an attempt's end
_Json = typing.Dict[str, typing.Any]


class RankStatus(typing.TypedDict):
    """The status of one rank. An unknown value is None."""

    rank: int
    local_rank: int
    pid: int | None
    state: str  # of RankState
    exit_code: int | None
    signal: str | None
    step: _Json | None  # the log's latest step record
    evaluation: _Json | None
    nan: _Json | None  # the first step in the log's end whose loss is not a number
    log_bytes: int
    log_time: float | None  # the log's last change, unix seconds of the node
    fraction: float | None  # of the training that is done


class _FoundOrNot(typing.TypedDict):
    found: bool
    ended: bool
    state: str  # of AttemptState


class AbsentStatus(_FoundOrNot, total=False):
    """The status of a run that this node does not have."""

    run: str
    known: list[str]  # ids of the runs that this node has, the oldest first
    attempts: list[int]
    begun: list[int]  # those of them that were started here
    noted: list[int]  # attempts that a person stopped before they began here
    processes: list[int]  # pids that bear the run's mark
    stopped: bool


class AttemptStatus(_FoundOrNot):
    """The status of an attempt on this node. Times are unix seconds of the node."""

    run: str
    attempt: int
    attempts: list[int]
    begun: list[int]  # those of them that were started here
    noted: list[int]  # attempts that a person stopped before they began here
    undone: bool  # whether a failed start took it back
    node: str
    unit: str
    plan_sha256: str
    lost: str | None  # why it wrote no end (LOST only)
    by: str | None  # user@controller of the start
    started: float
    now: float
    exit: _Json | None  # exit.json
    ranks: list[RankStatus]
    disk: dict[str, int] | None
    guard: _Json
    replica: _Json | None  # {name, epoch, step, copied, problem} where this node keeps one
    console_tail: list[str]
    job: str
    nodes: list[str]
    endpoints: list[str]
    endpoints_as_planned: bool
    endpoints_reported: list[str] | None
    epochs: int | None
    first_step: _Json
    unit_of_speed: str
    accelerator: str | None
    ranks_in_all: int
    only_first_prints: bool
    main_figure: str | None
    checkpoints: _Json | None


def read_events(attempt):
    """Return the events of ranks.jsonl, without a line that is not whole yet.

    Such a line is left for the next call. A file that cannot be read gives [].
    """
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
        if _is_event(event):
            events.append(event)
    return events


def _is_event(value):
    """Return whether a line of ranks.jsonl is an event.

    A training can write the file, so rank and pid may be anything.
    """
    return isinstance(value, dict) and all(
        value.get(key) is None or type(value[key]) is int for key in ("rank", "pid")
    )


def read_bytes(attempt, name):
    """Return the content of a file of the attempt's directory, or None."""
    try:
        return read_in(attempt, name, MAX_JSON)
    except OSError:
        return None


def read_json(attempt, name):
    """Return the mapping in a JSON file of the attempt's directory, or None."""
    return parse_mapping(read_bytes(attempt, name))


def parse_mapping(data):
    """Return the mapping that some bytes hold as JSON, or None."""
    if data is None:
        return None
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value


def read_unit_state(run_command, unit):
    """Return ActiveState of a unit, 'inactive' also where systemd has forgotten it."""
    _code, out, _err = run_command(
        ["systemctl", "--user", "show", "--property=ActiveState", "--value", unit]
    )
    return out.strip() or "inactive"


def rank_states(attempt, plan, node, events):
    """Return the RankStatus of each of this node's ranks."""
    table = parser.Table(plan["suite"].get("logs"))
    starts = {event.get("rank"): event for event in events if event.get("event") == "start"}
    ends = {event.get("rank"): event for event in events if event.get("event") == "end"}
    finished = _launcher_succeeded(events)
    states = []
    for entry in plan["ranks"]:
        if entry["node"] != node:
            continue
        start, end = starts.get(entry["rank"], {}), ends.get(entry["rank"], {})
        tail = _read_log_tail(attempt, plan, entry, table)
        step = tail.get("last_step")
        states.append(
            {
                "rank": entry["rank"],
                "local_rank": entry["local_rank"],
                "pid": start.get("pid"),
                "state": _rank_state(plan, entry, start, end, step, finished).value,
                "exit_code": end.get("exit_code"),
                "signal": end.get("signal"),
                "step": step,
                "evaluation": tail.get("evaluation"),
                "nan": tail.get("nan"),
                "log_bytes": tail.get("bytes", 0),
                "log_time": tail.get("mtime"),
                "fraction": parser.fraction(step, plan["suite"].get("logs"), plan.get("epochs")),
            }
        )
    return states


def _launcher_succeeded(events):
    return any(
        event.get("event") == "launcher_end" and event.get("exit_code") == 0 for event in events
    )


def _read_log_tail(attempt, plan, entry, table):
    """Return the findings in the end of a rank's log, {} where it cannot be read."""
    path = entry.get("log") or plan["launcher"]["rank_log"].format(**entry)
    try:
        with os.fdopen(open_in(attempt, path), "rb") as handle:
            return parser.tail_status(handle.fileno(), table)
    except OSError:
        return {}


def _rank_state(plan, entry, start, end, step, finished):
    """Return the RankState of one rank.

    start, end: its events, {} without one. step: its latest step record or None. finished:
    the launcher ended with exit code 0.
    """
    if end:
        return _ended_rank_state(end, finished)
    if not start:
        return RankState.WAITING
    if step:
        return RankState.TRAINING
    # A suite that prints steps on its first rank only leaves the others' phase unknown.
    if _step_table(plan).get("ranks") == "first" and entry["rank"] > 0:
        return RankState.RUNNING
    return RankState.STARTING


def _ended_rank_state(end, finished):
    if end.get("exit_code") == 0:
        return RankState.DONE
    if end.get("exit_code") is not None or end.get("signal"):
        return RankState.FAILED
    # msrun collects its ranks before their exit status can be read. Where msrun itself ended well,
    # they did.
    if finished:
        return RankState.DONE
    return RankState.ENDED


def _step_table(plan):
    return (plan["suite"].get("logs") or {}).get("step") or {}


def read_status(run_command, base, run_id, number, node, unit_state=read_unit_state):
    """Return the AttemptStatus or AbsentStatus on this node, see library/attempt_monitor.py.

    An empty run_id means the run that holds the node, else the newest. A number of 0 means the
    run's latest attempt. unit_state: called as read_unit_state.
    """
    known = attempt_dir.list_attempts(base)
    if not run_id:
        candidates = _active_attempts(run_command) or known
        if not candidates:
            return AbsentStatus(found=False, ended=True, state=AttemptState.NONE.value, known=[])
        run_id, number = candidates[-1]
    if not number:
        number = max([item[1] for item in known if item[0] == run_id] or [1])
    attempt = attempt_dir.attempt_dir(base, run_id, number)
    plan_bytes = read_bytes(attempt, "plan.json")
    plan, record = parse_mapping(plan_bytes), read_json(attempt, "attempt.json")
    if not plan or not record:
        return _absent_run(base, run_id, known)
    if not any(item["name"] == node for item in plan["nodes"]):
        node = record["node"]
    unit_active = unit_state(run_command, record["unit"])
    ending, events = read_json(attempt, "exit.json"), read_events(attempt)
    state = _attempt_state(unit_active, ending, events)
    answer = {
        "found": True,
        "run": run_id,
        "attempt": number,
        **_numbers(base, run_id, known),
        "undone": (read_json(attempt, "stop.json") or {}).get("from") in attempt_dir.UNDONE,
        "node": node,
        "unit": record["unit"],
        "plan_sha256": hashlib.sha256(plan_bytes).hexdigest(),
        "state": state.value,
        "lost": None,
        "by": record.get("by"),
        "ended": unit_active not in attempt_dir.ACTIVE,
        "started": record["started"],
        "now": time.time(),
        "exit": ending,
        "ranks": rank_states(attempt, plan, node, events),
        "disk": disk_space(attempt),
        "guard": read_guard_state(attempt),
        "replica": read_replica(attempt),
        "console_tail": [],
    }
    answer.update(_planned_facts(plan))
    answer.update(_reported_endpoints(plan, events))
    if state == AttemptState.LOST:
        answer["lost"] = describe_loss(record, events)
    if state in (AttemptState.FAILED, AttemptState.LOST):
        answer["console_tail"] = console_tail(attempt, plan["launcher"]["console"])
    environments = []
    if answer["console_tail"]:
        # A console may repeat the environment that the launcher began with. It is in no plan.
        environments.append(launcher_environment(attempt, plan))
    return printable_data(answer, *secrets_of(plan, more=environments))


def await_end(run_command, base, run_id, number, node, seconds, unit_state=read_unit_state):
    """Return read_status once the attempt has ended, after so many seconds at the latest.

    Until the end is recorded (exit.json) one file is looked for, which costs the training nothing.
    """
    deadline = time.monotonic() + seconds
    recorded = os.path.join(attempt_dir.attempt_dir(base, run_id, number), "exit.json")
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or os.path.exists(recorded):
            found = read_status(run_command, base, run_id, number, node, unit_state)
            if found["ended"] or left <= 0:
                return found
        time.sleep(min(AWAIT_SECONDS, max(0.0, left)))


def _active_attempts(run_command):
    """Return [(run id, attempt)] that hold the node now, without rehearsals (attempt 0)."""
    units = [attempt_dir.parse_unit(item["unit"]) for item in attempt_dir.active_units(run_command)]
    return [pair for pair in units if pair[1]]


def _absent_run(base, run_id, known):
    """Return the answer for a run whose directory is gone, or was never on this node."""
    stops = glob.glob(os.path.join(base, "runs", run_id, "attempt-*", "stop.json"))
    return {
        "found": False,
        "ended": True,
        "state": AttemptState.NONE.value,
        "run": run_id,
        "known": [item[0] for item in known][-5:],
        **_numbers(base, run_id, known),
        "processes": processes.of_run(run_id),
        "stopped": bool(stops),
    }


def _attempt_state(unit_active, ending, events):
    """Return the AttemptState on this node.

    unit_active: the unit's
    ActiveState. ending: exit.json or None.
    """
    if unit_active == "deactivating":
        return AttemptState.STOPPING
    if unit_active in attempt_dir.ACTIVE:
        return AttemptState.RUNNING
    if ending is None:
        # The unit is gone and wrote no end: the node was restarted, or the user's manager was
        # killed.
        return AttemptState.LOST
    if ending.get("stopped_by") == "user":
        return AttemptState.STOPPED
    succeeded = ending.get("service_result") == "success" and _launcher_succeeded(events)
    if succeeded and not ending.get("stopped_by"):
        return AttemptState.COMPLETED
    return AttemptState.FAILED


def _planned_facts(plan):
    """Return the part of the answer that the plan alone decides.

    For the live view it has the size of the run, the ranks that print, the figure that decides an
    evaluation and the settings of checkpoints.
    """
    table, step_table = plan["suite"].get("logs") or {}, _step_table(plan)
    return {
        "job": plan["job"]["name"],
        "nodes": [item["name"] for item in plan["nodes"]],
        "endpoints": plan["endpoints"],
        "epochs": plan.get("epochs"),
        "first_step": step_table.get("first", {}),
        "unit_of_speed": step_table.get("unit", ""),
        "accelerator": plan.get("accelerator"),
        "ranks_in_all": len(plan["ranks"]),
        "only_first_prints": step_table.get("ranks") == "first",
        "main_figure": (table.get("evaluation") or {}).get("main"),
        "checkpoints": plan["suite"].get("checkpoints"),
    }


def _reported_endpoints(plan, events):
    """Return {endpoints_as_planned, endpoints_reported} from the ranks' start events."""
    for event in events:
        if event.get("event") == "start" and not event.get("endpoints_as_planned", True):
            return {"endpoints_as_planned": False, "endpoints_reported": event.get("endpoints")}
    return {"endpoints_as_planned": True, "endpoints_reported": plan["endpoints"]}


def _numbers(base, run_id, known):
    """Return which attempts of a run this node has. known: attempt_dir.list_attempts."""
    return {
        "attempts": attempt_numbers(base, run_id),
        "begun": [number for run, number in known if run == run_id],
        "noted": early_stops(base, run_id),
    }


def attempt_numbers(base, run_id):
    """Return the numbers of a run's attempts on this node, sorted.

    Starts that were refused count as well, because no number is used twice.
    """
    paths = glob.glob(os.path.join(glob.escape(base), "runs", run_id, "attempt-*"))
    matches = (re.search(r"/attempt-([1-9][0-9]{0,5})\Z", path) for path in paths)
    return sorted(int(match.group(1)) for match in matches if match)


def early_stops(base, run_id):
    """Return the numbers of attempts that a person stopped before they began here.

    A restart that waits must not start after such a note.
    """
    numbers = []
    for number in attempt_numbers(base, run_id):
        attempt = attempt_dir.attempt_dir(base, run_id, number)
        note = read_json(attempt, "stop.json") or {}
        if note.get("by") == "user" and not os.path.exists(attempt + "/attempt.json"):
            numbers.append(number)
    return numbers


def describe_loss(record, events):
    """Return the reason why an attempt whose unit is gone wrote no end.

    Such an attempt does not hold the node: only an active unit does. The boot mark distinguishes a
    restart of the machine (or container) from an end of the user's systemd alone. Attempts of an
    older Trainyard have none.
    """
    if record.get("boot") and record["boot"] != ownership.boot_mark():
        return "the node was restarted since it began"
    if not any(event.get("event") == "launched" for event in events):
        return "its start was cut off before anything of it ran"
    reason = "the user's systemd was ended there, or what writes the end was killed"
    if record.get("boot"):
        return reason
    return "the node was restarted, or " + reason


def read_guard_state(attempt):
    """Return {phase, budget, quiet, stall, loss} of the attempt's guard.

    phase, budget, quiet: its latest observation (guard.json). stall, loss: the reason why it ended
    the attempt. An unknown value is missing (None).
    """
    observation = read_json(attempt, "guard.json") or {}
    answer = {key: observation.get(key) for key in ("phase", "budget", "quiet")}
    findings = guard_findings.read_findings(lambda name: read_json(attempt, name))
    answer.update(stall=findings["stall"], loss=findings["loss"])
    return answer


def read_replica(attempt):
    """Return {name, epoch, step, copied, problem} of the replica that this node keeps, or None.

    An unknown value is None. The training can write the file.
    """
    state = read_json(attempt, "replica.json")
    if not state:
        return None
    types = {"name": str, "epoch": int, "step": int, "copied": float, "problem": str}
    return {
        key: state[key] if type(state.get(key)) is kind else None for key, kind in types.items()
    }


def launcher_environment(attempt, plan):
    """Return the environment that Paddle's launcher logged in this attempt, else {}."""
    try:
        root = os.open(attempt, DIRECTORY)
    except OSError:
        return {}
    try:
        return read_launcher_log(root, plan["launcher"]["rank_log"].rpartition("/")[0])[1]
    finally:
        os.close(root)


def disk_space(path):
    """Return {free, total} of a path's file system in bytes, or None.

    free: as a user without privileges may use it (statvfs).
    """
    try:
        stats = os.statvfs(path)
    except OSError:
        return None
    return {"free": stats.f_bavail * stats.f_frsize, "total": stats.f_blocks * stats.f_frsize}


def console_tail(attempt, name, lines=5):
    """Return the launcher's last lines, which the caller makes safe to show."""
    try:
        text = read_in(attempt, name, CONSOLE_BYTES, end=True)
    except OSError:
        return []
    if len(text) == CONSOLE_BYTES:
        # A first line that was cut could begin in the middle of a secret.
        text = text.partition(b"\n")[2]
    return text.decode("utf-8", "replace").splitlines()[-lines:]
