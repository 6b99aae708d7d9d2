# SPDX-License-Identifier: Apache-2.0
"""The inventory's group `spares`: machines for lost nodes (node_replacement.py)."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping, Sequence

from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import abbreviate

from ..base.yaml_source import Problem
from .config_types import Job, Node

# Variables of the group trainers do not hold for another group, which is what a spare most often
# lacks.
REMEDY = (
    "what group_vars/trainers.yml says must hold for the spares, too (ln -s trainers.yml"
    " group_vars/spares.yml)"
)


def read_spares(groups: Mapping[str, Sequence[str]]) -> tuple[list[str], list[Problem]]:
    """Return (names, problems) of the group spares in the inventory's order.

    groups: {group: [hosts]} of the inventory. A host that is a trainer, too, is not a spare.
    """
    names, trainers = list(groups.get("spares") or []), set(groups.get("trainers") or [])
    problems = []
    if "spares" not in groups:
        others = [name for name in groups if name not in ("all", "ungrouped", "trainers")]
        similar = difflib.get_close_matches("spares", others, 1, 0.8)
        if similar:
            text = "a group of spare machines is named spares; rename it"
            problems.append(
                Problem("inventory", None, similar[0], text, code="site.spares_misnamed")
            )
    for name in names:
        if name in trainers:
            text = (
                "is in both groups, trainers and spares; a machine trains or is kept for when"
                " another one fails: take it out of one"
            )
            problems.append(Problem("inventory", None, name, text, code="site.spare_is_trainer"))
    return [name for name in names if name not in trainers], problems


def add_remedy(problems: list[Problem], names: Collection[str]) -> None:
    """Add a remedy to the problems of spares that lack a variable.

    problems: changed in place. names: of the spares.
    """
    for index, problem in enumerate(problems):
        if problem.file.partition(", host ")[2] in names and problem.text.endswith("got None"):
            problems[index] = dataclasses.replace(problem, text=f"{problem.text}; {REMEDY}")


def accelerator_problems(nodes: Sequence[Node], spares: Sequence[Node]) -> list[Problem]:
    """Return a Problem for every spare whose accelerator no trainer has.

    Such a spare can never replace a trainer. nodes, spares: as read_site has them.
    """
    kinds = sorted({node["accelerator"] for node in nodes if node["accelerator"]})
    problems = []
    for spare in spares:
        accelerator = spare["accelerator"]
        if not kinds or not accelerator or accelerator in kinds:
            continue
        text = (
            f"a spare must compute with what the trainers do ({' or '.join(kinds)}), or it can"
            f" never stand in for one; got {abbreviate(accelerator)}"
        )
        where = f"inventory, host {spare['name']}"
        problems.append(
            Problem(where, None, "trainyard_accelerator", text, code="site.spare_unlike_trainers")
        )
    return problems


def replacement_problem(job: Job, node: Node, like: Node) -> str | None:
    """Return why a node cannot replace another one of a job, or None.

    job: as job_config gives it (its `devices`). node, like: as read_site has them. like is the node
    to be replaced.
    """
    if node["accelerator"] != like["accelerator"]:
        return f"it computes with {node['accelerator']}, the run with {like['accelerator']}"
    needed = job_devices(job, like)
    available = job_devices(job, node)
    if any(item not in available for item in needed):
        return (
            f"it declares the devices {', '.join(node['devices']) or 'none'}, the run takes"
            f" {', '.join(needed)} of each node"
        )
    if len(available) != len(needed):
        # Paddle's --ips takes the local number of devices for every host (fact 17).
        return (
            f"it has {len(node['devices'])} devices, the run takes {len(needed)} of each node; set"
            " 'devices' in the job"
        )
    return None


def job_devices(job: Job, node: Node) -> list[str]:
    """Return the ids of the devices that a job takes of a node."""
    if isinstance(job["devices"], int):
        return node["devices"][: job["devices"]]
    if isinstance(job["devices"], list):
        return [str(item) for item in job["devices"] if str(item) in node["devices"]]
    return node["devices"]


def device_notes(nodes: Sequence[Node], spares: Sequence[Node]) -> list[str]:
    """Return a line for every spare that declares other devices than any trainer.

    It can replace a trainer only where the job says which devices it takes.
    """
    known = {tuple(node["devices"]) for node in nodes}
    lines = []
    for spare in spares:
        if spare["devices"] and tuple(spare["devices"]) not in known:
            lines.append(
                f"the spare {spare['name']} declares the devices {', '.join(spare['devices'])}, as"
                " no trainer does; it can stand in only for jobs that say which devices they take"
            )
    return lines
