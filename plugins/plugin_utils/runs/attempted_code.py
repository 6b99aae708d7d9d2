# SPDX-License-Identifier: Apache-2.0
"""The code that the attempts of a run were started with, as this controller has recorded it."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json

# {number, digest, commit, dirty, diff} of one attempt. diff: path of its local changes, or None.
AttemptedCode = dict[str, Any]


def read(runs_dir: str, run: str) -> list[AttemptedCode]:
    """Return the code of each attempt that is recorded, in the order of their numbers.

    run: a checked run id. Raises NewerRecord.
    """
    run_dir = os.path.join(runs_dir, run)
    record = run_json.read(run_dir) or {}
    rows = []
    for number in sorted(run_json.attempt_numbers(run_dir)):
        code = run_json.attempt_entry(record, number).get("code") if record else None
        if not code:
            code = _earlier_release(run_dir, number, record.get("code") or {})
        if code.get("digest"):
            rows.append(
                {
                    "number": number,
                    "digest": code["digest"],
                    "commit": code.get("commit"),
                    "dirty": code.get("dirty"),
                    "diff": _diff(run_dir, number),
                }
            )
    return rows


def _earlier_release(run_dir: str, number: int, newest: dict[str, Any]) -> dict[str, Any]:
    """Return the code of an attempt whose record has none.

    Its plan has the digest. The commit is known if the newest attempt had the same code.
    """
    plan = run_json.read_plan(run_dir, number) or {}
    digest = (plan.get("code") or {}).get("digest")
    if digest and digest == newest.get("digest"):
        return newest
    return {"digest": digest}


def _diff(run_dir: str, number: int) -> str | None:
    """Return the path of the local changes of an attempt, or None without changes."""
    folder = run_dir
    if number > 1:
        folder = os.path.join(run_dir, f"attempt-{number}")
    path = os.path.join(folder, "code.diff")
    try:
        return path if os.path.getsize(path) else None
    except OSError:
        return None
