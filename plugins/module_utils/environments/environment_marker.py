# SPDX-License-Identifier: Apache-2.0
"""The marker of an environment: a file that is written when all else is there."""

from __future__ import annotations

import json
import os

from ..base.files import replace_file
from .python_env import MARKER


def write_marker(home, marker):
    """Put an environment's marker in place at once and for good."""
    target = os.path.join(home, "env", marker["digest"])
    os.makedirs(target, mode=0o700, exist_ok=True)
    path = os.path.join(target, MARKER)
    replace_file(path, json.dumps(marker, indent=1, sort_keys=True), mode=0o644)
