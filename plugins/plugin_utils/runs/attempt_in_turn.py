# SPDX-License-Identifier: Apache-2.0
"""The attempt that is collected next, of a run that its nodes restart themselves.

Nobody may have followed the earlier ones. They are collected one after the other, so that the
record has the logs and the verdict of each.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Collection, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_choice, run_json


def choose(
    runs_dir: str,
    site: Collection[str],
    choice: dict[str, Any],
    answers: Mapping[str, dict[str, Any]],
    after: int,
) -> dict[str, Any]:
    """Return the choice with the number and the nodes of the oldest attempt without a verdict here.

    site: names of the inventory's nodes. choice: of run_choice.choose, with the newest attempt.
    answers: {node: its status}. after: the attempt that was collected last. A run that a controller
    restarts keeps its choice. The result's `later` says whether the nodes have begun another
    attempt after the one chosen.
    """
    claims = {
        node: status
        for node, status in answers.items()
        if run_choice.is_sound(status, choice["run"]) and status.get("supervised")
    }
    record = run_json.read(os.path.join(runs_dir, choice["run"])) or {"attempts": []}
    waiting = [
        number
        for number in _known_attempts(claims)
        if after < number < choice["number"]
        and not run_json.attempt_entry(record, number)["verdict"]
    ]
    if not waiting:
        return dict(choice, later=False)
    number = waiting[0]
    teams = {
        node: {"attempt": number, "nodes": team["nodes"]}
        for node, status in claims.items()
        for team in status["supervised"]["teams"]
        if team["attempt"] == number
    }
    nodes = run_choice.attempt_nodes(runs_dir, site, teams, choice["run"], number)
    return dict(choice, number=number, nodes=nodes, later=True)


def _known_attempts(claims: Mapping[str, dict[str, Any]]) -> list[int]:
    """Return in order the attempts that a node has started and more than half of the nodes know of.

    An attempt that was started on no node has left nothing to collect. The nodes may have agreed on
    it, and given it up for another one.
    """
    counts = collections.Counter(
        number
        for status in claims.values()
        for number in {team["attempt"] for team in status["supervised"]["teams"]}
    )
    kept = {number for status in claims.values() for number in status["begun"]}
    return sorted(number for number in kept if 2 * counts[number] > len(claims))
