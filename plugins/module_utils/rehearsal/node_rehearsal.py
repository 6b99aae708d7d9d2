# SPDX-License-Identifier: Apache-2.0
"""Node's side of a rehearsal: wait for its end, read its results, remove it.

A rehearsal without an end is ended. See outcome.py.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time

from ..attempts import attempt_dir, mesh_credential, status
from ..base import safe_open
from ..base.sanitize import printable, printable_data, secrets_of
from . import outcome, second_try

LOG_LINES = 12
LINE_CHARACTERS = 300
READ_BYTES = 1 << 20
POLL_SECONDS = 0.25
# The leftovers of a controller that was cut off are removed by a later rehearsal after this time,
# when no other can still be reading them.
OLD_SECONDS = 3600


def wait(run, unit, seconds, clock=time.monotonic, sleep=time.sleep):
    """Wait until the unit has ended.

    seconds: the longest time. Returns True if it has ended.
    """
    until = clock() + seconds
    while status.read_unit_state(run, unit) in attempt_dir.ACTIVE:
        if clock() >= until:
            return False
        sleep(POLL_SECONDS)
    return True


def text_of(path):
    """Return the end of a file as text, '' without the file."""
    try:
        with safe_open.open_file(path) as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - READ_BYTES))
            return handle.read(READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def tail(path, secrets):
    """Return a log's last lines, safe to show and bounded.

    secrets: what sanitize.secrets_of returns for the plan.
    """
    return [
        printable(line, *secrets, limit=LINE_CHARACTERS)
        for line in text_of(path).splitlines()[-LOG_LINES:]
    ]


def finite(text):
    """Return a number of JSON as float, or as the text 'nan', 'inf' or '-inf'.

    A wrong all-reduce gives those, and no answer can hold them.
    """
    value = float(text)
    if math.isfinite(value):
        return value
    return str(value)


def merged(text):
    """Return all lines of one rank as one mapping.

    `stage` is the last one. Returns None without a complete line.
    """
    result = {}
    for line in text.splitlines():
        try:
            value = json.loads(line, parse_float=finite, parse_constant=finite)
        except (ValueError, RecursionError):
            continue  # the rank was ended in the middle of it
        if isinstance(value, dict):
            result.update(value)
    if "rank" in result and "stage" in result:
        return result
    return None


def read(attempt, node):
    """Return the data of an attempt's directory.

    {ranks, transports, events, halted, console, logs}. Values are empty where it is not there.
    node: the name of this node.
    """
    folder = os.path.join(attempt, "work", outcome.FOLDER)
    ranks = [merged(text) for text in _texts_of(folder, ".jsonl")]
    ranks = sorted((rank for rank in ranks if rank), key=lambda rank: str(rank["rank"]))
    plan = status.read_json(attempt, "plan.json") or {
        "ranks": [],
        "launcher": {"console": "logs.txt"},
    }
    secrets = secrets_of(plan)
    return {
        "ranks": printable_data(ranks, *secrets),
        "transports": outcome.transports("\n".join(_texts_of(folder, ".nccl"))),
        "events": status.read_events(attempt),
        "halted": status.read_json(attempt, "stop.json") is not None,
        "console": tail(os.path.join(attempt, plan["launcher"]["console"]), secrets),
        "logs": {
            str(rank["rank"]): tail(os.path.join(attempt, rank["log"]), secrets)
            for rank in plan["ranks"]
            if rank["node"] == node
        },
    }


def _texts_of(folder, ending):
    """Return the texts of the files in a folder whose names end so.

    [] without the folder.
    """
    if not os.path.isdir(folder):
        return []
    names = sorted(name for name in os.listdir(folder) if name.endswith(ending))
    return [text_of(os.path.join(folder, name)) for name in names]


def remove(run, base, run_id, now):
    """Remove a rehearsal's directory.

    Those that earlier controllers could not remove go, too. Returns what is left of this rehearsal
    and why, or ''. now: seconds since the epoch.
    """
    active = {item["unit"] for item in attempt_dir.active_units(run)}
    for name, number in attempt_dir.list_rehearsals(base):
        path = attempt_dir.attempt_dir(base, name, number)
        old = now - os.lstat(path).st_mtime > OLD_SECONDS
        if name == run_id or (old and attempt_dir.unit_name(name, number) not in active):
            try:
                shutil.rmtree(path)
                if not os.listdir(os.path.dirname(path)):
                    os.rmdir(os.path.dirname(path))
            except OSError as error:
                if name == run_id:
                    return f"{error.filename}: {error.strerror}"
    return ""


def _wait_or_stop(run, path, run_id, seconds):
    """Wait for a rehearsal's end, or stop it after so many seconds.

    Returns whether it has ended.
    """
    unit = attempt_dir.unit_name(run_id, outcome.NUMBER)
    ended = wait(run, unit, seconds)
    if not ended:
        # `peer`: the other nodes have a bound of their own and need no message.
        attempt_dir.stop(run, path, unit, "peer", "the end of the rehearsal")
    return ended


def _try_without_peers(run, base, run_id, node, seconds):
    """Rehearse once more without traffic from GPU to GPU.

    Returns {hung, ranks} with number, stage and sum of each rank, or None where it cannot start.
    """
    path = attempt_dir.attempt_dir(base, run_id, outcome.NUMBER)
    try:
        prepared = second_try.prepare(path)
        if remove(run, base, run_id, time.time()):
            return None
        second_try.start(run, base, run_id, node, prepared)
    except (attempt_dir.AttemptError, OSError, ValueError):
        return None  # the hang is a finding as it is
    ended = _wait_or_stop(run, path, run_id, seconds)
    ranks = read(path, node)["ranks"]
    names = ("rank", "stage", "sum")
    return {
        "hung": not ended,
        "ranks": [{name: rank[name] for name in names if name in rank} for rank in ranks],
    }


def finish(run, base, run_id, node, seconds, refused, alone):
    """Wait for the rehearsal's end, read it, remove it.

    Returns the module's result. seconds: the bound. refused: why this node did not start, or ''.
    alone: True if another node did not start, so that there is nothing to wait for.
    """
    path = attempt_dir.attempt_dir(base, run_id, outcome.NUMBER)
    began = time.monotonic()
    if refused or alone:
        seconds = 0
    ended = _wait_or_stop(run, path, run_id, seconds)
    result = dict(
        read(path, node),
        refused=refused,
        hung=not ended and not (refused or alone),
        seconds=time.monotonic() - began,
        without_peers=None,
    )
    if result["hung"] and second_try.is_useful(status.read_json(path, "plan.json") or {}, result):
        result["without_peers"] = _try_without_peers(run, base, run_id, node, seconds)
    # The start that follows opens its own credential. After check.yml nothing does.
    mesh_credential.close(os.path.expanduser("~"), run_id, None, node)
    result["left"] = remove(run, base, run_id, time.time())
    return result
