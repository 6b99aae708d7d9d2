# SPDX-License-Identifier: Apache-2.0
"""Whether a plan at home is one that this controller has made or examined. Controller only.

The patterns in a plan are run here over logs of any size. An older Trainyard has put a node's plan
in the place of the controller's own, and a node's patterns could run for hours; so a plan of
another origin is read with the shipped ones.
"""

from __future__ import annotations

import hashlib
import os

from ..suites import suite_table

# In an attempt's directory at home: the sha256 of the plan that was taken from the nodes, with the
# shipped patterns. No file of a node has that name.
MARK = ".plan.sha256"


def ours(data, record, number, attempt_dir):
    """Whether plan.json's bytes are those that run.json has recorded at an attempt's start, or
    those that were examined (MARK).
    """
    record = record if isinstance(record, dict) else {}
    known = [
        item
        for item in record.get("attempts") or ()
        if isinstance(item, dict) and item.get("number") == number
    ]
    digests = [item.get("plan_sha256") for item in known] + (
        [record.get("plan_sha256")] if len(known) < 2 else []
    )
    try:
        place = os.open(
            os.path.join(attempt_dir, MARK),
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
        )
        with os.fdopen(place, "rb") as handle:
            digests.append((handle.read(64) or b"").decode("ascii", "replace"))
    except OSError:
        pass
    return hashlib.sha256(data).hexdigest() in digests


def with_shipped_patterns(plan, folder=None):
    """Return a plan whose suite's lines look as the shipped table of that name says; as nothing,
    where there is no such table.

    folder: the tables' own, where this file travels without them.
    """
    suite = plan.get("suite") if isinstance(plan.get("suite"), dict) else {}
    folder, logs = folder or suite_table.FOLDER, {}
    name = "{}.yml".format(suite.get("name"))
    if os.path.isdir(folder) and name in os.listdir(folder):
        import yaml  # what runs without the tables may run without PyYAML

        with open(os.path.join(folder, name), encoding="utf-8") as handle:
            logs = yaml.safe_load(handle)["logs"]
    return dict(plan, suite=dict(suite, logs=logs, resume={}))
