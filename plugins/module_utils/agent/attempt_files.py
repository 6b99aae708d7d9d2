# SPDX-License-Identifier: Apache-2.0
"""Files of an attempt's directory, as the agent and the guard read and write them.

The training can write there. So a file may be missing, a pipe, or any JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os

# The archive with this program, in the attempt's directory.
ARCHIVE = "agent.pyz"


def open_nonblocking(path, flags):
    """Open a file without waiting.

    The training may have left a pipe in its place that no process writes into.
    """
    return os.open(path, flags | os.O_NONBLOCK)


def parse_json(text):
    """Return the value of a JSON text.

    Raises ValueError where it is not JSON, or is nested deeper than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_json(*path):
    """Return the value in a JSON file, or raise OSError or ValueError."""
    with open(os.path.join(*path), encoding="utf-8", opener=open_nonblocking) as handle:
        return parse_json(handle.read())


def read_plan(attempt):
    """Return (plan, record) of an attempt, where record is attempt.json.

    Raises ValueError where the plan's bytes are not those that were planned.
    """
    record = read_json(attempt, "attempt.json")
    with open(os.path.join(attempt, "plan.json"), "rb", opener=open_nonblocking) as handle:
        raw = handle.read()
    digest = hashlib.sha256(raw).hexdigest()
    if digest != record["plan_sha256"]:
        raise ValueError(f"plan.json has sha256 {digest}, planned was {record['plan_sha256']}")
    return parse_json(raw), record


def planned_node(plan, node):
    """Return the plan's entry of a node."""
    return next(item for item in plan["nodes"] if item["name"] == node)


def planned_ranks(plan, node):
    """Return the plan's entries of a node's ranks."""
    return [item for item in plan["ranks"] if item["node"] == node]


def append_event(attempt, value):
    """Append one event to ranks.jsonl."""
    with open(os.path.join(attempt, "ranks.jsonl"), "a", encoding="utf-8") as handle:
        handle.write(json.dumps(value) + "\n")


def read_events(attempt):
    """Return the events of ranks.jsonl, [] where they cannot be read.

    A line that is torn (a full disk) does not affect the others.
    """
    events = []
    path = os.path.join(attempt, "ranks.jsonl")
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_nonblocking) as handle:
            for line in handle:
                try:
                    events.append(parse_json(line))
                except ValueError:
                    continue
    except OSError:
        pass
    return [event for event in events if is_event(event)]


def is_event(value):
    """Return whether a line of ranks.jsonl is an event.

    A training can write the file, so rank and pid may be anything.
    """
    return isinstance(value, dict) and all(
        value.get(key) is None or type(value[key]) is int for key in ("rank", "pid")
    )


def launcher_succeeded(attempt):
    """Return whether the launcher ended with exit code 0.

    A unit that was stopped from outside has the result 'success' as well.
    """
    return any(
        event.get("event") == "launcher_end" and event.get("exit_code") == 0
        for event in read_events(attempt)
    )


def failed_ranks(attempt):
    """Return the ends of ranks with an exit code other than 0 or a signal."""
    return [
        event
        for event in read_events(attempt)
        if event.get("event") == "end" and (event.get("exit_code") or event.get("signal"))
    ]


def read_mapping(attempt, name):
    """Return the mapping in a JSON file of the attempt's directory, else {}."""
    try:
        value = read_json(attempt, name)
    except (OSError, ValueError):
        return {}
    if not isinstance(value, dict):
        return {}
    return value


def read_stop(attempt):
    """Return stop.json, which names the origin of this attempt's stop, else {}."""
    return read_mapping(attempt, "stop.json")


def write_json(attempt, name, value):
    """Write a JSON file of the attempt's directory in one step."""
    path = os.path.join(attempt, name)
    part = f"{path}.{os.getpid()}.part"  # several peers may stop this node at once
    try:
        with open(part, "w", encoding="utf-8") as handle:
            json.dump(value, handle, sort_keys=True)
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise


def write_if_possible(attempt, name, value):
    """Write as `write_json` does, but go on without the file on a full disk.

    Peers and units are stopped all the same.
    """
    try:
        write_json(attempt, name, value)
    except OSError as error:
        print_if_possible(f"trainyard: {name} cannot be written: {error.strerror}")


def print_if_possible(text):
    """Print to the console, which may lie on a full disk."""
    with contextlib.suppress(OSError):
        print(text, flush=True)
