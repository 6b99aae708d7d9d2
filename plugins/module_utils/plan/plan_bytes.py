# SPDX-License-Identifier: Apache-2.0
"""The bytes of a plan, by which all nodes have the same one."""

from __future__ import annotations

import hashlib
import json


def canonical_bytes(plan):
    """Return the plan's bytes: sorted keys, no spaces, one line.

    The sha256 of these bytes is the plan's digest.
    """
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode("ascii")


def sha256(plan):
    """Return the plan's digest (hex)."""
    return hashlib.sha256(canonical_bytes(plan)).hexdigest()
