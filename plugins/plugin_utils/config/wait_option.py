# SPDX-License-Identifier: Apache-2.0
"""The value of -e wait: how long a start waits for nodes that are held."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import abbreviate

from .switch import parse_switch

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LIMIT = re.compile(r"([1-9][0-9]{0,5})([smhd])\Z")
# The verbs that start an attempt.
VERBS = ("train", "resume")


def value_problem(value: Any) -> str | None:
    """Say why a value is no limit of a wait, or return None."""
    if parse_switch(value) is None and not _LIMIT.match(str(value)):
        return f"must be a time with its unit, 90s, 30m, 2h or 1d, or yes; got {abbreviate(value)}"
    return None


def time_problem(value: Any) -> str | None:
    """Say why a value is no time with its unit, or return None."""
    if is_time(value):
        return None
    return f"must be a time with its unit, such as 90s, 15m, 2h or 1d; got {abbreviate(value)}"


def limit_of(value: Any) -> float | None:
    """Return the longest wait in seconds for a valid value, None for no limit."""
    if not is_time(value):
        return None
    return seconds_of(value)


def seconds_of(value: Any) -> float:
    """Return the seconds of a time with its unit."""
    text = str(value)
    return float(text[:-1]) * _UNITS[text[-1]]


def is_time(value: Any) -> bool:
    """Return whether a value is a time with its unit."""
    return bool(_LIMIT.match(str(value)))


def is_on(value: Any) -> bool:
    """Return whether a valid value asks for a wait."""
    return parse_switch(value) is not False
