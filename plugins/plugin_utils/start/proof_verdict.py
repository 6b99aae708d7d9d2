# SPDX-License-Identifier: Apache-2.0
"""The judgement of what nodes have proven of network or plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.rehearsal import outcome

from ..network import reachability
from ..preflight import proof_cache

Findings = list[dict[str, Any]]
JUDGES: dict[str, Callable[[Any, Any, Any], Findings]] = {
    "network": reachability.judge,
    "rehearsal": outcome.judge,
}


def judge(given: dict[str, Any]) -> Findings:
    """Return what was found of the results."""
    return JUDGES[given["kind"]](given["plan"], given["results"], given["allowed"])


def is_kept(given: dict[str, Any], found: Findings) -> bool:
    """Return whether a proof is good for a while: it was whole and decided."""
    undecided = given["kind"] == "rehearsal" and any(item["level"] == "warn" for item in found)
    return not findings.stops(found) and not undecided and given["depth"] == "full"


def keep(given: dict[str, Any], found: Findings) -> Findings:
    """Keep a proof and return what was found, and that it could not be kept."""
    kind = given["kind"]
    key = proof_cache.proof_keys(given["plan"], given["facts"], given["allowed"])[kind]
    try:
        proof_cache.save_proof(given["state_dir"], kind, key, time.time(), {"findings": found})
    except OSError as error:  # what was proven is proven; it is only not remembered
        text = f"cannot be kept, and is repeated next time: {error}"
        return [*found, findings.finding("proof.not_kept", text, "", (), "warn")]
    return found


def note_skipped_rehearsal(nodes: list[str]) -> Findings:
    """Return the note that these nodes do not rehearse on a broken network, [] without nodes."""
    if not nodes:
        return []
    text = "not rehearsed, because of what was found of the network"
    return [findings.finding("rehearsal.not_tried", text, "", (), "note")]


def lines_of(found: Findings) -> list[str]:
    """Return the findings as a table for people."""
    return [printable(line) for line in findings.lines(found)]
