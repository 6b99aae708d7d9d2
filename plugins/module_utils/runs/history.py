# SPDX-License-Identifier: Apache-2.0
"""The history of a run, for a command that attaches to it again.

It holds the attempts, how each ended, epochs, evaluations and checkpoints. The nodes have it, so
that a controller that has seen nothing of the run can tell it. `look` runs on a node, `lines` is
pure.
"""

from __future__ import annotations

import collections
import os
import re
import time

from ..attempts import attempt_dir, status
from ..base.safe_open import open_in
from ..base.sanitize import printable, printable_data, secrets_of
from ..base.text_layout import span
from ..logs import parser

# The end of a log that is read; a training of weeks must not keep the view waiting.
MOST = 64 << 20
KEPT = 10
_FIGURE = re.compile(
    r"(?!line\Z|epoch\Z|step\Z|global_step\Z|samples\Z|fps\Z|best_epoch\Z|best_of\Z).*"
)


class Past(parser.LogScan):
    """The last evaluations and the ends of the last epochs, in one pass."""

    def __init__(self, table):
        super().__init__(table, digest=False, line_numbers=False)
        self.evaluations, self.epochs, self._epoch = [], [], None

    def _step(self, number, text, match):
        """Keep the last step of an epoch when the next one begins."""
        epoch = match.groupdict().get("epoch")
        if self._latest is not None and epoch != self._epoch:
            self.epochs = self.epochs[1 - KEPT :] + [self.last_step]
        self._epoch = epoch
        super()._step(number, text, match)

    def _evaluated(self, number, found):
        """Keep an evaluation when it begins."""
        current = self.evaluation
        super()._evaluated(number, found)
        if self.evaluation is not current:
            self.evaluations = self.evaluations[1 - KEPT :] + [self.evaluation]


def of_log(attempt, name, table, most=MOST):
    """Return the history that the end of a rank's log tells.

    It is {epochs, evaluations, saved, saved_count, steps, bytes}. epochs: each one's last step.
    most: the bytes that are read at most. None where the log cannot be read.
    """
    try:
        handle = os.fdopen(open_in(attempt, name), "rb")
    except OSError:
        return None
    with handle:
        size = os.fstat(handle.fileno()).st_size
        past = Past(table)
        left = min(size, most)
        handle.seek(size - left)
        if left < size:
            left -= len(handle.readline(parser.CHUNK))
        while left > 0:
            chunk = handle.read(min(parser.CHUNK, left))
            if not chunk:
                break
            left -= len(chunk)
            past.feed(chunk)
        findings = past.finish()
    return {
        "epochs": past.epochs,
        "evaluations": past.evaluations,
        "saved": findings["saved"][-1:],
        "saved_count": findings["saved_count"],
        "steps": findings["steps"],
        "bytes": size,
    }


def look(base, run_id, node):
    """Return {run, node, attempts} of a run on this node.

    Each attempt is as _describe_attempt returns it, the oldest first.
    """
    numbers = [number for name, number in attempt_dir.runs_on(base) if name == run_id]
    return {
        "run": run_id,
        "node": node,
        "attempts": [
            _describe_attempt(attempt_dir.attempt_dir(base, run_id, number), number, node)
            for number in numbers
        ],
    }


def _describe_attempt(attempt, number, node):
    """Return the history of an attempt on this node.

    It is {number, started, ended, well, by, stop, ends, resumed, nodes, epochs, first, log}.
    attempt: the attempt's directory. log: of the rank that prints, None where it is on another
    node.
    """
    plan = status.read_json(attempt, "plan.json") or {}
    record = status.read_json(attempt, "attempt.json") or {}
    end = status.read_json(attempt, "exit.json")
    stop = status.read_json(attempt, "stop.json") or {}
    tables = (plan.get("suite") or {}).get("logs") or {}
    log = _read_first_rank(attempt, plan, tables, node)
    events = status.read_events(attempt)
    ends = [event for event in events if event.get("event") == "end"]
    history = {
        "number": number,
        "started": record.get("started"),
        "ended": (end or {}).get("time"),
        "well": _ended_well(end, events),
        "by": record.get("by"),
        "stop": None,
        "ends": [_pick(event, ("rank", "exit_code", "signal")) for event in ends][:KEPT],
        "resumed": None,
        "nodes": [item["name"] for item in plan.get("nodes") or ()],
        "epochs": plan.get("epochs"),
        "first": (tables.get("step") or {}).get("first") or {},
        "log": log,
    }
    if stop:
        history["stop"] = _pick(stop, ("by", "from", "reason"))
    if isinstance(plan.get("resume"), dict):
        history["resumed"] = _pick(plan["resume"], ("epoch", "step", "name"))
    return printable_data(history, *secrets_of(plan))


def _pick(mapping, keys):
    """Return some entries of a mapping, None for those that it does not have."""
    return {key: mapping.get(key) for key in keys}


def _read_first_rank(attempt, plan, tables, node):
    """Return what the log of rank 0 says, None where it is on another node."""
    ranks = [rank for rank in plan.get("ranks") or () if rank.get("node") == node]
    if not ranks or ranks[0]["rank"] != 0:
        return None
    name = ranks[0].get("log") or plan["launcher"]["rank_log"].format(**ranks[0])
    return of_log(attempt, name, parser.Table(tables))


def _ended_well(end, events):
    """Return whether an attempt completed on a node.

    end: its exit.json, None for none.
    """
    launcher_ended_well = any(
        event.get("event") == "launcher_end" and event.get("exit_code") == 0 for event in events
    )
    return (
        end is not None
        and end.get("service_result") == "success"
        and launcher_ended_well
        and not end.get("stopped_by")
    )


def lines(looks, now=None):
    """Return the history as lines for people.

    looks: what `look` returned on each node that answered. now: unix seconds. An answer of another
    shape costs its node's part and nothing else.
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
                name = answer.get("node")
            refusals.append(f"{name} gave a history that cannot be read")
    return [printable(line) for line in _describe_run(sound, now) + refusals]


def _describe_run(looks, now):
    """Return the lines about a run's attempts, the oldest first."""
    by_number = collections.defaultdict(list)
    for answer in looks:
        for attempt in answer["attempts"]:
            by_number[attempt["number"]].append((answer["node"], attempt))
    text = []
    for _number, parts in sorted(by_number.items()):
        nodes = ", ".join(parts[0][1]["nodes"])
        text.append(f"{_describe_begin(parts, now)} on {nodes}: {_describe_end(parts)}")
        log = _first_value(parts, "log")
        if log:
            text += ["  " + line for line in _describe_log(log, parts[0][1])]
    return text


def _first_value(parts, key):
    """Return the first node's value of an attempt that is not empty, or None."""
    return next((part[key] for _node, part in parts if part[key]), None)


def _describe_begin(parts, now):
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
        text += f", begun {span(max(0, now - start))} ago ({date} UTC)"
    if by:
        text += f" by {by}"
    if resumed:
        text += f", resumed from {_describe_point(resumed)}"
    return text


def _describe_point(resumed):
    """Return the words for a resume point."""
    name = resumed.get("name") or "a checkpoint"
    place = [f"{key} {resumed[key]}" for key in ("epoch", "step") if resumed.get(key) is not None]
    if not place:
        return str(name)
    return f"{name} ({', '.join(place)})"


def _describe_end(parts):
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


def _describe_code(end):
    """Return the words for an exit code."""
    return f"exit code {end['exit_code']}"


def _describe_log(log, part):
    """Return the lines that the first rank's log tells of the attempt so far."""
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


def _describe_epoch(step, first, total):
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


def _describe_evaluation(evaluation, first):
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
