# SPDX-License-Identifier: Apache-2.0
"""The pace of a job in an earlier run on as many devices, from the controller's records."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_mapping
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import Plan
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table

from ..report import pace
from ..report.json_values import finite_number, mapping_of

# Runs of the job's name that are looked at, the newest first.
MOST_RUNS = 20


class Pace(NamedTuple):
    """What an earlier run measured, in seconds. Its saves include the evaluations beside them."""

    run: str
    step: float  # from one step to the next, pauses included
    epoch_steps: int | None
    save: float | None  # the pause for a save, None where none was seen
    start: float | None  # from the attempt's begin to its first step


def find(runs_dir: str, name: str, plan: Plan) -> Pace | None:
    """Return the pace of the newest comparable run, or None.

    runs_dir: the controller's. name: of the job.
    """
    part = re.sub(r"[^A-Za-z0-9_.]", "_", name)[:64]
    try:
        entries = os.listdir(runs_dir)
    except OSError:
        return None
    runs = sorted(
        (run for run in entries if RUN_ID.match(run) and f"-{part}-" in run), reverse=True
    )
    for run in runs[:MOST_RUNS]:
        folder = os.path.join(runs_dir, run)
        value = read_mapping(os.path.join(folder, pace.NAME))
        found = _read(run, value)
        # the run's newest attempt may have had other devices
        if found and _is_comparable(plan, run_json.read_plan(folder, value.get("attempt")) or {}):
            return found
    return None


def _read(run: str, value: Mapping[str, Any]) -> Pace | None:
    """Return the Pace of a file's content, None where it has other content."""
    steps, seconds = (finite_number(value.get(key)) for key in ("steps", "seconds"))
    if not steps or not seconds or min(steps, seconds) <= 0:
        return None
    saves, paused = (finite_number(value.get(key)) for key in ("saves", "pause_seconds"))
    save = None
    if saves and paused and min(saves, paused) > 0:
        save = paused / saves
    epoch_steps = value.get("epoch_steps")
    if type(epoch_steps) is not int or not 0 < epoch_steps < suite_table.LARGEST_NUMBER:
        epoch_steps = None
    return Pace(run, seconds / steps, epoch_steps, save, finite_number(value.get("start_seconds")))


def _is_comparable(plan: Mapping[str, Any], earlier: Mapping[str, Any]) -> bool:
    """Return whether two plans train the same config on as many devices of a kind."""
    return _traits(plan) == _traits(earlier)


def _traits(plan: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        plan.get("accelerator"),
        mapping_of(plan.get("job")).get("suite"),
        mapping_of(plan.get("job")).get("config"),
        len(plan.get("ranks") or ()),
        mapping_of(plan.get("settings")).get("batch_per_card"),
        plan.get("data"),
    )
