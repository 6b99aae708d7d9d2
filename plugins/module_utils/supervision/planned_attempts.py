# SPDX-License-Identifier: Apache-2.0
"""Plans of the attempts that a run's nodes begin themselves, as its controller compiled them."""

from __future__ import annotations

import json
import os

from ..attempts import supervisor_order as orders
from ..plan import next_plan, plan_bytes


def plan_text(place, point):
    """Return the bytes of the next attempt's plan as text. point: None to begin anew."""
    if point is None:
        with open(os.path.join(place, orders.FRESH), encoding="ascii") as handle:
            return handle.read()
    with open(os.path.join(place, orders.TEMPLATE), encoding="ascii") as handle:
        template = json.loads(handle.read())
    return plan_bytes.canonical_bytes(next_plan.fill(template, point)).decode("ascii")
