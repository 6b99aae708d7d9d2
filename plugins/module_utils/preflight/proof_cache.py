# SPDX-License-Identifier: Apache-2.0
"""What was proven of a site and when, kept on the controller below the site's state directory.
Functions of files and plain values.

A proof is of a key: the sha256 of everything it depends on. A node that has booted since has
another boot mark, and so another key.
"""

from __future__ import annotations

import hashlib
import json
import os

from ..base import manifest
from ..plan import compiler

KINDS = ("network", "rehearsal")
# Proofs are small; those that nobody asks for any more go when there are more than so many.
KEPT = 200


def _digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8")).hexdigest()


def keys(made, facts, allowed=None):
    """Return {kind: key} for a plan: the network's depends on nodes, addresses and ports, the
    rehearsal's on the whole plan but for the checkpoint.

    allowed: what the site asks; another floor of the bandwidth, or all pairs instead of a ring, is
    another question to the network.
    """
    asked = {name: str((allowed or {}).get(name)) for name in ("bandwidth", "matrix")}
    boots = {node["name"]: facts[node["name"]].get("boot") for node in made["nodes"]}
    wires = [[node["name"], node["address"], node["interface"]] for node in made["nodes"]]
    # A Python of the user's own is no part of the plan: what it holds now is.
    # What a run goes on from changes nothing that a rehearsal tries.
    digest = made["resume"]["unresumed"] if made.get("resume") else compiler.sha256(made)
    own = {node["name"]: _own(facts[node["name"]].get("installed") or {}) for node in made["nodes"]}
    return {
        "network": _digest([wires, made["ports"], boots, asked]),
        "rehearsal": _digest([digest, boots, own]),
    }


def _own(installed):
    """Return what a rehearsal depends on of a Python of the user's own and of the node's libraries;
    how long the look took is no part of it.
    """
    state = installed.get("own") or {}
    return [
        {
            name: state.get(name)
            for name in ("python", "packages", "builds", "frameworks", "wrong", "error")
        },
        installed.get("libraries"),
    ]


def path_of(state_dir, kind, key):
    """Return where a proof is kept."""
    return os.path.join(state_dir, "proofs", f"{kind}-{key[:32]}.json")


def valid(state_dir, kind, key, hours, now):
    """Return a proof that is no older than so many hours, or None."""
    kept = manifest.read_json(path_of(state_dir, kind, key))
    if (
        not isinstance(kept, dict)
        or kept.get("key") != key
        or not isinstance(kept.get("time"), (int, float))
    ):
        return None
    return kept if now - hours * 3600 < kept["time"] <= now else None


def keep(state_dir, kind, key, now, result):
    """Keep a proof; result: what is worth showing of it."""
    folder = os.path.join(state_dir, "proofs")
    manifest.write_json(path_of(state_dir, kind, key), {"key": key, "time": now, "result": result})
    files = sorted(
        (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")),
        key=os.path.getmtime,
    )
    for path in files[:-KEPT]:
        os.unlink(path)
