# SPDX-License-Identifier: Apache-2.0
"""Notes of the workers of one wait for each other, in a directory of their ansible-playbook.

Each node has a worker of its own. The first node's worker leads: it draws the ticket and decides.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_mapping,
    replace_file,
)

from .turn import Look, Looks


class Board:
    """The directory, with a look for each node, the ticket and the end of the wait."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self._folder, self._names = folder, list(names)
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def post_look(self, name: str, look: Look) -> None:
        """Replace the look at a node."""
        self._write(f"look-{self._names.index(name)}", dict(look))

    def looks(self) -> Looks | None:
        """Return {node: look}, None while one is missing."""
        found = {name: self._read(f"look-{index}") for index, name in enumerate(self._names)}
        if not all(found.values()):
            return None
        return {name: Look(**look) for name, look in found.items()}  # type: ignore[typeddict-item]

    def post_ticket(self, token: str, since: float) -> None:
        """Keep the ticket that was drawn. since: unix seconds by the first node's clock."""
        self._write("ticket", {"token": token, "since": since})

    def ticket(self) -> dict[str, Any]:
        """Return {token, since}, {} before the draw."""
        return self._read("ticket")

    def post_end(self, kind: str) -> None:
        """End the wait of all workers."""
        self._write("end", {"kind": kind})

    def end(self) -> str:
        """Return how the wait ended, '' while it goes on."""
        return str(self._read("end").get("kind", ""))

    def _write(self, name: str, value: dict[str, Any]) -> None:
        replace_file(os.path.join(self._folder, name), json.dumps(value), sync=False)

    def _read(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = read_mapping(os.path.join(self._folder, name))
        return content
