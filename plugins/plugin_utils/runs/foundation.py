# SPDX-License-Identifier: Apache-2.0
"""The foundation of a verdict, and which of two verdicts on one attempt stays. Pure.

A later look may see less than an earlier one: a node is gone, its attempt was removed, or the
controller is cut off. It may also lack what only the earlier look could see: that a node did not
answer when the attempt ended.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.states import Outcome

Json = Mapping[str, Any]


class Foundation(enum.IntEnum):
    """What a verdict rests on, the weakest first."""

    NOTHING = 0  # no node answered, or nothing was started
    NO_END = 1  # a unit recorded no end, or still runs
    OPEN = 2  # all answers are there, and they leave open where it began
    SILENCE = 3  # a node did not answer while others did, or failures came too close to each other
    SEEN = 4  # a guard saw a hang, or a node that vanished
    ENDED = 5  # recorded ends of processes and their own errors, a stop, or a restarted node


_BY_CODE = {
    "verdict.completed": Foundation.ENDED,
    "verdict.untrained": Foundation.ENDED,
    "verdict.named": Foundation.ENDED,
    "verdict.common": Foundation.ENDED,
    "verdict.rank_missing": Foundation.ENDED,
    "verdict.endpoints": Foundation.ENDED,
    "verdict.stopped": Foundation.ENDED,
    "verdict.node_restarted": Foundation.ENDED,
    "verdict.device_failed": Foundation.SEEN,
    "verdict.hung": Foundation.SEEN,
    "verdict.node_lost": Foundation.SEEN,
    "verdict.unreachable": Foundation.SILENCE,
    "verdict.tied": Foundation.SILENCE,
    "verdict.undecided": Foundation.OPEN,
    "verdict.no_end_recorded": Foundation.NO_END,
    "verdict.not_started": Foundation.NOTHING,
}


def foundation_of(verdict: Json) -> Foundation:
    """Return what a verdict rests on. One of an earlier version, without a code, rests on nothing.

    A loss that names a pair of nodes accuses none of them, and leaves open what happened.
    """
    code = verdict.get("code")
    if code == "verdict.node_lost" and verdict.get("outcome") != Outcome.LOST:
        return Foundation.OPEN
    if code == "verdict.unreachable" and not verdict.get("node"):
        return Foundation.NOTHING
    return _BY_CODE.get(str(code), Foundation.NOTHING)


def keeps(earlier: Json | None, later: Json) -> bool:
    """Return whether an earlier verdict on an attempt stays in spite of a later one.

    A look that lost the answer of a node has to rest on more than the earlier one. A look that
    gained answers and lost none replaces what was decided without them, unless it leaves open where
    it began. Any other look has to rest on as much.
    """
    if not earlier:
        return False
    before, now = foundation_of(earlier), foundation_of(later)
    silent_before, silent_now = (set(item.get("unreachable") or ()) for item in (earlier, later))
    if silent_now - silent_before:
        return now <= before
    if silent_before - silent_now and now >= Foundation.SILENCE:
        return False
    return now < before


def merge_by_node(
    earlier: list[dict[str, Any]], later: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the later entries, and the earlier ones of nodes that have none now."""
    names = {item.get("node") for item in later}
    return [item for item in earlier if item.get("node") not in names] + later
