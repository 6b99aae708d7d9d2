# SPDX-License-Identifier: Apache-2.0
"""What has happened of a run so far, for whoever attaches to it again: its attempts, how each
ended, epochs, evaluations and checkpoints.

The nodes have it, so that a controller that has seen nothing of the run can tell it. `look` runs on
a node, `lines` is pure.
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
        epoch, before = match.groupdict().get("epoch"), self._latest
        if before is not None and epoch != self._epoch:
            self.epochs = self.epochs[1 - KEPT :] + [self.last_step]
        self._epoch = epoch
        super()._step(number, text, match)

    def _evaluated(self, number, found):
        current = self.evaluation
        super()._evaluated(number, found)
        if self.evaluation is not current:
            self.evaluations = self.evaluations[1 - KEPT :] + [self.evaluation]


def of_log(attempt, name, table, most=MOST):
    """Return {epochs, evaluations, saved, saved_count, steps, bytes} of the end of a rank's log;
    None where it cannot be read. epochs: each one's last step.
    """
    try:
        handle = os.fdopen(open_in(attempt, name), "rb")
    except OSError:
        return None
    with handle:
        size = os.fstat(handle.fileno()).st_size
        left, found = min(size, most), Past(table)
        handle.seek(size - left)
        if left < size:
            left -= len(handle.readline(parser.CHUNK))
        while left > 0:
            chunk = handle.read(min(parser.CHUNK, left))
            if not chunk:
                break
            left -= len(chunk)
            found.feed(chunk)
        said = found.finish()
    return {
        "epochs": found.epochs,
        "evaluations": found.evaluations,
        "saved": said["saved"][-1:],
        "saved_count": said["saved_count"],
        "steps": said["steps"],
        "bytes": size,
    }


def look(base, run_id, node):
    """Return {run, node, attempts} of a run on this node, each attempt as _of_attempt has it, the
    oldest first.
    """
    numbers = [number for name, number in attempt_dir.runs_on(base) if name == run_id]
    return {
        "run": run_id,
        "node": node,
        "attempts": [
            _of_attempt(attempt_dir.attempt_dir(base, run_id, number), number, node)
            for number in numbers
        ],
    }


def _of_attempt(attempt, number, node):
    """Return {number, started, ended, by, stop, resumed, nodes, log, unit_of_speed, epochs, first}
    of one attempt; log: of the rank that prints.
    """
    plan, record = (
        status.read_json(attempt, "plan.json") or {},
        status.read_json(attempt, "attempt.json") or {},
    )
    ending, stop = (
        status.read_json(attempt, "exit.json"),
        status.read_json(attempt, "stop.json") or {},
    )
    ranks = [rank for rank in plan.get("ranks") or () if rank.get("node") == node]
    tables, log = (plan.get("suite") or {}).get("logs") or {}, None
    if ranks and ranks[0]["rank"] == 0:
        name = ranks[0].get("log") or plan["launcher"]["rank_log"].format(**ranks[0])
        log = of_log(attempt, name, parser.Table(tables))
    events = status.read_events(attempt)
    finished = any(
        event.get("event") == "launcher_end" and event.get("exit_code") == 0 for event in events
    )
    well = (
        ending is not None
        and ending.get("service_result") == "success"
        and finished
        and not ending.get("stopped_by")
    )
    found = {
        "number": number,
        "started": record.get("started"),
        "ended": (ending or {}).get("time"),
        "well": well,
        "by": record.get("by"),
        "stop": {key: stop.get(key) for key in ("by", "from", "reason")} if stop else None,
        "ends": [
            {key: event.get(key) for key in ("rank", "exit_code", "signal")}
            for event in events
            if event.get("event") == "end"
        ][:KEPT],
        "resumed": (
            {key: plan["resume"].get(key) for key in ("epoch", "step", "name")}
            if isinstance(plan.get("resume"), dict)
            else None
        ),
        "nodes": [item["name"] for item in plan.get("nodes") or ()],
        "epochs": plan.get("epochs"),
        "first": (tables.get("step") or {}).get("first") or {},
        "log": log,
    }
    return printable_data(found, *secrets_of(plan))


def lines(looks, now=None):
    """Return the history as lines for people. looks: what `look` returned on each node that
    answered. now: unix seconds.

    An answer of another shape costs its node's part and nothing else.
    """
    now = time.time() if now is None else now
    sound, wrong = [], []
    for one in looks:
        try:
            _lines([one], now)
            sound.append(one)
        except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError):
            wrong.append(
                "%s gave a history that cannot be read"
                % (one.get("node") if isinstance(one, dict) else "a node")
            )
    return [printable(line) for line in _lines(sound, now) + wrong]


def _lines(looks, now):
    by_number = collections.defaultdict(list)
    for one in looks:
        for attempt in one["attempts"]:
            by_number[attempt["number"]].append((one["node"], attempt))
    found = []
    for number, parts in sorted(by_number.items()):
        begun = [
            part["started"] for _node, part in parts if isinstance(part["started"], (int, float))
        ]
        start = min(begun) if begun else None
        by = next((part["by"] for _node, part in parts if part["by"]), None)
        resumed = next((part["resumed"] for _node, part in parts if part["resumed"]), None)
        words = "attempt %d" % number
        words += (
            ", begun {} ago ({} UTC)".format(
                span(max(0, now - start)), time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start))
            )
            if start
            else ""
        )
        words += f" by {by}" if by else ""
        words += f", resumed from {_point(resumed)}" if resumed else ""
        found.append("{} on {}: {}".format(words, ", ".join(parts[0][1]["nodes"]), _end(parts)))
        log = next((part["log"] for _node, part in parts if part["log"]), None)
        found += ["  " + line for line in _log(log, parts[0][1])] if log else []
    return found


def _point(resumed):
    place = [f"{key} {resumed[key]}" for key in ("epoch", "step") if resumed.get(key) is not None]
    return "{}{}".format(
        resumed.get("name") or "a checkpoint",
        " ({})".format(", ".join(place)) if place else "",
    )


def _end(parts):
    """Return how an attempt stands on the nodes that were asked, in words."""
    if any(part["ended"] is None for _node, part in parts):
        over = [node for node, part in parts if part["ended"] is not None]
        return (
            "goes on"
            if not over
            else "goes on or has written no end on {}".format(
                ", ".join(node for node, part in parts if part["ended"] is None)
            )
        )
    if all(part["well"] for _node, part in parts):
        return "completed"
    asked = next(
        (part["stop"] for _node, part in parts if part["stop"] and part["stop"]["by"] == "user"),
        None,
    )
    if asked:
        return "stopped by %s" % (asked["from"] or "the user")
    bad = [
        "rank {} on {} {}".format(
            end["rank"], node, end["signal"] or "exit code {}".format(end["exit_code"])
        )
        for node, part in parts
        for end in part["ends"]
        if end["signal"] or end["exit_code"]
    ]
    return "failed%s" % (": {}".format(", ".join(bad[:4])) if bad else "")


def _log(log, part):
    """Return what the first rank's log tells of the attempt so far."""
    first, total = part["first"].get("epoch", 1), part["epochs"]
    found = []
    for step in log["epochs"]:
        if step and step.get("epoch") is not None:
            loss = (
                ""
                if step.get("loss") is None
                else (
                    ", loss {:.4g}".format(step["loss"])
                    if isinstance(step["loss"], (int, float))
                    else ""
                )
            )
            found.append(
                "epoch {}{} done{}".format(
                    step["epoch"] + 1 - first, f"/{total}" if total else "", loss
                )
            )
    for item in log["evaluations"]:
        figures = [
            "{} {}".format(key, f"{value:.4g}" if isinstance(value, float) else value)
            for key, value in item.items()
            if _FIGURE.match(key)
        ]
        at = (
            " after epoch %s" % (item["epoch"] + 1 - first)
            if isinstance(item.get("epoch"), int)
            else ""
        )
        found.append("evaluation{}: {}".format(at, ", ".join(figures[:4]) or "done"))
    if log["saved"]:
        found.append(
            "saved %d times, last %s"
            % (
                log["saved_count"],
                str(log["saved"][-1].get("path") or "without a name").rsplit("/", 1)[-1],
            )
        )
    if log["steps"]:
        found.append("%d step lines so far" % log["steps"])
    return found
