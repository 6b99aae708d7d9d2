# SPDX-License-Identifier: Apache-2.0
"""The inventory's group `spares`: machines that replace a lost node of a run (replacing.py). What
is wrong with it. Pure, controller only.
"""

from __future__ import annotations

import difflib

from ..base.yaml_source import Problem, shown

# Variables of the group trainers do not hold for another group, which is what a spare most often
# lacks.
REMEDY = (
    "what group_vars/trainers.yml says must hold for the spares, too (ln -s trainers.yml"
    " group_vars/spares.yml)"
)


def listed(groups):
    """Return (names, problems) of the group spares in the inventory's order; a host that is a
    trainer, too, is no spare.

    groups: {group: [hosts]} of the inventory.
    """
    names, trainers = list(groups.get("spares") or []), set(groups.get("trainers") or [])
    problems = []
    if "spares" not in groups:
        meant = difflib.get_close_matches(
            "spares",
            [name for name in groups if name not in ("all", "ungrouped", "trainers")],
            1,
            0.8,
        )
        if meant:
            problems.append(
                Problem(
                    "inventory",
                    None,
                    meant[0],
                    "a group of spare machines is named spares; rename it",
                )
            )
    for name in [name for name in names if name in trainers]:
        text = (
            "is in both groups, trainers and spares; a machine trains or is kept for when another"
            " one fails: take it out of one"
        )
        problems.append(Problem("inventory", None, name, text))
    return [name for name in names if name not in trainers], problems


def hint(problems, names):
    """Say at the problems of spares that lack a variable why they may lack it."""
    for problem in problems:
        if problem.file.partition(", host ")[2] in names and problem.text.endswith("got None"):
            problem.text += "; " + REMEDY


def unlike(nodes, spares):
    """Return a Problem for every spare that no trainer is like: it computes with something else, so
    it could never stand in.

    nodes, spares: as read_site has them.
    """
    kinds = sorted({node["accelerator"] for node in nodes if node["accelerator"]})
    problems = []
    for spare in [
        spare
        for spare in spares
        if kinds and spare["accelerator"] and spare["accelerator"] not in kinds
    ]:
        text = (
            "a spare must compute with what the trainers do (%s), or it can never stand in for one;"
            " got %s"
        )
        text = text % (" or ".join(kinds), shown(spare["accelerator"]))
        problems.append(
            Problem("inventory, host {}".format(spare["name"]), None, "trainyard_accelerator", text)
        )
    return problems


def unfit(job, node, like):
    """Return why a node cannot stand in for another one of a job, or None.

    job: as read_job gives it (its `devices`). node, like: as read_site has them; like is the node
    whose place is to be taken.
    """
    if node["accelerator"] != like["accelerator"]:
        return "it computes with {}, the run with {}".format(
            node["accelerator"], like["accelerator"]
        )
    wanted = taken(job, like)
    missing = [item for item in wanted if item not in taken(job, node)]
    if missing:
        return "it declares the devices {}, the run takes {} of each node".format(
            ", ".join(node["devices"]) or "none",
            ", ".join(wanted),
        )
    if len(taken(job, node)) != len(wanted):
        # Paddle's --ips takes the local number of devices for every host (fact 17).
        return "it has %d devices, the run takes %d of each node; set 'devices' in the job" % (
            len(node["devices"]),
            len(wanted),
        )
    return None


def taken(job, node):
    """Return the ids of the devices that a job takes of a node."""
    if isinstance(job["devices"], int):
        return node["devices"][: job["devices"]]
    if isinstance(job["devices"], list):
        return [str(item) for item in job["devices"] if str(item) in node["devices"]]
    return node["devices"]


def notes(nodes, spares):
    """Return a line for every spare that declares other devices than any trainer: it stands in only
    where the job says which it takes.
    """
    known = {tuple(node["devices"]) for node in nodes}
    text = (
        "the spare %s declares the devices %s, as no trainer does; it can stand in only for jobs"
        " that say which devices they take"
    )
    return [
        text % (spare["name"], ", ".join(spare["devices"]))
        for spare in spares
        if spare["devices"] and tuple(spare["devices"]) not in known
    ]
