# SPDX-License-Identifier: Apache-2.0
"""What stands between a plan and its start: what the nodes still lack, and what only a person can
clear. Pure.
"""

from __future__ import annotations

from ..attempts import mesh_credential, ownership
from ..mesh.primitives import inventory_digest
from .compiler import short

# What a playbook does with the nodes' certificates takes less; an attempt has keys of its own. As
# long as ssh_trust_renew_before.
CERTIFICATE_MARGIN = 8 * 3600


# Kinds of trees, as their directories on a node are called.
TREES = ("code", "data", "weights", "checkpoints")

# Words at the head of a command that come with the Python environment.
HEADS = ("python", "python3", "fleetrun", "msrun")


def todo(plan, facts, now, site_nodes=()):
    """Return what is not ready yet: {'provision': [...], 'trust': [...], 'environment': [...], and
    one key for each of TREES} of node names.

    now: unix time in seconds. site_nodes: all nodes of the site as read_site gives them; a mesh
    made for other addresses is made again.
    """
    names = [node["name"] for node in plan["nodes"]]
    result = {
        "provision": [n for n in names if facts[n]["missing"]],
        "trust": [],
        "environment": [],
        **{kind: [] for kind in TREES},
    }
    if len(names) > 1:
        mesh = [facts[name]["mesh"] or {} for name in names]
        proven = all(
            m.get("present")
            and m.get("proven")
            and (m.get("valid_until") or 0) >= now + CERTIFICATE_MARGIN
            for m in mesh
        )
        # An earlier line of the site stays while an attempt runs; where nothing runs any more, it
        # goes.
        settled = not any(
            m.get("carried") and not facts[name]["units"] for name, m in zip(names, mesh)
        )
        rows = (
            {n["name"]: (n["name"], n["host"], n["port"], n["address"]) for n in site_nodes}
            if site_nodes
            else None
        )
        covered = all(
            set(names) <= set(m.get("nodes") or []) and _same_addresses(m, rows) for m in mesh
        )
        if not proven or not covered or not settled or len({m.get("digest") for m in mesh}) > 1:
            result["trust"] = names  # the host keys of all go to all
    if not plan["environment"].get("python"):
        result["environment"] = [
            n for n in names if plan["environment"]["digest"] not in facts[n]["environments"]
        ]
    for kind, digests in wanted_trees(plan).items():
        result[kind] = [
            n
            for n in names
            if any(
                not (facts[n]["trees"].get(f"{kind}/{short(d)}") or {}).get("ok") for d in digests
            )
        ]
    result["trees"] = [n for n in names if any(n in result[kind] for kind in TREES)]
    return result


def run_keys(plan, facts):
    """Return ({node: public key of this attempt}, [(node, why it is not valid)]); no keys for one
    node alone, or where no node was asked for one.

    A key lets its owner call the other nodes for this attempt alone (mesh_credential.py), so it
    must be one key, and no other node's.
    """
    found = {node["name"]: facts[node["name"]].get("run_key") for node in plan["nodes"]}
    if len(found) < 2 or not any(found.values()):
        return {}, []
    wrong = [
        (name, "it made no valid key for this run")
        for name, key in found.items()
        if not mesh_credential.valid_key(key)
    ]
    named = dict(wrong)
    keys = {name: key for name, key in found.items() if name not in named}
    wrong += [
        (name, "its key for this run is another node's, too")
        for name, key in keys.items()
        if list(keys.values()).count(key) > 1
    ]
    return ({}, wrong) if wrong else (keys, [])


def obstacles(plan, facts, repair=False):
    """Return a sentence with its remedy for everything that only a person can clear before a start:
    lacking root's part, a held node, a changed tree.

    repair: the caller is going to replace changed trees (sync.yml).
    """
    lines = []
    for node in plan["nodes"]:
        fact = facts[node["name"]]
        if fact["missing"]:
            lines.append(
                "{} lacks {}; playbooks/provision.yml has to run first (once)".format(
                    node["name"], ", ".join(fact["missing"])
                )
            )
        other = (fact["mesh"] or {}).get("site")
        if len(plan["nodes"]) > 1 and other and other != plan["site"]:
            lines.append(
                "{} belongs to the mesh of the site '{}'; run that site's playbooks/untrust.yml"
                " first".format(node["name"], other)
            )
        python, words = plan["environment"].get("python"), fact.get("python_words")
        if python and words is not None and not words:
            lines.append(
                "{}: {} is not there or is no program; install it, or correct the site's"
                " environment.python".format(node["name"], python)
            )
        elif (
            python
            and words is not None
            and plan["argv"][0] in HEADS
            and plan["argv"][0] not in words
        ):
            text = (
                "%s: there is no program named %s beside %s, and the command begins with it; a"
                " virtual environment has it"
            )
            lines.append(text % (node["name"], plan["argv"][0], python))
        for unit in fact["units"]:
            held = (
                node["name"],
                unit["description"],
                unit["state"],
                ownership.since_words(unit),
                ownership.remedy(unit),
            )
            lines.append("{} is held by {} ({}){}; {}".format(*held))
    if not repair:
        remedy = (
            "; the controller's copy is the rule: playbooks/sync.yml with the same config brings it"
            " again"
        )
        lines += [line + remedy for line in differing_trees(plan, facts)]
    return lines


def differing_trees(plan, facts):
    """Return a sentence for every node whose copy of code, data or weights differs from the
    controller's, with the files by name.
    """
    lines = []
    for node in plan["nodes"]:
        for name, state in sorted(facts[node["name"]]["trees"].items()):
            if state["present"] and not state["ok"]:
                lines.append(
                    "{}: {} differs from the controller's: {}".format(
                        node["name"], name, "; ".join(state["differences"]) or "unknown files"
                    )
                )
    return lines


def _same_addresses(mesh, rows):
    """Whether a mesh was made for the addresses that the inventory has now; rows: {node name: what
    mesh.inventory_digest takes}, or None.
    """
    if rows is None:
        return True
    recorded = mesh.get("nodes") or []
    return all(name in rows for name in recorded) and inventory_digest(
        [rows[name] for name in recorded]
    ) == mesh.get("inventory")


def wanted_trees(plan):
    """Return {kind of TREES: [digests]}: the trees a node must hold, bit for bit."""
    return {
        "code": (
            [] if plan["code"].get("path") else [plan["code"]["digest"]]
        ),  # (what lies on the nodes already is not ours to bring)
        "data": sorted(plan["data"].values()),
        "weights": sorted({w["digest"] for w in plan["weights"].values()}),
        "checkpoints": [plan["resume"]["digest"]] if plan.get("resume") else [],
    }
