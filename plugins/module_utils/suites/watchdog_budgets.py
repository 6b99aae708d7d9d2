# SPDX-License-Identifier: Apache-2.0
"""Budgets of a training's phases without a sign of life: the key `watchdog`.

agent/guard.py on the nodes compares the phases with the ranks' own log lines
(docs/runbooks/watchdog.md).
"""

from __future__ import annotations

import re

from ..base.value_text import abbreviate

PHASES = ("rendezvous", "first_step", "step", "evaluation", "checkpoint")
# Seconds. The first step contains imports, reading of data and the compilation of graphs. An
# evaluation whose log grows is alive.
DEFAULTS = {
    "rendezvous": 600,
    "first_step": 1800,
    "step": 600,
    "evaluation": 1800,
    "checkpoint": 600,
}
UNITS = {"s": 1, "m": 60, "h": 3600}
LEAST, MOST = 5, 7 * 24 * 3600
_TIME = re.compile(r"([1-9][0-9]{0,5})([smh])\Z")


def parse_seconds(value):
    """Return a phase's budget in seconds from `90s`, `10m` or `2h`; None for `off`.

    YAML reads `off` as false. Raise ValueError with a message for users.
    """
    if value is False or value == "off":
        return None
    match = None
    if isinstance(value, str):
        match = _TIME.match(value)
    if not match:
        raise ValueError(
            f"must be a time with its unit such as 90s, 10m or 2h, or off; got {abbreviate(value)}"
        )
    budget = int(match.group(1)) * UNITS[match.group(2)]
    if not LEAST <= budget <= MOST:
        raise ValueError(f"must be from 5s to 168h, or off; got {value}")
    return budget


def problems(value):
    """Yield (key path, text) of problems that the job's schema cannot find.

    The key path is below `watchdog`.
    """
    if not isinstance(value, dict):
        return
    for phase, budget in value.items():
        if phase in PHASES:
            try:
                parse_seconds(budget)
            except ValueError as error:
                yield (phase,), str(error)


def budgets(value, suite):
    """Return the plan's `watchdog`: {phase: seconds or None} and `set`.

    None stands for a phase that is not watched. `set`: the phases that the job itself gives.

    value: the job's key, valid or None. suite: its table. Where a suite may print its first line
    only after a whole epoch (a second pattern of step lines says so), the time of that is unknown.
    Then the first step is not watched unless the job gives its budget.
    """
    if value is False or value == "off":
        return dict(dict.fromkeys(PHASES), set=sorted(PHASES))
    defaults = dict(DEFAULTS)
    lines = ((suite.get("logs") or {}).get("step") or {}).get("line")
    if isinstance(lines, list) and len(lines) > 1:
        defaults["first_step"] = None
    given = {phase: parse_seconds(item) for phase, item in (value or {}).items()}
    return dict(defaults, **given, set=sorted(given))
