# SPDX-License-Identifier: Apache-2.0
"""Runs in the controller's record that may be on their way to the nodes."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import restart_policy


def pending_runs(runs_dir: str, run_id: str, site: str | None = None) -> dict[str, Any]:
    """Return {known, number, nodes, waiting} of a run.

    It is what the controller that started it knows. Its newest attempt may be on its way to the
    nodes. Without a run: waiting, [[run, number of its next attempt, nodes]] of the site's runs
    whose restart may wait. `number` is the attempt in whose place the note lies.
    """
    result: dict[str, Any] = {"known": False, "number": 1, "nodes": [], "waiting": []}
    if not run_id:
        return dict(result, waiting=_waiting(runs_dir, site))
    attempt_dir.check_run_id(run_id)
    number, plan = _newest(os.path.join(runs_dir, run_id))
    nodes = _nodes(plan)
    return dict(result, known=bool(nodes), number=number or 1, nodes=nodes)


def _newest(run_dir: str) -> tuple[int, dict[str, Any]]:
    """Return (number, plan) of a run's newest attempt, (0, {}) for none.

    It is the newest one that the controller has.
    """
    number = max(run_json.attempt_numbers(run_dir), default=0)
    if not number:
        return 0, {}
    return number, run_json.read_plan(run_dir, number) or {}


def _nodes(plan: dict[str, Any]) -> list[str]:
    """Return the names of a plan's nodes."""
    return [
        str(node["name"])
        for node in plan.get("nodes") or ()
        if isinstance(node, dict) and "name" in node
    ]


def _waiting(runs_dir: str, site: str | None) -> list[list[Any]]:
    """Return [[run, number of its next attempt, nodes]] of runs that may wait.

    They are a site's, the newest first.
    """
    if not os.path.isdir(runs_dir):
        return []
    waiting = []
    for run_id in sorted(os.listdir(runs_dir), reverse=True):
        run_dir = os.path.join(runs_dir, run_id)
        if not attempt_dir.RUN_ID.match(run_id) or os.path.islink(run_dir):
            continue
        # a record that is damaged, or a newer Trainyard's, keeps nothing from being stopped
        with contextlib.suppress(AttributeError, KeyError, OSError, TypeError, ValueError):
            record, (number, plan) = run_json.read(run_dir), _newest(run_dir)
            if (
                record
                and plan.get("site") == site
                and restart_policy.is_pending(record, time.time())
            ):
                waiting.append([run_id, number + 1, _nodes(plan)])
    return waiting
