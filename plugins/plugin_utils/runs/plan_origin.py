# SPDX-License-Identifier: Apache-2.0
"""The origin of a plan on the controller.

It is one that the controller has made or examined, or another. The patterns in a plan are run here
over logs of any size. An older Trainyard has put a node's plan in the place of the controller's
own, and a node's patterns could run for hours. So a plan of another origin is read with the shipped
ones.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from ..suites import suite_file

# In an attempt's directory on the controller: the sha256 of the plan that was taken from the nodes,
# with the shipped patterns. No file of a node has that name.
MARK = ".plan.sha256"


def is_trusted(data: bytes, record: Any, number: int, attempt_dir: str) -> bool:
    """Return whether plan.json's bytes are the controller's or examined.

    They are its own where run.json has recorded them at an attempt's start, and examined where MARK
    names them.
    """
    digests = _recorded_digests(record, number)
    try:
        descriptor = os.open(
            os.path.join(attempt_dir, MARK),
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
        )
        with os.fdopen(descriptor, "rb") as handle:
            digests.append((handle.read(64) or b"").decode("ascii", "replace"))
    except OSError:
        pass
    return hashlib.sha256(data).hexdigest() in digests


def _recorded_digests(record: Any, number: int) -> list[str | None]:
    """Return the digests that run.json has of an attempt's plan.

    The run's own digest counts, too, unless the record has several entries of the attempt.
    """
    if not isinstance(record, dict):
        return []
    entries = [
        item
        for item in record.get("attempts") or ()
        if isinstance(item, dict) and item.get("number") == number
    ]
    digests = [item.get("plan_sha256") for item in entries]
    if len(entries) < 2:
        digests.append(record.get("plan_sha256"))
    return digests


def with_shipped_patterns(plan: Mapping[str, Any], folder: str | None = None) -> dict[str, Any]:
    """Return a plan whose suite's lines look as the shipped table of that name says.

    Where there is no such table, no line has a meaning. folder: the tables' own, where this file
    travels without them.
    """
    suite = plan.get("suite")
    if not isinstance(suite, dict):
        suite = {}
    folder = folder or suite_file.FOLDER
    name = f"{suite.get('name')}.yml"
    patterns = {}
    if os.path.isdir(folder) and name in os.listdir(folder):
        import yaml  # what runs without the tables may run without PyYAML

        with open(os.path.join(folder, name), encoding="utf-8") as handle:
            patterns = yaml.safe_load(handle)["logs"]
    return dict(plan, suite=dict(suite, logs=patterns, resume={}))
