# SPDX-License-Identifier: Apache-2.0
"""The report's curves and numbers. Pure: series.of_run's result in.

They are what its charts draw, the same in a table, and the few figures on top.
"""

from __future__ import annotations

import math
from statistics import median

from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_clock

from . import timeline

CURVES = ("loss", "lr", "ips")


def number(value):
    """Return a figure with four significant digits (nan and inf as such).

    What is not a number stays as it is.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return value
    if math.isfinite(value) and value == int(value):
        return f"{int(value)}"
    return f"{value:.4g}"


def compact(values, digits=5):
    """Return numbers with so many significant digits.

    None stands for what is missing or not finite: JSON has no NaN.
    """
    return [_round_figure(value, digits) for value in values]


def _round_figure(value, digits):
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def since(times, begin):
    """Return times as seconds since the begin, to a tenth.

    None stays None.
    """
    return [_seconds_since(value, begin) for value in times]


def _seconds_since(value, begin):
    if value is None:
        return None
    return round(value - begin, 1)


def without_none(values):
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def logs_section(plan, name):
    """Return a section of the suite's `logs` table, such as `step`, or {}."""
    logs = (plan.get("suite") or {}).get("logs") or {}
    return logs.get(name) or {}


def unit_of(plan):
    """Return the unit of the suite's speed figure."""
    return logs_section(plan, "step").get("unit") or "samples/s"


def counted(epoch, plan):
    """Return an epoch counted from 1.

    `first` in the suite's table says from what the suite counts.
    """
    first = (logs_section(plan, "step").get("first") or {}).get("epoch", 1)
    if not isinstance(epoch, int):
        return epoch
    return epoch + 1 - first


def curves(series):
    """Return {curves, sums, evaluations}: the charts' data of all attempts.

    Times are seconds since the first attempt's begin.
    """
    attempts, rank_curves, sums = series.get("attempts") or [], [], []
    begin = next((attempt["begin"] for attempt in attempts if attempt.get("begin")), 0.0)
    for attempt in attempts:
        suffix = ""
        if len(attempts) > 1:
            suffix = f", attempt {attempt['number']}"
        rank_curves += _curves_of_ranks(attempt, begin, suffix)
        total = attempt.get("summed") or {}
        if total.get("time"):
            sums.append(
                {
                    "label": "all ranks" + suffix,
                    "t": since(total["time"], begin),
                    "ips": compact(total["ips"]),
                }
            )
    return {"curves": rank_curves, "sums": sums, "evaluations": evaluations(attempts, begin)}


def _curves_of_ranks(attempt, begin, suffix):
    """Return one curve for each rank of an attempt that has steps."""
    slow = timeline.behind(attempt)
    series = attempt.get("series") or {}
    rank_curves = []
    for rank, curve in sorted(series.items(), key=lambda item: int(item[0])):
        if any(curve.get("step") or ()):
            entry = {
                "label": f"rank {rank}{suffix}",
                "t": since(curve["time"], begin),
                "s": curve["step"],
            }
            entry.update({name: compact(curve.get(name) or ()) for name in CURVES})
            entry.update(rank=int(rank), hot=int(rank) in slow)
            rank_curves.append(entry)
    return rank_curves


def measured(attempt):
    """Return (rows, names) of an attempt's evaluations.

    rows: those of the first rank that printed any. names: the names of their numbers.
    """
    rows = [row for row in attempt.get("evaluations") or () if row.get("figures")]
    rows = [row for row in rows if row.get("rank") == rows[0].get("rank")]
    names = [
        name
        for row in rows
        for name, value in row["figures"].items()
        if isinstance(value, (int, float))
    ]
    return rows, list(dict.fromkeys(names))


def evaluations(attempts, begin):
    """Return [{label, t, s, figures: {name: [...]}}] of the evaluations.

    It has one entry for each attempt that evaluated.
    """
    entries = []
    for attempt in attempts:
        rows, names = measured(attempt)
        if names:
            label = "evaluation"
            if len(attempts) > 1:
                label = f"attempt {attempt['number']}"
            entries.append(
                {
                    "label": label,
                    "t": since([row["time"] for row in rows], begin),
                    "s": [row["step"] for row in rows],
                    "figures": {
                        name: compact([row["figures"].get(name) for row in rows]) for name in names
                    },
                }
            )
    return entries


def note_of(series):
    """Return a sentence on how the summed speed was counted."""
    notes = [(attempt.get("summed") or {}).get("note") for attempt in series.get("attempts") or ()]
    return next((note for note in notes if note), "of all ranks")


def figures(facts, drawn):
    """Return [{label, value, note}]: the few numbers on top.

    drawn: curves' result.
    """
    record, series, plan = facts["record"], facts["series"], facts["plan"]
    attempts = record.get("attempts") or []
    rows = [
        _duration_figure(record, attempts),
        _ranks_figure(plan),
        _steps_figure(plan, drawn["curves"]),
        _loss_figure(drawn["curves"]),
        _best_figure(series.get("best") or {}, plan),
        _throughput_figure(plan, drawn["sums"]),
        _attempts_figure(attempts),
    ]
    return [row for row in rows if row]


def _figure(label, value, note=""):
    return {"label": label, "value": value, "note": note}


def _duration_figure(record, attempts):
    ended = None
    if attempts:
        ended = attempts[-1].get("ended")
    if not ended or not record.get("started"):
        return None
    return _figure("took", format_clock(ended - record["started"]), "start to verdict")


def _ranks_figure(plan):
    ranks, nodes = len(plan.get("ranks") or ()), len(plan.get("nodes") or ())
    plural = "s" * (nodes != 1)
    return _figure("ranks", str(ranks), f"on {nodes} node{plural}, {plan.get('accelerator')}")


def _steps_figure(plan, rank_curves):
    steps = without_none(step for curve in rank_curves for step in curve["s"])
    if not steps:
        return None
    note = ""
    if plan.get("epochs"):
        note = "{} epochs planned".format(plan["epochs"])
    return _figure("steps", str(max(steps)), note)


def _loss_figure(rank_curves):
    """Return the loss of the last curve, or None."""
    losses = []
    if rank_curves:
        losses = without_none(rank_curves[-1]["loss"])
    if not losses:
        return None
    note = f"first {number(losses[0])}, least {number(min(losses))}"
    return _figure("last loss", number(losses[-1]), note)


def _best_figure(best, plan):
    if not best.get("figure") or best.get("value") is None:
        return None
    note = ""
    if best.get("epoch") is not None:
        note = "epoch {}".format(counted(best["epoch"], plan))
    return _figure("best {}".format(best["figure"]), number(best["value"]), note)


def _throughput_figure(plan, sums):
    speeds = [speed for curve in sums for speed in curve["ips"] if speed]
    if not speeds:
        return None
    return _figure("throughput", f"{number(median(speeds))} {unit_of(plan)}", "all ranks, median")


def _attempts_figure(attempts):
    if len(attempts) < 2:
        return None
    return _figure("attempts", str(len(attempts)), "the last one counts")


def curve_rows(drawn):
    """Return one row of figures for each curve.

    They are the charts in words, for print and for readers who cannot see the charts.
    """
    return [_curve_row(curve) for curve in drawn["curves"]]


def _curve_row(curve):
    losses, speeds, rates = (without_none(curve[name]) for name in ("loss", "ips", "lr"))
    row = {
        "label": curve["label"],
        "points": len(curve["s"]),
        "loss": [None] * 3,
        "speed": None,
        "lr": [None] * 2,
        "behind": curve["hot"],
    }
    if losses:
        row["loss"] = [number(value) for value in (losses[0], min(losses), losses[-1])]
    if speeds:
        row["speed"] = number(median(speeds))
    if rates:
        row["lr"] = [number(value) for value in (max(rates), rates[-1])]
    return row
