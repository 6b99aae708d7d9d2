# SPDX-License-Identifier: Apache-2.0
"""`pace.json` beside a run's record: how long its steps, its saves and its start took.

A later start of the same job reads it to say what a fault costs (start/checkpoint_interval.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import write_json

from .json_values import Json, finite_number, mapping_of, mappings_of

NAME = "pace.json"
# Most suites date their lines in whole seconds, so a shorter time says little.
FEWEST_STEPS, SHORTEST_SECONDS = 10, 20.0
_SAVING = ("checkpoint", "evaluation")


def measure(attempt: Mapping[str, Any], ranks: object) -> Json | None:
    """Return the pace of an attempt, or None where its log is too short to tell.

    attempt: one of series.of_run's. ranks: its ranks in run.json. The result has attempt, steps,
    seconds (for these steps, with all pauses), epoch_steps or None, saves, pause_seconds (of all
    saves, with the evaluations between them) and start_seconds (to the first step) or None.
    """
    series = attempt.get("series") or {}
    if not series:
        return None
    rank = min(series)
    rows = series[rank]
    timed = [row for row in zip(rows["time"], rows["step"]) if None not in row]
    if len(timed) < 2:
        return None
    (begin, first), (end, last) = timed[0], timed[-1]
    if last - first < FEWEST_STEPS or end - begin < SHORTEST_SECONDS:
        return None
    pauses = [
        phase
        for phase in mappings_of(attempt.get("phases"))
        if phase["rank"] == rank and phase["phase"] in _SAVING and begin <= phase["begin"] < end
    ]
    start = None
    if finite_number(attempt.get("begin")) and begin > attempt["begin"]:
        start = begin - attempt["begin"]
    return {
        "attempt": attempt.get("number"),
        "steps": last - first,
        "seconds": end - begin,
        "epoch_steps": _count_epoch_steps(ranks, rank),
        "saves": sum(phase["phase"] == "checkpoint" for phase in pauses),
        "pause_seconds": sum(phase["end"] - phase["begin"] for phase in pauses),
        "start_seconds": start,
    }


def _count_epoch_steps(ranks: object, number: int) -> int | None:
    """Return the steps of an epoch as a rank's newest step line says, or None."""
    for rank in mappings_of(ranks):
        steps = mapping_of(rank.get("last_step")).get("steps")
        if rank.get("rank") == number and type(steps) is int and steps > 0:
            return steps
    return None


def write(run_dir: str, record: Mapping[str, Any], series: Mapping[str, Any]) -> None:
    """Write the pace of the newest attempt that is long enough, where there is one.

    record: run.json. series: the result of series.of_run.
    """
    ranks = {
        entry.get("number"): entry.get("ranks") for entry in mappings_of(record.get("attempts"))
    }
    for attempt in reversed(series.get("attempts") or ()):
        pace = measure(attempt, ranks.get(attempt.get("number")))
        if pace:
            write_json(os.path.join(run_dir, NAME), pace)
            return
