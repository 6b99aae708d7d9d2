# SPDX-License-Identifier: Apache-2.0
"""The history of a run, for a command that attaches to it again.

It holds the attempts, how each ended, epochs, evaluations and checkpoints. The nodes have it, so
that a controller that has seen nothing of the run can show it.
"""

from __future__ import annotations

import os

from ..attempts import attempt_dir, status
from ..base.safe_open import open_in
from ..base.sanitize import printable_data, secrets_of
from ..logs import parser

# The end of a log that is read; a training of weeks must not keep the view waiting.
MOST = 64 << 20
KEPT = 10


class HistoryScan(parser.LogScan):
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


def read_log_history(attempt, name, table, most=MOST):
    """Return the history in the end of a rank's log.

    It is {epochs, evaluations, saved, saved_count, steps, bytes}. epochs: each one's last step.
    most: the bytes that are read at most. None where the log cannot be read.
    """
    try:
        handle = os.fdopen(open_in(attempt, name), "rb")
    except OSError:
        return None
    with handle:
        size = os.fstat(handle.fileno()).st_size
        past = HistoryScan(table)
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


def read_history(base, run_id, node):
    """Return {run, node, attempts} of a run on this node.

    Each attempt is as _describe_attempt returns it, the oldest first.
    """
    numbers = [number for name, number in attempt_dir.list_attempts(base) if name == run_id]
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
    return read_log_history(attempt, name, parser.Table(tables))


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
