# SPDX-License-Identifier: Apache-2.0
"""Values of JSON files that a node wrote, by type. Pure.

Nothing here raises: another type than expected counts as missing. `json.loads` accepts NaN and
Infinity, and whole numbers that no float can hold.
"""

from __future__ import annotations

from typing import Any

# What a JSON file holds, below its keys.
Json = dict[str, Any]
# No time, offset or count of a run is larger. Sums of such numbers stay finite.
LARGEST = float(1 << 63)


def mapping_of(value: object) -> Json:
    """Return a mapping, {} for any other type."""
    if isinstance(value, dict):
        return value
    return {}


def mappings_of(value: object) -> list[Json]:
    """Return the mappings in a list, [] for any other type."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


def finite_number(value: object) -> float | None:
    """Return a number as a float, None for any other value and beyond 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # NaN compares false.
    if -LARGEST <= value <= LARGEST:
        return float(value)
    return None
