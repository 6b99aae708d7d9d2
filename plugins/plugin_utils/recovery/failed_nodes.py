# SPDX-License-Identifier: Apache-2.0
"""The nodes of a site that failed lately.

They are kept in a small file below the site's state directory, shared by all its runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_json,
    write_json,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.locks import lock_file

NAME = "failed-nodes.json"
VERSION = 1
KEPT_SECONDS = 30 * 86400


def file_path(state_dir: str) -> str:
    """Return the path of the file."""
    return os.path.join(state_dir, NAME)


def read(state_dir: str) -> dict[str, dict[str, Any]]:
    """Return {node: {time, cause, run}} of the nodes that failed lately.

    It is {} where nothing was noted. A damaged entry counts as nothing: it only spares a node a
    rest.
    """
    document = read_json(file_path(state_dir))
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), dict):
        return {}
    return {
        name: entry
        for name, entry in document["nodes"].items()
        if isinstance(entry, dict) and type(entry.get("time")) in (int, float)
    }


def note(state_dir: str, causes: Mapping[str, str], run: str, now: float) -> None:
    """Note nodes that failed.

    causes: {node: cause}. run: its id. now: the time of the failure, in unix seconds. Of two notes
    of one node the one that failed later stays.
    """
    with _lock(state_dir):
        nodes = {
            name: entry
            for name, entry in read(state_dir).items()
            if now - entry["time"] < KEPT_SECONDS
        }
        for name, cause in causes.items():
            if name not in nodes or nodes[name]["time"] <= now:
                nodes[name] = {"time": now, "cause": cause, "run": run}
        write_json(file_path(state_dir), {"version": VERSION, "nodes": nodes})


@contextlib.contextmanager
def _lock(state_dir: str) -> Iterator[None]:
    """Hold the file's lock.

    Two runs of a site may end at once, each with a note of its own.
    """
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    with lock_file(file_path(state_dir) + ".lock"):
        yield
