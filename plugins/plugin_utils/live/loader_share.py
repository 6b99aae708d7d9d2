# SPDX-License-Identifier: Apache-2.0
"""The data loader's share of the time of a step, over a rank's logged steps in a row. Pure.

A suite's table of its log gives `data_cost` and `batch_cost`, both in seconds: how long a step
waited for its batch, and how long it took with that wait. The line of a step may hold the mean of
the steps since the line before.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping
from typing import Any

# A step waits for its batch too long where the wait is more than this share of it.
LIMIT = 0.5
# The loader counts as the bottleneck after so many such steps in a row.
STEPS = 10
# The share that is shown is the median of the latest steps.
LATEST = 20


class LoaderShare:
    """What one rank's log says of its data loader.

    count: the logged steps in a row that waited too long.
    """

    def __init__(self) -> None:
        self.count = 0
        self._epoch: Any = None
        self._is_first = True
        self._shares: collections.deque[float] = collections.deque(maxlen=LATEST)

    def see(self, step: Mapping[str, Any]) -> None:
        """Add the record of a new step."""
        begins = self._is_first or step.get("epoch") != self._epoch
        self._epoch, self._is_first = step.get("epoch"), False
        if begins:
            # The workers of the loader start with an epoch, so its first step says nothing.
            return
        share = share_of(step)
        if share is None or share <= LIMIT:
            self.count = 0
            self._shares.clear()
            return
        self.count += 1
        self._shares.append(share)

    def bottleneck(self) -> float | None:
        """Return the usual share of the latest steps if the loader is the bottleneck, else None."""
        if self.count < STEPS:
            return None
        return statistics.median(self._shares)


def share_of(step: Mapping[str, Any]) -> float | None:
    """Return the loader's share of a step, 0 to 1, or None where the line does not say it."""
    wait, whole = _number(step.get("data_cost")), _number(step.get("batch_cost"))
    if wait is None or whole is None or whole <= 0 or wait < 0:
        return None
    return min(1.0, wait / whole)


def _number(value: Any) -> float | None:
    """Return a value as a float, None for what is not a number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None
