# SPDX-License-Identifier: Apache-2.0
"""The plan as lines for people. Pure.

They have the job, the commands, the ranks, the environment and the work before the start.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    MASK,
    SECRET_NAME,
    printable,
    secrets_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.compiler import sha256, short
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import (
    Plan,
    PlannedNode,
)

from .readiness import obstacles

# {node: what its probe said}.
Facts = Mapping[str, Mapping[str, Any]]

# The parts of readiness.pending_steps that are named before a start, in this order.
PREPARATIONS = ("provision", "trust", "environment", "code", "data", "weights", "checkpoints")
# Where the command runs, by the launcher's kind.
WHERE = {
    "each": "command, on every node,",
    "first": "command, on the first node, whose daemons run in the other nodes' units,",
    "ranks": "command, once for every rank on its node,",
}
# A command of many nodes is shown whole.
LONGEST = 100_000


def is_secret(plan: Mapping[str, Any], name: str) -> bool:
    """Return whether an environment variable is secret, by the site or by its name."""
    return name in (plan.get("secret_env") or ()) or bool(SECRET_NAME.search(name))


def format_command(argv: Sequence[str]) -> str:
    """Return a command line as a shell would take it."""
    return " ".join(shlex.quote(word) for word in argv)


def format_ports(plan: Plan) -> str:
    """Return the ports that a firewall between the nodes must let through, as text.

    The ephemeral ones come on top (docs/facts.md, 5).
    """
    start, last = plan["ports"]["start"], plan["ports"]["start"] + plan["ports"]["count"] - 1
    if "PORT_RANGE" in plan["env"]:
        return "{}, {}".format(start, plan["env"]["PORT_RANGE"].replace(":", "-"))
    return f"{start}-{last}"


def format_published(row: Mapping[str, Any]) -> str:
    """Return one row of published results as a line."""
    order = ("model", "data", "machines", "one_machine", "many", "speed_up", "note")
    return ", ".join("{} {}".format(key.replace("_", " "), row[key]) for key in order if key in row)


def summary(plan: Plan, facts: Facts, what: Mapping[str, list[str]]) -> list[str]:
    """Return the plan as lines for people. Secrets are masked.

    what: {part: names of nodes} as readiness.pending_steps gives it.
    """
    lines = _command_lines(plan)
    lines += [f"note: {text}" for text in plan["notes"]] + plan["advice"]
    lines += [f"published: {format_published(row)}" for row in plan["job"]["published"]]
    lines.append("environment on every node:")
    lines += _environment_lines(plan, plan["env"])
    for node in plan["nodes"]:
        lines += _node_lines(plan, node)
    lines += [f"link {path} -> {target}" for path, target in sorted(plan["links"].items())]
    preparation = [
        "before the start: {} on {}".format(kind, ", ".join(what[kind]))
        for kind in PREPARATIONS
        if what[kind]
    ]
    lines += preparation
    lines += [f"in the way: {text}" for text in obstacles(plan, facts)]
    if not preparation:
        lines.append("before the start: nothing, every node is ready")
    names, values = secrets_of(plan)
    return [printable(line, names, values, limit=LONGEST) for line in lines]


def _command_lines(plan: Plan) -> list[str]:
    """Return the heading and the command of every node."""
    lines = [
        "plan {}  job {}  {} nodes x {} devices ({})".format(
            sha256(plan)[:12],
            plan["job"]["name"],
            len(plan["nodes"]),
            plan["ports"]["count"],
            plan["accelerator"],
        ),
        "{} in the code tree {}:".format(
            WHERE[plan["launcher"]["kind"]], short(plan["code"]["digest"])
        ),
        "  " + format_command(plan["argv"]),
    ]
    for node in plan["nodes"]:
        if node.get("argv"):
            lines.append(f"  {node['name']}: {format_command(node['argv'])}")
    for node in plan["nodes"]:
        if node.get("container"):
            image, argv = plan["environment"]["container"], node["container"]["argv"]
            lines.append(f"  {node['name']}: in {image}: {format_command(argv)} ...")
    return lines


def _environment_lines(plan: Plan, variables: Mapping[str, str]) -> list[str]:
    lines = []
    for name, value in sorted(variables.items()):
        if is_secret(plan, name):
            value = MASK
        lines.append(f"  {name}={value}")
    return lines


def _node_lines(plan: Plan, node: PlannedNode) -> list[str]:
    """Return a node's ranks, devices, address, ports and variables."""
    ranks = [str(rank["rank"]) for rank in plan["ranks"] if rank["node"] == node["name"]]
    heading = "{}: rank {}  devices {}  address {} on {}  ports {}".format(
        node["name"],
        ",".join(ranks),
        ",".join(node["devices"]),
        node["address"],
        node["interface"],
        format_ports(plan),
    )
    return [heading] + _environment_lines(plan, node["env"])
