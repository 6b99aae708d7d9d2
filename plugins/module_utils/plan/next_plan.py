# SPDX-License-Identifier: Apache-2.0
"""The plan of an attempt that the nodes begin themselves. Pure.

The controller compiles it once, from a checkpoint that stands for any (PLACEHOLDER). A node puts
the real one in. So all nodes have the same bytes, and a node decides nothing about the command,
the environment or the code.
"""

from __future__ import annotations

import hashlib
import re

from ..checkpoints import finder
from . import resume_inputs

# No file has this digest, and no checkpoint this name.
_DIGEST = hashlib.sha256(b"Trainyard: the checkpoint that a node puts in").hexdigest()
_STEM = "trainyard-resume-point"
PLACEHOLDER = {
    "attempt": 0,
    "name": _STEM,
    "stem": _STEM,
    "digest": _DIGEST,
    "epoch": None,
    "step": None,
    "lr": None,
    "note": "",
}


# Names that every suite's configuration and every launcher take as they are.
_NAME = re.compile(r"[A-Za-z0-9._+=@-]{1,200}\Z")


def fill(template, point):
    """Return the plan that resumes from a point.

    template: the plan that was compiled from PLACEHOLDER. point: as a node's finder describes it.
    Raises ValueError for a point from which the compiler would make no plan.
    """
    for key in ("name", "stem"):
        if not _NAME.match(point[key]):
            raise ValueError(f"the checkpoint's {key} {point[key]!r} needs a controller")
    ends = {"epoch": template.get("epochs"), "step": template["settings"].get("iterations")}
    if any(end and (point[key] or 0) >= end for key, end in ends.items()):
        raise ValueError(f"{point['name']} is the end of the training: nothing is left to train")
    short = resume_inputs.SHORT
    pairs = ((_DIGEST[:short], point["digest"][:short]), (_STEM, point["stem"]))
    before = template["resume"]
    plan = _replace({**template, "resume": None, "notes": []}, pairs)
    record = {key: point[key] for key in resume_inputs.RECORDED_KEYS}
    if record["lr"] is None:
        record["lr"] = before["lr"]
    plan["resume"] = dict(record, unresumed=before["unresumed"])
    described = finder.describe_point(before)
    plan["notes"] = [
        note.replace(described, finder.describe_point(record)) for note in template["notes"]
    ]
    return plan


def _replace(value, pairs):
    """Return a JSON value with each pair's first text replaced by its second, in keys as well."""
    if isinstance(value, str):
        for old, new in pairs:
            value = value.replace(old, new)
        return value
    if isinstance(value, list):
        return [_replace(item, pairs) for item in value]
    if isinstance(value, dict):
        return {_replace(key, pairs): _replace(item, pairs) for key, item in value.items()}
    return value
