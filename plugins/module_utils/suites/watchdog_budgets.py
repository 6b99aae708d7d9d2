# SPDX-License-Identifier: Apache-2.0
"""How long each phase of a training may go without a sign of life: the job's key `watchdog`, its
defaults, and what the plan says of it. Pure.

guard.py on the nodes holds the phases against the ranks' own log lines (docs/runbooks/watchdog.md).
Controller only.
"""

from __future__ import annotations

import re

from ..base.yaml_source import shown

PHASES = ("rendezvous", "first_step", "step", "evaluation", "checkpoint")
# Seconds. The first step holds imports, reading of data and the compilation of graphs; an
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


def seconds(value):
    """Return a phase's budget in seconds from `90s`, `10m` or `2h`; None for `off`, which YAML
    reads as false. Raises ValueError in words.
    """
    if value is False or value == "off":
        return None
    match = _TIME.match(value) if isinstance(value, str) else None
    if not match:
        raise ValueError(
            f"must be a time with its unit such as 90s, 10m or 2h, or off; got {shown(value)}"
        )
    found = int(match.group(1)) * UNITS[match.group(2)]
    if not LEAST <= found <= MOST:
        raise ValueError(f"must be from 5s to 168h, or off; got {value}")
    return found


def problems(value):
    """Yield (key path below `watchdog`, what is wrong) that the job's schema does not say."""
    for phase, given in value.items() if isinstance(value, dict) else ():
        if phase in PHASES:
            try:
                seconds(given)
            except ValueError as error:
                yield (phase,), str(error)


def budgets(value, suite):
    """Return the plan's `watchdog`: {phase: seconds, or None where it is not watched} and `set`,
    the phases that the job itself gives.

    value: the job's key, sound or None. suite: its table. Where a suite may print its first line
    only after a whole epoch (a second pattern of step lines says so), nothing is known of how long
    that takes, and the first step is not watched unless the job says how long.
    """
    if value is False or value == "off":
        return dict(dict.fromkeys(PHASES), set=sorted(PHASES))
    found = dict(DEFAULTS)
    lines = ((suite.get("logs") or {}).get("step") or {}).get("line")
    if isinstance(lines, list) and len(lines) > 1:
        found["first_step"] = None
    given = {phase: seconds(item) for phase, item in (value or {}).items()}
    return dict(found, **given, set=sorted(given))
