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


def judge(arguments: dict[str, Any]) -> Findings:
    """Return what was found of the results."""
    return JUDGES[arguments["kind"]](arguments["plan"], arguments["results"], arguments["allowed"])


def is_kept(arguments: dict[str, Any], proof_findings: Findings) -> bool:
    """Return whether a proof is good for a while: it was whole and decided."""
    undecided = arguments["kind"] == "rehearsal" and any(
        item["level"] == "warn" for item in proof_findings
    )
    return not findings.stops(proof_findings) and not undecided and arguments["depth"] == "full"


def keep(arguments: dict[str, Any], proof_findings: Findings) -> Findings:
    """Keep a proof and return what was found, and that it could not be kept."""
    kind = arguments["kind"]
    key = proof_cache.proof_keys(arguments["plan"], arguments["facts"], arguments["allowed"])[kind]
    try:
        proof_cache.save_proof(
            arguments["state_dir"], kind, key, time.time(), {"findings": proof_findings}
        )
    except OSError as error:  # what was proven is proven; it is only not remembered
        text = f"cannot be kept, and is repeated next time: {error}"
        return [*proof_findings, findings.finding("proof.not_kept", text, "", (), "warn")]
    return proof_findings


def note_skipped_rehearsal(nodes: list[str]) -> Findings:
    """Return the note that these nodes do not rehearse on a broken network, [] without nodes."""
    if not nodes:
        return []
    text = "not rehearsed, because of what was found of the network"
    return [findings.finding("rehearsal.not_tried", text, "", (), "note")]


def lines_of(proof_findings: Findings) -> list[str]:
    """Return the findings as a table for people."""
    return [printable(line) for line in findings.lines(proof_findings)]
