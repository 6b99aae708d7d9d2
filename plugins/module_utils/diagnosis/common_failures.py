# SPDX-License-Identifier: Apache-2.0
"""A failure that ranks have in common, such as a wrong option of the job or a missing module.

Each of them has the error of its own, so that the one which ended first is no more to blame than
the others.
"""

from __future__ import annotations

import typing

from .candidates import signature
from .weights import DECIDES
from .wording import is_blamed


def find_common(
    candidates: list[dict[str, typing.Any]], plan_ranks: list[dict[str, typing.Any]]
) -> list[dict[str, typing.Any]]:
    """Return the candidates that failed as the first one did, or [] where no failure is common.

    candidates: of an attempt, the heaviest one first. plan_ranks: the plan's `ranks`. A failure is
    common where ranks of several nodes have it. On one node all ranks must have it, since a node's
    launcher ends its other ranks.
    """
    first = candidates[0]
    same = [c for c in candidates if _tells_own_error(c) and signature(c) == signature(first)]
    others = [c for c in candidates if c not in same and c["weight"] >= DECIDES]
    planned = {rank["node"] for rank in plan_ranks}
    is_common = len({c["node"] for c in same}) > 1
    if len(planned) == 1:
        is_common = len(same) == len(plan_ranks) > 1
    if others or not is_common:
        return []
    return same


def _tells_own_error(candidate: dict[str, typing.Any]) -> bool:
    """Return whether a rank's own log says why it ended, and blames no other rank."""
    error = candidate["error"]
    if candidate["rank"] is None or not error or error["grade"] != "primary":
        return False
    return is_blamed(candidate) and (candidate["weight"] >= DECIDES or bool(error.get("closing")))
