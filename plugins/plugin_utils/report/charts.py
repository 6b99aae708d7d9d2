# SPDX-License-Identifier: Apache-2.0
"""The report's curves and numbers. Pure: series.of_run's result in.

They are what its charts draw, the same in a table, and the few figures on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, TypeVar

from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_clock

from . import timeline
from .json_values import Json, finite_number

T = TypeVar("T")

CURVES = ("loss", "lr", "ips")


def number(value: Any) -> Any:
    """Return a figure with four significant digits (nan and inf as such).

    What is not a number stays as it is.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return value
    if math.isfinite(value) and value == int(value):
        return f"{int(value)}"
    return f"{value:.4g}"


def compact(values: Iterable[float | None], digits: int = 5) -> list[float | None]:
    """Return numbers with so many significant digits.

    None stands for what is missing or not finite: JSON has no NaN.
    """
    return [_round_figure(value, digits) for value in values]


def _round_figure(value: float | None, digits: int) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def since(times: Iterable[float | None], begin: float) -> list[float | None]:
    """Return times as seconds since the begin, to a tenth.

    None stays None.
    """
    return [_seconds_since(value, begin) for value in times]


def _seconds_since(value: float | None, begin: float) -> float | None:
    if value is None:
        return None
    return round(value - begin, 1)


def without_none(values: Iterable[T | None]) -> list[T]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def logs_section(plan: Json, name: str) -> Json:
    """Return a section of the suite's `logs` table, such as `step`, or {}."""
    logs = (plan.get("suite") or {}).get("logs") or {}
    return logs.get(name) or {}


def unit_of(plan: Json) -> str:
    """Return the unit of the suite's speed figure."""
    return logs_section(plan, "step").get("unit") or "samples/s"


def counted(epoch: Any, plan: Json) -> Any:
    """Return an epoch counted from 1.

    `first` in the suite's table says from what the suite counts.
    """
    first = (logs_section(plan, "step").get("first") or {}).get("epoch", 1)
    if not isinstance(epoch, int):
        return epoch
    return epoch + 1 - first


def curves(series: Json) -> Json:
    """Return {curves, sums, evaluations}: the charts' data of all attempts.

    Times are seconds since the first attempt's begin.
    """
    attempts = series.get("attempts") or []
    rank_curves: list[Json] = []
    sums: list[Json] = []
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


def _curves_of_ranks(attempt: Json, begin: float, suffix: str) -> list[Json]:
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


def measured(attempt: Json) -> tuple[list[Json], list[str]]:
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


def evaluations(attempts: Sequence[Json], begin: float) -> list[Json]:
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


def note_of(series: Json) -> str:
    """Return a sentence on how the summed speed was counted."""
    notes = [(attempt.get("summed") or {}).get("note") for attempt in series.get("attempts") or ()]
    return next((note for note in notes if note), "of all ranks")


def figures(facts: Json, drawn: Json) -> list[Json]:
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


def _figure(label: str, value: object, note: str = "") -> Json:
    return {"label": label, "value": value, "note": note}


def _duration_figure(record: Json, attempts: Sequence[Json]) -> Json | None:
    text = duration_text(record, attempts)
    if text is None:
        return None
    return _figure("took", text, "start to verdict")


def duration_text(record: Json, attempts: Sequence[Json]) -> str | None:
    """Return the time from a run's start to the end of its last attempt, or None.

    A damaged run.json may hold anything in the place of a time.
    """
    started, ended = finite_number(record.get("started")), None
    if attempts:
        ended = finite_number(attempts[-1].get("ended"))
    if not started or not ended:
        return None
    return str(format_clock(ended - started))


def _ranks_figure(plan: Json) -> Json:
    ranks, nodes = len(plan.get("ranks") or ()), len(plan.get("nodes") or ())
    plural = "s" * (nodes != 1)
    return _figure("ranks", str(ranks), f"on {nodes} node{plural}, {plan.get('accelerator')}")


def _steps_figure(plan: Json, rank_curves: Sequence[Json]) -> Json | None:
    steps = without_none(step for curve in rank_curves for step in curve["s"])
    if not steps:
        return None
    note = ""
    if plan.get("epochs"):
        note = f"{plan['epochs']} epochs planned"
    return _figure("steps", str(max(steps)), note)


def _loss_figure(rank_curves: Sequence[Json]) -> Json | None:
    """Return the loss of the last curve, or None."""
    losses = []
    if rank_curves:
        losses = without_none(rank_curves[-1]["loss"])
    if not losses:
        return None
    note = f"first {number(losses[0])}, least {number(min(losses))}"
    return _figure("last loss", number(losses[-1]), note)


def _best_figure(best: Json, plan: Json) -> Json | None:
    if not best.get("figure") or best.get("value") is None:
        return None
    note = ""
    if best.get("epoch") is not None:
        note = f"epoch {counted(best['epoch'], plan)}"
    return _figure(f"best {best['figure']}", number(best["value"]), note)


def _throughput_figure(plan: Json, sums: Sequence[Json]) -> Json | None:
    speeds = [speed for curve in sums for speed in curve["ips"] if speed]
    if not speeds:
        return None
    return _figure("throughput", f"{number(median(speeds))} {unit_of(plan)}", "all ranks, median")


def _attempts_figure(attempts: Sequence[Json]) -> Json | None:
    if len(attempts) < 2:
        return None
    return _figure("attempts", str(len(attempts)), "the last one counts")


def curve_rows(drawn: Json) -> list[Json]:
    """Return one row of figures for each curve.

    They are the charts in words, for print and for readers who cannot see the charts.
    """
    return [_curve_row(curve) for curve in drawn["curves"]]


def _curve_row(curve: Json) -> Json:
    losses, speeds, rates = (without_none(curve[name]) for name in ("loss", "ips", "lr"))
    row: Json = {
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
