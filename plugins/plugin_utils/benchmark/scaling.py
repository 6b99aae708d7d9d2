# SPDX-License-Identifier: Apache-2.0
"""Scaling of a job: its speed, speed-up and efficiency by the number of nodes. Pure.

The figures are those that the suite prints in its step lines. No rank says how long it waited for
another. So a step's time is split by comparing it with the steps of the same nodes where each
trains alone, all at the same time:

- loading: what the suite prints as the wait for data (`data_cost`, `reader_cost`).
- compute: the rest of a step of a node alone, the mean of the nodes.
- waiting: by how much the slowest node's exceeds that mean. All others wait for it.
- exchange: what is left of a step. It holds the exchange of gradients between the nodes, and waits
  that change from step to step.

Where no node trained alone, compute is the rest of a step on the fewest nodes, and exchange holds
all waiting.

The batch of a card has to be the same in all trainings, which it is unless the job changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from ..report.charts import unit_of
from ..report.json_values import Json, finite_number, mapping_of, mappings_of

# The first steps fill caches and queues. So much of a training's step lines is left out.
WARM_UP = 0.2
# Of a step's time: from here on a part is worth a line of advice.
LARGE_SHARE = 0.1
PARTS = ("compute", "loading", "waiting", "exchange")


@dataclass
class Training:
    """The figures of one training.

    seconds: from its first step to its last. whole_seconds: of the run, from its start to its end.
    speed: samples a second of all ranks. step_seconds, loading_seconds: of one step. Each is None
    where the log does not say it.
    """

    run: str
    nodes: list[str]
    ranks: int
    outcome: str
    unit: str
    steps: int | None = None
    seconds: float | None = None
    whole_seconds: float | None = None
    speed: float | None = None
    step_seconds: float | None = None
    loading_seconds: float | None = None
    best: str | None = None
    published: list[Json] = field(default_factory=list)


@dataclass
class Row:
    """One number of nodes in the table.

    speed_up: speed beside the smallest number of nodes. efficiency: speed_up by the number of times
    that there are more nodes, 1.0 for a perfect one. parts: seconds of a step by PARTS, {} where
    they cannot be told.
    """

    training: Training
    speed_up: float | None
    efficiency: float | None
    parts: dict[str, float]


def of_series(record: Json, plan: Json, series: Json) -> Training:
    """Return the figures of a run's newest attempt.

    record: run.json. series: the result of report.series.of_run.
    """
    attempt = next(reversed(mappings_of(record.get("attempts"))), {})
    nodes = [str(node["name"]) for node in mappings_of(plan.get("nodes")) if node.get("name")]
    training = Training(
        run=str(record.get("run") or series.get("run") or ""),
        nodes=nodes,
        ranks=len(mappings_of(plan.get("ranks"))),
        outcome=str(mapping_of(attempt.get("verdict")).get("outcome") or "unknown"),
        unit=unit_of(plan),
        published=mappings_of(mapping_of(plan.get("job")).get("published")),
    )
    # A run of a benchmark is not restarted: its only attempt is all of it.
    begun, ended = finite_number(record.get("started")), finite_number(attempt.get("ended"))
    if begun is not None and ended is not None:
        training.whole_seconds = ended - begun
    over_time = mappings_of(series.get("attempts"))
    if over_time:
        _add_steps(training, over_time[-1])
    best = mapping_of(series.get("best"))
    if finite_number(best.get("value")) is not None:
        training.best = f"{best.get('figure')} {best['value']:.4g}"
    return training


def _add_steps(training: Training, attempt: Json) -> None:
    """Add what the step lines of the first rank that prints any say, and the speed of all."""
    curves = mapping_of(attempt.get("series"))
    if not curves:
        return
    curve = curves[min(curves)]
    steps = [step for step in curve["step"] if step is not None]
    times = [time for time in curve["time"] if time is not None]
    if steps:
        training.steps = max(steps)
    if len(times) > 1:
        training.seconds = times[-1] - times[0]
    summed = mapping_of(attempt.get("summed"))
    training.speed = steady(summed.get("ips") or ())
    training.step_seconds = steady(curve["batch_cost"])
    training.loading_seconds = steady(curve["data_cost"])


def steady(values: Sequence[float | None]) -> float | None:
    """Return the median without the warm-up, None without a value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    left_out = max(1, round(len(known) * WARM_UP))
    return median(known[left_out:] or known)


def own_seconds(alone: Sequence[Training]) -> dict[str, float]:
    """Return {node: seconds of a step without the wait for data} of nodes that trained alone."""
    return {
        one.nodes[0]: max(0.0, one.step_seconds - (one.loading_seconds or 0.0))
        for one in alone
        if one.step_seconds is not None and _is_sound(one)
    }


def _is_sound(training: Training) -> bool:
    return bool(training.speed and training.nodes) and training.outcome in ("completed", "stopped")


def compare(trainings: Sequence[Training], alone: Sequence[Training] = ()) -> list[Row]:
    """Return a row for each training, by the number of nodes.

    alone: trainings of each node alone. A training that did not end as it should has its figures,
    and is compared with nothing.
    """
    ordered = sorted(trainings, key=lambda training: len(training.nodes))
    sound, own = [one for one in ordered if _is_sound(one)], own_seconds(alone)
    rows = []
    for training in ordered:
        row = Row(training, None, None, {})
        if training in sound and training.speed and sound[0].speed:
            base = sound[0]
            row.speed_up = training.speed / sound[0].speed
            row.efficiency = row.speed_up * len(base.nodes) / len(training.nodes)
            row.parts = split_step(training, base, own)
        rows.append(row)
    return rows


def split_step(
    training: Training, base: Training, own: Mapping[str, float] = MappingProxyType({})
) -> dict[str, float]:
    """Return {part: seconds} of a step of a training, {} where they cannot be told.

    base: the training on the fewest nodes. own: as own_seconds gives it.
    """
    if training.step_seconds is None or base.step_seconds is None:
        return {}
    loading = training.loading_seconds or 0.0
    known = [own[name] for name in training.nodes if name in own]
    # A rest below zero is the spread of the figures.
    if len(training.nodes) > 1 and len(known) == len(training.nodes):
        slowest, compute = max(known), fmean(known)
        rest = max(0.0, training.step_seconds - slowest - loading)
        waiting = slowest - compute
        return {"compute": compute, "loading": loading, "waiting": waiting, "exchange": rest}
    compute = max(0.0, base.step_seconds - (base.loading_seconds or 0.0))
    parts = {"compute": compute, "loading": loading}
    if training is not base:
        parts["exchange"] = max(0.0, training.step_seconds - compute - loading)
    return parts


def advice(rows: Sequence[Row], own: Mapping[str, float] = MappingProxyType({})) -> list[str]:
    """Return what would help, for the largest number of nodes, [] where nothing stands out.

    own: as own_seconds gives it.
    """
    split = [row for row in rows if row.parts.get("exchange") is not None]
    if not split:
        return []
    row = split[-1]
    whole = sum(row.parts.values()) or 1.0
    texts = {
        "loading": "more workers of the loader for each rank, the data on a disk of the node",
        "waiting": _slowest(row, own),
        "exchange": "a larger batch for each card, a faster interface between the nodes"
        " (network.measured of check.yml) without other traffic, nodes of equal speed",
    }
    return [
        f"{part} takes {row.parts[part] / whole:.0%} of a step on {len(row.training.nodes)} nodes."
        f" What helps: {text}"
        for part, text in texts.items()
        if row.parts.get(part, 0.0) / whole >= LARGE_SHARE
    ]


def _slowest(row: Row, own: Mapping[str, float]) -> str:
    """Return what helps against waiting for the slowest node of a row."""
    known = {name: own[name] for name in row.training.nodes if name in own}
    if not known:
        return "nodes of equal speed"
    slowest = max(known, key=lambda name: known[name])
    times = known[slowest] / (min(known.values()) or 1.0)
    return (
        f"{slowest} alone takes {times:.2g} times as long for a step as the fastest node: find out"
        " what slows it down, or leave it out by -e nodes=NAME,NAME"
    )


def as_json(rows: Sequence[Row], alone: Sequence[Training] = ()) -> dict[str, Any]:
    """Return all figures for benchmark.json. Times are in seconds, efficiency 1 is perfect."""
    return {
        "version": 1,
        "rows": [
            {
                **vars(row.training),
                "nodes": len(row.training.nodes),
                "names": row.training.nodes,
                "speed_up": row.speed_up,
                "efficiency": row.efficiency,
                "step_parts": row.parts,
            }
            for row in rows
        ],
        "alone": [
            {
                "node": one.nodes[0],
                "run": one.run,
                "outcome": one.outcome,
                "step_seconds": one.step_seconds,
                "loading_seconds": one.loading_seconds,
            }
            for one in alone
            if one.nodes
        ],
        "advice": advice(rows, own_seconds(alone)),
    }
