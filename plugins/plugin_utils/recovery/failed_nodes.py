# SPDX-License-Identifier: Apache-2.0
"""The nodes of a site that failed lately.

They are kept in a small file below the site's state directory, shared by all its runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.states import Outcome
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_json,
    write_json,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.locks import lock_file

NAME = "failed-nodes.json"
VERSION = 1
KEPT_SECONDS = 30 * 86400
# What a node, its devices or its network did, by the causes of a verdict (failure_catalogue/):
# another node would not have failed. What a user wrote, what ran out (memory, disk, limits) and
# what was killed says nothing of the machine. A kernel or a library that failed on a device is no
# evidence against it.
CAUSES = (
    "device_error",
    "node_lost",
    "no_end_recorded",
    "read_only",
    "unreachable",
)


def culprits(verdict: Mapping[str, Any], nodes: Collection[str]) -> dict[str, str]:
    """Return {node: cause} of the nodes that failed by a fault of their own.

    verdict: of the attempt (verdict.Verdict). nodes: the attempt's. Those that did not answer are
    among them whatever else is known. Where none answered, it may be the controller that was cut
    off, and the result is {}.
    """
    if verdict.get("outcome") not in (Outcome.FAILED, Outcome.LOST):
        return {}
    silent = [name for name in verdict.get("unreachable") or [] if name in nodes]
    causes = {}
    if not set(nodes) <= set(silent):
        causes = {name: "unreachable" for name in silent}
    cause, node = verdict.get("cause"), verdict.get("node")
    if cause in CAUSES and node in nodes and (causes or cause != "unreachable"):
        causes[node] = cause
    return causes


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
