# SPDX-License-Identifier: Apache-2.0
"""Nodes that a verdict names for a fault of their own. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..attempts.states import Outcome

# What a node, its devices or its network did, by the causes of a verdict (failure_catalogue/):
# another node would not have failed. What a user wrote, what ran out (memory, disk, limits) and
# what was killed says nothing of the machine. A kernel or a library that failed on a device is no
# evidence against it.
CAUSES = (
    "device_error",
    "node_lost",
    "no_end_recorded",
    "read_only",
    "unreachable",
)
# Those after which a node that answers again is as good as before.
AWAY = ("no_end_recorded", "node_lost", "unreachable")


def culprits(verdict: Mapping[str, Any], nodes: Collection[str]) -> dict[str, str]:
    """Return {node: cause} of the nodes that failed by a fault of their own.

    verdict: of the attempt (verdict.Verdict). nodes: the attempt's. Those that did not answer are
    among them whatever else is known. Where none answered, it may be the controller that was cut
    off, and the result is {}.
    """
    if verdict.get("outcome") not in (Outcome.FAILED, Outcome.LOST):
        return {}
    silent = [name for name in verdict.get("unreachable") or [] if name in nodes]
    causes = {}
    if not set(nodes) <= set(silent):
        causes = {name: "unreachable" for name in silent}
    cause, node = verdict.get("cause"), verdict.get("node")
    if cause in CAUSES and node in nodes and (causes or cause != "unreachable"):
        causes[node] = cause
    return causes
