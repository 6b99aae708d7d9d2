# SPDX-License-Identifier: Apache-2.0
"""Obstacles between a plan and its start. Pure.

They are the parts that nodes still lack, and everything that only a person can clear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    mesh_credential,
    ownership,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh.primitives import (
    inventory_digest,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.compiler import short
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import Plan

# {node: what its probe said}.
Facts = Mapping[str, Mapping[str, Any]]
Fact = Mapping[str, Any]

# Seconds. A playbook's work with the nodes' certificates takes less, and an attempt has keys of its
# own. As long as ssh_trust_renew_before.
CERTIFICATE_MARGIN = 8 * 3600
# Kinds of trees, as their directories on a node are called.
TREES = ("code", "data", "weights", "checkpoints")

# First words of a command that come with the Python environment.
HEADS = ("python", "python3", "fleetrun", "msrun")


class Obstacle(NamedTuple):
    """A part of a node that keeps a plan from its start, as a sentence in parts.

    code: see base/findings.py. joint: the characters between the node's name and the text.
    """

    code: str
    node: str
    text: str
    remedy: str = ""
    joint: str = " "

    def __str__(self) -> str:
        sentence = f"{self.node}{self.joint}{self.text}"
        if self.remedy:
            sentence += f"; {self.remedy}"
        return sentence


def pending_steps(
    plan: Plan, facts: Facts, now: float, site_nodes: Sequence[Mapping[str, Any]] = ()
) -> dict[str, list[str]]:
    """Return {part: names of the nodes where it is not ready yet}.

    The parts are provision, trust, environment, each of TREES, and trees (any of TREES). now: unix
    time in seconds. site_nodes: all nodes of the site as read_site gives them. A mesh made for
    other addresses is made again.
    """
    names = [node["name"] for node in plan["nodes"]]
    result = {
        "provision": [name for name in names if facts[name]["missing"]],
        "trust": [],
        "environment": [],
    }
    if len(names) > 1 and not _mesh_is_ready(names, facts, now, site_nodes):
        result["trust"] = names  # the host keys of all go to all
    environment = plan["environment"]
    if not environment.get("python"):
        result["environment"] = [
            name for name in names if environment["digest"] not in facts[name]["environments"]
        ]
    for kind, digests in required_trees(plan).items():
        paths = [f"{kind}/{short(digest)}" for digest in digests]
        result[kind] = [name for name in names if not _has_trees(facts[name], paths)]
    result["trees"] = [name for name in names if any(name in result[kind] for kind in TREES)]
    return result


def _has_trees(fact: Fact, paths: list[str]) -> bool:
    """Return whether a node holds all of these trees, bit for bit."""
    return all((fact["trees"].get(path) or {}).get("ok") for path in paths)


def _mesh_is_ready(
    names: list[str], facts: Facts, now: float, site_nodes: Sequence[Mapping[str, Any]]
) -> bool:
    """Return whether all nodes have one valid mesh for the site's present addresses."""
    meshes = {name: facts[name]["mesh"] or {} for name in names}
    rows = None
    if site_nodes:
        rows = {n["name"]: (n["name"], n["host"], n["port"], n["address"]) for n in site_nodes}
    for name, mesh in meshes.items():
        if not _is_proven(mesh, now):
            return False
        if not set(names) <= set(mesh.get("nodes") or []) or not _same_addresses(mesh, rows):
            return False
        # An earlier line of the site stays while an attempt runs. Where no attempt runs any more,
        # it is removed.
        if mesh.get("carried") and not facts[name]["units"]:
            return False
    return len({mesh.get("digest") for mesh in meshes.values()}) == 1


def _is_proven(mesh: Mapping[str, Any], now: float) -> bool:
    """Return whether a node's mesh was proven and stays valid for long enough."""
    if not mesh.get("present") or not mesh.get("proven"):
        return False
    return (mesh.get("valid_until") or 0) >= now + CERTIFICATE_MARGIN


def _same_addresses(mesh: Mapping[str, Any], rows: Mapping[str, tuple[Any, ...]] | None) -> bool:
    """Return whether a mesh was made for the addresses that the inventory has now.

    rows: {node name: what primitives.inventory_digest takes}, or None.
    """
    if rows is None:
        return True
    names = mesh.get("nodes") or []
    if not all(name in rows for name in names):
        return False
    return inventory_digest([rows[name] for name in names]) == mesh.get("inventory")


def run_keys(plan: Plan, facts: Facts) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return ({node: public key of this attempt}, [(node, why it is not valid)]).

    There are no keys for a single node, or where no node was asked for one. A key lets its owner
    call the other nodes for this attempt alone (mesh_credential.py), so it must be one key, and not
    another node's.
    """
    given = {node["name"]: facts[node["name"]].get("run_key") for node in plan["nodes"]}
    if len(given) < 2 or not any(given.values()):
        return {}, []
    problems: list[tuple[str, str]] = []
    keys: dict[str, str] = {}
    for name, key in given.items():
        if isinstance(key, str) and mesh_credential.valid_key(key):
            keys[name] = key
        else:
            problems.append((name, "it made no valid key for this run"))
    for name, key in keys.items():
        if list(keys.values()).count(key) > 1:
            problems.append((name, "its key for this run is another node's, too"))
    if problems:
        return {}, problems
    return keys, []


def obstacles(plan: Plan, facts: Facts, repair: bool = False) -> list[Obstacle]:
    """Return an Obstacle for everything that only a person can clear.

    That is: a lack of root's part, a node in use, a changed tree. repair: the caller is going to
    replace changed trees (sync.yml).
    """
    result = []
    for node in plan["nodes"]:
        result += _node_obstacles(plan, node["name"], facts[node["name"]])
    if not repair:
        result += differing_trees(plan, facts)
    return result


def _node_obstacles(plan: Plan, name: str, fact: Fact) -> list[Obstacle]:
    result = []
    if fact["missing"]:
        text = f"lacks {', '.join(fact['missing'])}"
        remedy = "ansible-playbook playbooks/provision.yml has to run first (once)"
        result.append(Obstacle("ready.not_provisioned", name, text, remedy))
    site = (fact["mesh"] or {}).get("site")
    if len(plan["nodes"]) > 1 and site and site != plan["site"]:
        text = f"belongs to the mesh of the site '{site}'"
        remedy = (
            "first, with that site's inventory: ansible-playbook -i INVENTORY playbooks/untrust.yml"
        )
        result.append(Obstacle("ready.other_site", name, text, remedy))
    result += _python_obstacles(plan, name, fact.get("python_words"))
    for unit in fact["units"]:
        since = ownership.describe_start(unit)
        text = f"is held by {unit['description']} ({unit['state']}){since}"
        result.append(Obstacle("ready.node_held", name, text, ownership.describe_remedy(unit)))
    return result


def _python_obstacles(plan: Plan, name: str, programs: Sequence[str] | None) -> list[Obstacle]:
    """Return why the user's own Python cannot start the command.

    programs: names of the programs beside that Python on the node, None where the node was not
    asked.
    """
    python = plan["environment"].get("python")
    if not python or programs is None:
        return []
    if not programs:
        text = (
            f"{python} is not there or is no program; install it, or correct the site's"
            " environment.python"
        )
        return [Obstacle("ready.python_missing", name, text, joint=": ")]
    program = plan["argv"][0]
    if program in HEADS and program not in programs:
        text = (
            f"there is no program named {program} beside {python}, and the command begins"
            " with it; a virtual environment has it"
        )
        return [Obstacle("ready.program_missing", name, text, joint=": ")]
    return []


def differing_trees(plan: Plan, facts: Facts) -> list[Obstacle]:
    """Return an Obstacle for every tree on a node that differs from the controller's.

    It names the files.
    """
    result = []
    remedy = (
        "the controller's copy is the rule: ansible-playbook playbooks/sync.yml with the"
        " same config brings it again"
    )
    for node in plan["nodes"]:
        for name, state in sorted(facts[node["name"]]["trees"].items()):
            if state["present"] and not state["ok"]:
                differences = "; ".join(state["differences"]) or "unknown files"
                text = f"{name} differs from the controller's: {differences}"
                result.append(
                    Obstacle("ready.tree_differs", node["name"], text, remedy, joint=": ")
                )
    return result


def required_trees(plan: Plan) -> dict[str, list[str]]:
    """Return {kind of TREES: [digests]}: the trees that a node must hold, bit for bit."""
    trees = {
        "code": [],
        "data": sorted(plan["data"].values()),
        "weights": sorted({entry["digest"] for entry in plan["weights"].values()}),
        "checkpoints": [],
    }
    # (code that lies on the nodes already is not copied)
    if not plan["code"].get("path"):
        trees["code"] = [plan["code"]["digest"]]
    resume = plan.get("resume")
    if resume:
        trees["checkpoints"] = [resume["digest"]]
    return trees
