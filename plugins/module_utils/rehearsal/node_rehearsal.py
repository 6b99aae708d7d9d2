# SPDX-License-Identifier: Apache-2.0
"""The node's side of a rehearsal: wait for its end, end it where it has none, read what the ranks
said, and remove it. See rehearsal.py.
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
from . import outcome

LOG_LINES = 12
LINE_CHARACTERS = 300
READ_BYTES = 1 << 20
POLL_SECONDS = 0.25
# What a controller that was cut off has left is removed by a later rehearsal, when no other can
# still be reading it.
OLD_SECONDS = 3600


def wait(run, unit, seconds, clock=time.monotonic, sleep=time.sleep):
    """Wait until the unit has ended, but no longer than so many seconds; return whether it has."""
    until = clock() + seconds
    while status.unit_state(run, unit) in attempt_dir.ACTIVE:
        if clock() >= until:
            return False
        sleep(POLL_SECONDS)
    return True


def text_of(path):
    """Return the end of a file as text, '' where there is none."""
    try:
        with safe_open.open_file(path) as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - READ_BYTES))
            return handle.read(READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def tail(path, secrets):
    """Return a log's last lines, safe to show and bounded; secrets: display.Secrets of the plan."""
    return [
        printable(line, *secrets, limit=LINE_CHARACTERS)
        for line in text_of(path).splitlines()[-LOG_LINES:]
    ]


def finite(text):
    """Return a number of JSON as float, or as the text 'nan', 'inf' or '-inf': a wrong all-reduce
    gives those, and no answer can hold them.
    """
    value = float(text)
    return value if math.isfinite(value) else str(value)


def merged(text):
    """Return what one rank said in all its lines as one mapping; `stage` is the last; None where it
    said nothing that is whole.
    """
    result = {}
    for line in text.splitlines():
        try:
            value = json.loads(line, parse_float=finite, parse_constant=finite)
        except (ValueError, RecursionError):
            continue  # the rank was ended in the middle of it
        if isinstance(value, dict):
            result.update(value)
    return result if "rank" in result and "stage" in result else None


def read(attempt, node):
    """Return {ranks, transports, events, exit, console, logs} of an attempt's directory; empty
    values where it is not there.
    """
    folder = os.path.join(attempt, "work", outcome.FOLDER)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    ranks = [
        item
        for item in (
            merged(text_of(os.path.join(folder, name))) for name in names if name.endswith(".jsonl")
        )
        if item
    ]
    plan = status.read_json(attempt, "plan.json") or {
        "ranks": [],
        "launcher": {"console": "logs.txt"},
    }
    secrets = secrets_of(plan)
    return {
        "ranks": printable_data(sorted(ranks, key=lambda item: str(item["rank"])), *secrets),
        "transports": outcome.transports(
            "\n".join(
                text_of(os.path.join(folder, name)) for name in names if name.endswith(".nccl")
            )
        ),
        "events": status.read_events(attempt),
        "halted": status.read_json(attempt, "stop.json") is not None,
        "console": tail(os.path.join(attempt, plan["launcher"]["console"]), secrets),
        "logs": {
            str(item["rank"]): tail(os.path.join(attempt, item["log"]), secrets)
            for item in plan["ranks"]
            if item["node"] == node
        },
    }


def remove(run, base, run_id, now):
    """Remove a rehearsal's directory, and those that earlier controllers could not remove; return
    what is left of it and why, or ''.
    """
    held = {item["unit"] for item in attempt_dir.active_units(run)}
    for name, number in attempt_dir.rehearsals_on(base):
        place = attempt_dir.attempt_dir(base, name, number)
        old = now - os.lstat(place).st_mtime > OLD_SECONDS
        if name == run_id or (old and attempt_dir.unit_name(name, number) not in held):
            try:
                shutil.rmtree(place)
                if not os.listdir(os.path.dirname(place)):
                    os.rmdir(os.path.dirname(place))
            except OSError as error:
                if name == run_id:
                    return f"{error.filename}: {error.strerror}"
    return ""


def finish(run, base, run_id, node, seconds, refused, alone):
    """Wait, read, remove; return the module's result.

    refused: why this node did not start, or ''. alone: whether another node did not, so that there
    is nothing to wait for.
    """
    unit, place = (
        attempt_dir.unit_name(run_id, outcome.NUMBER),
        attempt_dir.attempt_dir(base, run_id, outcome.NUMBER),
    )
    began = time.monotonic()
    ended = wait(run, unit, 0 if refused or alone else seconds)
    if not ended:
        # `peer`: the others have a bound of their own and need not be told.
        attempt_dir.stop(run, place, unit, "peer", "the end of the rehearsal")
    result = dict(
        read(place, node),
        refused=refused,
        hung=not ended and not (refused or alone),
        seconds=time.monotonic() - began,
    )
    # The start that follows opens its own; after check.yml none does.
    mesh_credential.close(os.path.expanduser("~"), run_id, None, node)
    result["left"] = remove(run, base, run_id, time.time())
    return result
