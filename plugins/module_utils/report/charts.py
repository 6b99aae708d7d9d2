# SPDX-License-Identifier: Apache-2.0
"""The report's curves and numbers: what its charts draw, the same in a table, and the few figures
on top. Pure: series.of_run's result in.
"""

from __future__ import annotations

import math
from statistics import median

from ..base.text_layout import span as duration
from . import timeline

CURVES = ("loss", "lr", "ips")


def number(value):
    """Return a figure with four digits that count (nan and inf as such); what is no number stays as
    it is.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return value
    return "%d" % value if math.isfinite(value) and value == int(value) else f"{value:.4g}"


def compact(values, digits=5):
    """Return numbers with so many digits that count, None where one is none or not finite; JSON has
    no NaN.
    """
    return [
        None if value is None or not math.isfinite(value) else float("%.*g" % (digits, value))
        for value in values
    ]


def since(times, begin):
    """Return times as seconds since the begin, to a tenth."""
    return [None if value is None else round(value - begin, 1) for value in times]


def unit_of(plan):
    """Return the unit of the suite's speed figure."""
    return (((plan.get("suite") or {}).get("logs") or {}).get("step") or {}).get(
        "unit"
    ) or "samples/s"


def counted(epoch, plan):
    """Return an epoch as people count, from 1; suites print it as they do (`first` in their table)."""
    first = (
        (((plan.get("suite") or {}).get("logs") or {}).get("step") or {}).get("first") or {}
    ).get("epoch", 1)
    return epoch + 1 - first if isinstance(epoch, int) else epoch


def curves(series):
    """Return {curves, sums, evaluations}: what the charts draw, of all attempts, at times since the
    first one's begin.
    """
    attempts, found, sums = series.get("attempts") or [], [], []
    begin = next((attempt["begin"] for attempt in attempts if attempt.get("begin")), 0.0)
    for attempt in attempts:
        tail = ", attempt %d" % attempt["number"] if len(attempts) > 1 else ""
        slow = timeline.behind(attempt)
        for rank, curve in sorted(
            (attempt.get("series") or {}).items(), key=lambda item: int(item[0])
        ):
            if any(curve.get("step") or ()):
                one = {
                    "label": f"rank {rank}{tail}",
                    "t": since(curve["time"], begin),
                    "s": curve["step"],
                }
                one.update({name: compact(curve.get(name) or ()) for name in CURVES})
                found.append(dict(one, rank=int(rank), hot=int(rank) in slow))
        total = attempt.get("summed") or {}
        if total.get("time"):
            sums.append(
                {
                    "label": "all ranks" + tail,
                    "t": since(total["time"], begin),
                    "ips": compact(total["ips"]),
                }
            )
    return {"curves": found, "sums": sums, "evaluations": evaluations(attempts, begin)}


def measured(attempt):
    """Return (rows, names) of an attempt's evaluations: those of the first rank that printed any,
    and the names of their numbers.
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
    """Return [{label, t, s, figures: {name: [...]}}], one for each attempt that evaluated."""
    found = []
    for attempt in attempts:
        rows, names = measured(attempt)
        if names:
            one = {"label": "attempt %d" % attempt["number"] if len(attempts) > 1 else "evaluation"}
            one.update(
                t=since([row["time"] for row in rows], begin), s=[row["step"] for row in rows]
            )
            found.append(
                dict(
                    one,
                    figures={
                        name: compact([row["figures"].get(name) for row in rows]) for name in names
                    },
                )
            )
    return found


def note_of(series):
    """Return how the summed speed was counted."""
    notes = [(attempt.get("summed") or {}).get("note") for attempt in series.get("attempts") or ()]
    return next((note for note in notes if note), "of all ranks")


def figures(facts, drawn):
    """Return [{label, value, note}]: the few numbers that people look for first."""
    record, series, plan = facts["record"], facts["series"], facts["plan"]
    attempts = record.get("attempts") or []
    ended, rows = attempts[-1].get("ended") if attempts else None, []

    def put(label, value, note=""):
        rows.append({"label": label, "value": value, "note": note})

    if ended and record.get("started"):
        put("took", duration(ended - record["started"]), "start to verdict")
    count, nodes = len(plan.get("ranks") or ()), len(plan.get("nodes") or ())
    put(
        "ranks",
        str(count),
        "on %d node%s, %s" % (nodes, "s" * (nodes != 1), plan.get("accelerator")),
    )
    steps = [step for curve in drawn["curves"] for step in curve["s"] if step is not None]
    if steps:
        put(
            "steps",
            str(max(steps)),
            "{} epochs planned".format(plan["epochs"]) if plan.get("epochs") else "",
        )
    losses = [
        loss
        for loss in (drawn["curves"][-1]["loss"] if drawn["curves"] else ())
        if loss is not None
    ]
    if losses:
        put(
            "last loss",
            number(losses[-1]),
            f"first {number(losses[0])}, least {number(min(losses))}",
        )
    best = series.get("best") or {}
    if best.get("figure") and best.get("value") is not None:
        put(
            "best {}".format(best["figure"]),
            number(best["value"]),
            (
                "epoch {}".format(counted(best["epoch"], plan))
                if best.get("epoch") is not None
                else ""
            ),
        )
    speeds = [speed for curve in drawn["sums"] for speed in curve["ips"] if speed]
    if speeds:
        put("throughput", f"{number(median(speeds))} {unit_of(plan)}", "all ranks, median")
    if len(attempts) > 1:
        put("attempts", str(len(attempts)), "the last one counts")
    return rows


def curve_rows(drawn):
    """Return one row of figures for each curve: the charts in words, for print and for those who
    cannot see them.
    """
    rows = []
    for curve in drawn["curves"]:
        losses = [value for value in curve["loss"] if value is not None]
        speeds = [value for value in curve["ips"] if value is not None]
        rates = [value for value in curve["lr"] if value is not None]
        rows.append(
            {
                "label": curve["label"],
                "points": len(curve["s"]),
                "loss": (
                    [number(value) for value in (losses[0], min(losses), losses[-1])]
                    if losses
                    else [None] * 3
                ),
                "speed": number(median(speeds)) if speeds else None,
                "lr": [number(value) for value in (max(rates), rates[-1])] if rates else [None] * 2,
                "behind": curve["hot"],
            }
        )
    return rows
