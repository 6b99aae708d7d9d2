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
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_bytes
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.compiler import sha256, short
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import (
    Plan,
    PlannedNode,
)

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


def summary(
    plan: Plan,
    what: Mapping[str, list[str]],
    remarks: Sequence[str] = (),
    refused: bool = False,
) -> list[str]:
    """Return the plan as lines for people. Secrets are masked. A command is one line.

    what: {part: names of nodes} as readiness.pending_steps gives it. remarks: lines on the inputs
    that are no part of the plan. refused: whether a finding refuses the start.
    """
    lines = _command_lines(plan)
    if plan.get("replica"):
        lines.append(
            "checkpoints: copied to {} while the training goes on, {} a second at most".format(
                plan["replica"]["node"], format_bytes(plan["replica"]["rate"])
            )
        )
    lines += [f"note: {text}" for text in plan["notes"]] + [*remarks] + plan["advice"]
    lines += [f"published: {format_published(row)}" for row in plan["job"]["published"]]
    common = _common_environment(plan)
    lines.append("environment on every node:")
    lines += _environment_lines(plan, common)
    for node in plan["nodes"]:
        lines += _node_lines(plan, node, common)
    lines += [f"link {path} -> {target}" for path, target in sorted(plan["links"].items())]
    preparation = [
        "before the start: {} on {}".format(kind, ", ".join(what[kind]))
        for kind in PREPARATIONS
        if what[kind]
    ]
    lines += preparation
    if refused:
        lines.append("before the start: the remedies of the lines below that begin with STOP")
    elif not preparation:
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
    if "head_start" in plan["launcher"]:
        first, seconds = plan["nodes"][0]["name"], plan["launcher"]["head_start"]
        lines.append(f"  the nodes other than {first} wait {seconds:g} s before they begin")
    for node in plan["nodes"]:
        if node.get("argv"):
            lines += [f"  on {node['name']}:", f"    {format_command(node['argv'])}"]
    for node in plan["nodes"]:
        if node.get("container"):
            image, argv = plan["environment"]["container"], node["container"]["argv"]
            lines.append(f"  {node['name']}: in {image}: {format_command(argv)} ...")
    return lines


def _common_environment(plan: Plan) -> dict[str, str]:
    """Return the variables that have one value on all nodes."""
    common = dict(plan["env"])
    first = plan["nodes"][0]["env"]
    for name, value in first.items():
        if all(node["env"].get(name) == value for node in plan["nodes"]):
            common[name] = value
    for node in plan["nodes"]:
        for name in node["env"]:
            if common.get(name) != node["env"][name]:
                common.pop(name, None)
    return common


def _environment_lines(plan: Plan, variables: Mapping[str, str]) -> list[str]:
    lines = []
    for name, value in sorted(variables.items()):
        if is_secret(plan, name):
            value = MASK
        lines.append(f"  {name}={value}")
    return lines


def _node_lines(plan: Plan, node: PlannedNode, common: Mapping[str, str]) -> list[str]:
    """Return a node's ranks, devices, address, ports, and variables that are not common."""
    ranks = [str(rank["rank"]) for rank in plan["ranks"] if rank["node"] == node["name"]]
    heading = "{}: rank {}  devices {}  address {} on {}  ports {}".format(
        node["name"],
        ",".join(ranks),
        ",".join(node["devices"]),
        node["address"],
        node["interface"],
        format_ports(plan),
    )
    own = {name: value for name, value in node["env"].items() if common.get(name) != value}
    return [heading] + _environment_lines(plan, own)
