# SPDX-License-Identifier: Apache-2.0
"""The history of a run in lines for people, from what its nodes returned."""

from __future__ import annotations

import collections
import re
import time
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_clock

# Node and its entry of one attempt.
Parts = list[tuple[str, dict[str, Any]]]
_FIGURE = re.compile(
    r"(?!line\Z|epoch\Z|step\Z|global_step\Z|samples\Z|fps\Z|best_epoch\Z|best_of\Z).*"
)


def describe_history(looks: list[Any], now: float | None = None) -> list[str]:
    """Return the history as lines for people.

    looks: results of the module run_history_info on the nodes that answered. now: unix seconds. An
    answer of another shape costs its node's part and nothing else.
    """
    if now is None:
        now = time.time()
    sound, refusals = [], []
    for answer in looks:
        try:
            _describe_run([answer], now)
            sound.append(answer)
        except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError):
            name = "a node"
            if isinstance(answer, dict):
                name = str(answer.get("node"))
            refusals.append(f"{name} gave a history that cannot be read")
    return [printable(line) for line in _describe_run(sound, now) + refusals]


def _describe_run(looks: list[Any], now: float) -> list[str]:
    """Return the lines about a run's attempts, the oldest first."""
    by_number = collections.defaultdict(list)
    for answer in looks:
        for attempt in answer["attempts"]:
            by_number[attempt["number"]].append((answer["node"], attempt))
    text: list[str] = []
    for _number, parts in sorted(by_number.items()):
        nodes = ", ".join(parts[0][1]["nodes"])
        text.append(f"{_describe_begin(parts, now)} on {nodes}: {describe_end(parts)}")
        log = _first_value(parts, "log")
        if log:
            text += ["  " + line for line in _describe_log(log, parts[0][1])]
    return text


def _first_value(parts: Parts, key: str) -> Any:
    """Return the first node's value of an attempt that is not empty, or None."""
    return next((part[key] for _node, part in parts if part[key]), None)


def _describe_begin(parts: Parts, now: float) -> str:
    """Return the words for an attempt's number and begin.

    parts: [(node, its attempt)].
    """
    text = f"attempt {parts[0][1]['number']:d}"
    starts = [part["started"] for _node, part in parts if isinstance(part["started"], (int, float))]
    start = min(starts, default=None)
    by = _first_value(parts, "by")
    resumed = _first_value(parts, "resumed")
    if start:
        date = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start))
        text += f", begun {format_clock(max(0, now - start))} ago ({date} UTC)"
    if by:
        text += f" by {by}"
    if resumed:
        text += f", resumed from {_describe_point(resumed)}"
    return text


def _describe_point(resumed: dict[str, Any]) -> str:
    """Return the words for a resume point."""
    name = resumed.get("name") or "a checkpoint"
    place = [f"{key} {resumed[key]}" for key in ("epoch", "step") if resumed.get(key) is not None]
    if not place:
        return str(name)
    return f"{name} ({', '.join(place)})"


def describe_end(parts: Parts) -> str:
    """Return the words for the state of an attempt on the nodes that were asked."""
    open_nodes = [node for node, part in parts if part["ended"] is None]
    if len(open_nodes) == len(parts):
        return "goes on"
    if open_nodes:
        return f"goes on or has written no end on {', '.join(open_nodes)}"
    if all(part["well"] for _node, part in parts):
        return "completed"
    for _node, part in parts:
        if part["stop"] and part["stop"]["by"] == "user":
            return f"stopped by {part['stop']['from'] or 'the user'}"
    failures = [
        f"rank {end['rank']} on {node} {end['signal'] or _describe_code(end)}"
        for node, part in parts
        for end in part["ends"]
        if end["signal"] or end["exit_code"]
    ]
    if not failures:
        return "failed"
    return f"failed: {', '.join(failures[:4])}"


def _describe_code(end: dict[str, Any]) -> str:
    """Return the words for an exit code."""
    return f"exit code {end['exit_code']}"


def _describe_log(log: dict[str, Any], part: dict[str, Any]) -> list[str]:
    """Return the lines about the attempt so far, from the first rank's log."""
    first = part["first"].get("epoch", 1)
    lines = [
        _describe_epoch(step, first, part["epochs"])
        for step in log["epochs"]
        if step and step.get("epoch") is not None
    ]
    lines += [_describe_evaluation(item, first) for item in log["evaluations"]]
    if log["saved"]:
        path = str(log["saved"][-1].get("path") or "without a name")
        lines.append(f"saved {log['saved_count']:d} times, last {path.rsplit('/', 1)[-1]}")
    if log["steps"]:
        lines.append(f"{log['steps']:d} step lines so far")
    return lines


def _describe_epoch(step: dict[str, Any], first: int, total: int | None) -> str:
    """Return the line about an epoch's last step.

    first: the number of the first epoch.
    """
    line = f"epoch {step['epoch'] + 1 - first}"
    if total:
        line += f"/{total}"
    line += " done"
    if isinstance(step.get("loss"), (int, float)):
        line += f", loss {step['loss']:.4g}"
    return line


def _describe_evaluation(evaluation: dict[str, Any], first: int) -> str:
    """Return the line about an evaluation.

    first: the number of the first epoch.
    """
    figures = []
    for key, value in evaluation.items():
        if _FIGURE.match(key):
            text = str(value)
            if isinstance(value, float):
                text = f"{value:.4g}"
            figures.append(f"{key} {text}")
    line = "evaluation"
    if isinstance(evaluation.get("epoch"), int):
        line += f" after epoch {evaluation['epoch'] + 1 - first}"
    return f"{line}: {', '.join(figures[:4]) or 'done'}"
