# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a site failed lately: a small file below the site's state directory, shared by all
its runs. Controller only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from ..base import manifest

NAME = "failed-nodes.json"
VERSION = 1
KEPT_SECONDS = 30 * 86400
# What a node, its devices or its network did, by the causes of a verdict (causes.py): another node
# would not have failed. What a user wrote, what ran out (memory, disk, limits) and what was killed
# says nothing of the machine.
CAUSES = (
    "device_error",
    "nccl_cuda_error",
    "node_lost",
    "no_end_recorded",
    "read_only",
    "unreachable",
)


def named(verdict, nodes):
    """Return {node: cause} of the nodes that a verdict names for a fault of their own.

    verdict: as verdict.py makes it. nodes: the attempt's. Those that did not answer are named
    whatever else is found; where none did, it may be the controller that was cut off, and nobody is
    named.
    """
    if verdict.get("outcome") not in ("failed", "lost"):
        return {}
    silent = [name for name in verdict.get("unreachable") or [] if name in nodes]
    found = {} if set(nodes) <= set(silent) else {name: "unreachable" for name in silent}
    if (
        verdict.get("cause") in CAUSES
        and verdict.get("node") in nodes
        and not (verdict["cause"] == "unreachable" and not found)
    ):
        found[verdict["node"]] = verdict["cause"]
    return found


def path_of(state_dir):
    """Return where the memory lies."""
    return os.path.join(state_dir, NAME)


def read(state_dir):
    """Return {node: {time, cause, run}}; {} where nothing was noted. What is damaged counts as
    nothing: it only spares a node a rest.
    """
    kept = manifest.read_json(path_of(state_dir))
    nodes = kept.get("nodes") if isinstance(kept, dict) else None
    sound = nodes if isinstance(nodes, dict) else {}
    return {
        name: entry
        for name, entry in sound.items()
        if isinstance(entry, dict) and type(entry.get("time")) in (int, float)
    }


def note(state_dir, causes, run, now):
    """Note nodes that failed: {node: cause}; run: its id. now: when, in unix seconds. Of two notes
    of one node the one that failed later stays.
    """
    with _alone(state_dir):
        nodes = {
            name: entry
            for name, entry in read(state_dir).items()
            if now - entry["time"] < KEPT_SECONDS
        }
        new = {
            name: cause
            for name, cause in causes.items()
            if name not in nodes or nodes[name]["time"] <= now
        }
        nodes.update(
            {name: {"time": now, "cause": cause, "run": run} for name, cause in new.items()}
        )
        manifest.write_json(path_of(state_dir), {"version": VERSION, "nodes": nodes})


@contextlib.contextmanager
def _alone(state_dir):
    """Two runs of a site may end at once, each with a note of its own."""
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    with os.fdopen(
        os.open(path_of(state_dir) + ".lock", os.O_RDWR | os.O_CREAT, 0o600), "r+"
    ) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
