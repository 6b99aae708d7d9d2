# SPDX-License-Identifier: Apache-2.0
"""Time between two checkpoints in the suite's own unit, and the cost of one fault. Pure.

The best time between two saves is sqrt(2 * C * M): C seconds for a save, M seconds between two
faults (J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9),
1974; J. T. Daly, FGCS 22(3), 2006, whose further terms vanish where C is much smaller than M).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_duration
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table

from ..config import wait_option
from .pace_history import Pace

EPOCH, ITERATION = "epoch", "iteration"


class Interval(NamedTuple):
    """What the script's command line gets for a job's checkpoint_every."""

    overrides: dict[str, Any]
    arguments: list[str]
    number: int | None = None  # epochs or iterations between two saves
    lines: tuple[str, ...] = ()  # what was changed, for the plan
    warning: str = ""  # why nothing was changed


def translate(
    every: Any, suite: Mapping[str, Any], inputs: Mapping[str, Any], pace: Pace | None
) -> Interval:
    """Return the overrides and arguments with which a suite saves every so often.

    every: a valid checkpoint_every. suite: its table. inputs: as job_inputs gives them. pace: that
    of an earlier run, or None.
    """
    overrides, arguments = dict(inputs["overrides"]), list(inputs["arguments"])
    unit, name = suite["checkpoints"].get("interval"), _name_of_key(suite)
    if not unit:
        return Interval(overrides, arguments, warning="the suite's table does not say how it saves")
    if not name:
        return Interval(overrides, arguments, warning="the suite saves after every epoch")
    length = seconds_of(unit, pace)
    if not pace or not length:
        warning = (
            f"no earlier run of this job on as many devices says how long its steps take; {name}"
            " stays as it is, and a later start can compute it"
        )
        return Interval(overrides, arguments, warning=warning)
    count = _round_down(int(wait_option.seconds_of(every) / length))
    line = (
        f"checkpoint_every {every}: {name}={count}, about {format_duration(count * length)}"
        f" by the pace of {pace.run}"
    )
    before = inputs["config"].get("save_interval")
    if before is not None and before != count:
        line += f", in place of {before}"
    if name.startswith("-"):
        arguments = _with_option(arguments, name, str(count))
    else:
        overrides[name] = count
    return Interval(overrides, arguments, count, (line,))


def _round_down(count: int) -> int:
    """Return a count with two digits, so that a slightly other pace leaves the plan as it is.

    A plan that was rehearsed is not rehearsed again.
    """
    unit = 10 ** max(0, len(str(count)) - 2)
    return max(1, count - count % unit)


def describe_cost(
    suite: Mapping[str, Any],
    config: Mapping[str, Any],
    pace: Pace | None,
    fault_hours: float,
    devices: int,
) -> list[str]:
    """Return lines that say what a fault costs and which interval is best.

    config: what the suite's config says, as suite_table.settings gives it. fault_hours: hours of
    one device between two faults. devices: of the job.
    """
    unit, save_interval = suite["checkpoints"].get("interval"), config.get("save_interval")
    if not _name_of_key(suite):
        save_interval = 1
    if not save_interval or save_interval < 1:
        return []
    total = config.get({EPOCH: "epochs", ITERATION: "iterations"}.get(unit or "", ""))
    if total and save_interval >= total:
        return [
            f"checkpoints: only at the end, after {total} {unit}s; a stop or a fault before costs"
            " all of the training. checkpoint_every in the job, or -e checkpoint_every=15m, sets"
            " an interval"
        ]
    length = seconds_of(unit, pace)
    if not pace or not length:
        return []
    seconds = save_interval * length
    line = (
        f"checkpoints: one about every {format_duration(seconds)} by the pace of {pace.run};"
        f" a fault costs about {format_duration(seconds / 2)} of training on average"
    )
    if pace.start is not None:
        line += f" and {format_duration(pace.start)} to the next step"
    if not pace.save:
        return [line]
    between = fault_hours * 3600 / devices
    best = max(length, math.sqrt(2 * pace.save * between))
    return [
        line,
        f"checkpoints: best about every {format_duration(best)}, where a save takes"
        f" {pace.save:.1f} s and {devices} devices have a fault in {format_duration(between)}",
    ]


def seconds_of(unit: str | None, pace: Pace | None) -> float | None:
    """Return the seconds of an epoch or an iteration, None where unknown."""
    if not pace:
        return None
    if unit == ITERATION:
        return pace.step
    if unit == EPOCH and pace.epoch_steps:
        return pace.step * pace.epoch_steps
    return None


def _name_of_key(suite: Mapping[str, Any]) -> str:
    """Return the option or the config key that sets the interval, '' where the suite has none."""
    for option, name in suite["argument_keys"].items():
        if name == suite_table.SAVE_INTERVAL:
            return str(option)
    return str(suite["config_keys"].get(suite_table.SAVE_INTERVAL) or "")


def _with_option(arguments: list[str], name: str, value: str) -> list[str]:
    """Return a script's arguments with one option's value in place of an earlier one."""
    kept, is_value = [], False
    for word in arguments:
        if is_value:
            is_value = False
        elif word == name:
            is_value = True
        elif not word.startswith(name + "="):
            kept.append(word)
    return [*kept, name, value]
