# SPDX-License-Identifier: Apache-2.0
"""Proofs of a site with their times, below its state directory.

The functions take files and plain values. A proof is of a key: the sha256 of everything it depends
on. A node that has booted since has another boot mark, and so another key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils import rehearsal
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_json,
    write_json,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler

KINDS = ("network", "rehearsal")
# Proofs are small. Unused ones are removed when there are more than so many.
MOST_PROOFS = 200


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8")).hexdigest()


def proof_keys(
    plan: Mapping[str, Any],
    facts: Mapping[str, Mapping[str, Any]],
    allowed: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return {kind: key} for a plan.

    The network's key depends on nodes, addresses and ports, the rehearsal's on its own code and on
    the whole plan but for the checkpoint. plan: the plan. allowed: the limits of the site. Another
    floor of the bandwidth, or all pairs instead of a ring, is another test of the network.
    """
    limits = {name: str((allowed or {}).get(name)) for name in ("bandwidth", "matrix")}
    boots = {node["name"]: facts[node["name"]].get("boot") for node in plan["nodes"]}
    wires = [[node["name"], node["address"], node["interface"]] for node in plan["nodes"]]
    # What a run goes on from changes nothing that a rehearsal tries.
    if plan.get("resume"):
        digest = plan["resume"]["unresumed"]
    else:
        digest = compiler.sha256(plan)
    # A Python of the user's own is not a part of the plan, but its present content matters.
    software = {
        node["name"]: _software(facts[node["name"]].get("installed") or {})
        for node in plan["nodes"]
    }
    return {
        "network": _digest([wires, plan["ports"], boots, limits]),
        "rehearsal": _digest([digest, boots, software, _rehearsal_digest()]),
    }


def _rehearsal_digest() -> str:
    """Return the sha256 of the rehearsal's own code: what it tries is a part of what it proves."""
    folder = Path(rehearsal.__file__).parent
    files = [*sorted(folder.glob("*.py")), folder.with_name("agent") / "rehearsal_rank.py"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _software(installed: Mapping[str, Any]) -> list[Any]:
    """Return a node's software that a rehearsal depends on and the plan lacks.

    That is a Python of the user's own and the node's libraries. The seconds that the look took are
    not a part of it.
    """
    state = installed.get("own") or {}
    names = ("python", "packages", "builds", "frameworks", "wrong", "error")
    return [{name: state.get(name) for name in names}, installed.get("libraries")]


def path_of(state_dir: str, kind: str, key: str) -> str:
    """Return the path of a proof."""
    return os.path.join(state_dir, "proofs", f"{kind}-{key[:32]}.json")


def read_proof(
    state_dir: str, kind: str, key: str, hours: float, now: float
) -> dict[str, Any] | None:
    """Return a proof that is no older than so many hours, or None."""
    proof = read_json(path_of(state_dir, kind, key))
    if not isinstance(proof, dict) or proof.get("key") != key:
        return None
    if not isinstance(proof.get("time"), (int, float)):
        return None
    if now - hours * 3600 < proof["time"] <= now:
        return proof
    return None


def save_proof(state_dir: str, kind: str, key: str, now: float, result: Mapping[str, Any]) -> None:
    """Keep a proof.

    now: unix seconds. result: the part of it that is worth showing.
    """
    folder = os.path.join(state_dir, "proofs")
    write_json(path_of(state_dir, kind, key), {"key": key, "time": now, "result": result})
    # Another command of the site may remove the same ones.
    with contextlib.suppress(FileNotFoundError):
        files = sorted(
            (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".json")),
            key=os.path.getmtime,
        )
        for path in files[:-MOST_PROOFS]:
            os.unlink(path)
