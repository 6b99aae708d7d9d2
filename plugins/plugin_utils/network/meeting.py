# SPDX-License-Identifier: Apache-2.0
"""Meetings of the workers of one task, in a directory of their ansible-playbook.

Each node has a worker of its own. Each says something and waits until all have, or for so long.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_mapping,
    replace_file,
)

# What one node says: the gate lets through no longer answer.
MOST_BYTES = 64 << 20
_LOOK_SECONDS = 0.02


class Meeting:
    """One meeting. folder: of this meeting alone. names: the nodes."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self._folder, self._names = folder, list(names)
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def say(self, name: str, what: dict[str, Any]) -> None:
        """Say something for a node. Raises ValueError for one that is not expected."""
        replace_file(self._path(name), json.dumps(what), sync=False)

    def hear(self, seconds: float) -> dict[str, Any]:
        """Return {node: what it said} of all, after so many seconds of those that have spoken.

        The worker ends with its ansible-playbook.
        """
        until, parent = time.monotonic() + seconds, os.getppid()
        missing = list(self._names)
        while missing and time.monotonic() < until:
            if os.path.exists(self._path(missing[0])):
                missing.pop(0)
                continue
            if os.getppid() != parent:
                os._exit(1)
            time.sleep(_LOOK_SECONDS)
        missing = [name for name in missing if not os.path.exists(self._path(name))]
        said = [name for name in self._names if name not in missing]
        return {name: read_mapping(self._path(name), MOST_BYTES) for name in said}

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, str(self._names.index(name)))
