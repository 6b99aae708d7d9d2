# SPDX-License-Identifier: Apache-2.0
"""The runs that the controller keeps, as pruning sees them."""

from __future__ import annotations

import contextlib
import glob
import os
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_mapping
from ansible_collections.trainyard.cluster.plugins.module_utils.base.locks import is_locked
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import model_collector
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import prune_scan


def describe_run(runs_dir: str, name: str, held: dict[str, str]) -> dict[str, Any]:
    """Return the entry of a run on the controller.

    held: {run id: why} of what is in use there.
    """
    folder = os.path.join(runs_dir, name)
    plan = read_mapping(os.path.join(folder, "plan.json"))
    record = read_mapping(os.path.join(folder, "run.json"))
    if not plan or record.get("run") != name:
        return dict(
            prune_scan.empty_entry(name, held), odd="has no plan.json and run.json of its own"
        )
    attempts = prune_scan.find_attempts(folder)
    checkpoint = prune_scan.find_checkpoint(plan, attempts, [model_collector.PLACE])
    return dict(
        prune_scan.empty_entry(name, held),
        **prune_scan.describe_plan(plan),
        checkpoint=checkpoint,
        **_describe_record(record),
    )


def _describe_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return {settled, completed, begun} of a run by its run.json.

    A restart that waits begins with the end of the attempt before it.
    """
    tried = [item for item in record.get("attempts") or [] if isinstance(item, dict)]
    newest: dict[str, Any] = {}
    if tried:
        newest = tried[-1]
    verdict = newest.get("verdict") or {}
    outcome = verdict.get("outcome")
    again = newest.get("again")
    waits = isinstance(again, dict) and bool(again.get("again"))
    begins = [prune_scan.number_or_none(item.get("started")) for item in [record, *tried]]
    if waits:
        begins.append(prune_scan.number_or_none(newest.get("ended")))
    is_judged = outcome and not verdict.get("unreachable") and outcome not in ("unknown", "lost")
    return {
        "settled": bool(is_judged) and not waits,
        "completed": outcome == "completed",
        "begun": max([0, *(begin for begin in begins if begin is not None)]),
    }


def held_runs(runs_dir: str) -> dict[str, str]:
    """Return {run id: why} of the runs whose logs are being collected now.

    A stream or a collection holds its lock (stream_lock.py).
    """
    held = {}
    for path in glob.glob(os.path.join(glob.escape(runs_dir), "*", "attempt-*", ".stream.*")):
        with contextlib.suppress(OSError):
            if is_locked(path):
                run_id = os.path.relpath(path, runs_dir).split(os.sep)[0]
                held[run_id] = "its logs are being copied"
    return held
