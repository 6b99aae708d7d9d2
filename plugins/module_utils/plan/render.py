# SPDX-License-Identifier: Apache-2.0
"""The plan in lines for people: job, exact commands, rank map, environment, what is done before the
start. Pure.
"""

from __future__ import annotations

import shlex

from ..base.sanitize import MASK, SECRET_NAME, printable, secrets_of
from .compiler import sha256, short
from .readiness import obstacles

# What may be lacking on a node before a start, of what `what` names.
BROUGHT = ("provision", "trust", "environment", "code", "data", "weights", "checkpoints")
# Where the command runs, by the launcher's kind.
WHERE = {
    "each": "command, on every node,",
    "first": "command, on the first node, whose daemons run in the other nodes' units,",
    "ranks": "command, once for every rank on its node,",
}


# A command of many nodes is shown whole.
LONGEST = 100_000


def hidden(plan, name):
    """Whether the value of an environment variable is nobody's to see: marked by the site, or by
    its name.
    """
    return name in (plan.get("secret_env") or ()) or bool(SECRET_NAME.search(name))


def command(argv):
    """Return a command line as a shell would take it."""
    return " ".join(shlex.quote(word) for word in argv)


def ports(plan):
    """Return the ports that a firewall between the nodes must let through, beside the ephemeral
    ones (docs/facts.md, 5).
    """
    start, last = plan["ports"]["start"], plan["ports"]["start"] + plan["ports"]["count"] - 1
    if "PORT_RANGE" in plan["env"]:
        return "%d, %s" % (start, plan["env"]["PORT_RANGE"].replace(":", "-"))
    return "%d-%d" % (start, last)


def published(row):
    """Return one row of the documents' results as a line."""
    order = ("model", "data", "machines", "one_machine", "many", "speed_up", "note")
    return ", ".join("{} {}".format(key.replace("_", " "), row[key]) for key in order if key in row)


def summary(plan, facts, what):
    """Return the plan as lines for people: job, exact command, rank map, environment, what is done
    before the start.
    """
    lines = [
        "plan %s  job %s  %d nodes x %d devices (%s)"
        % (
            sha256(plan)[:12],
            plan["job"]["name"],
            len(plan["nodes"]),
            plan["ports"]["count"],
            plan["accelerator"],
        ),
        "{} in the code tree {}:".format(
            WHERE[plan["launcher"]["kind"]], short(plan["code"]["digest"])
        ),
        "  " + command(plan["argv"]),
    ]
    lines += [
        "  {}: {}".format(node["name"], command(node["argv"]))
        for node in plan["nodes"]
        if node.get("argv")
    ]
    for node in plan["nodes"]:
        if node.get("container"):
            lines.append(
                "  {}: in {}: {} ...".format(
                    node["name"],
                    plan["environment"]["container"],
                    command(node["container"]["argv"]),
                )
            )
    lines += [f"note: {text}" for text in plan["notes"]] + plan["advice"]
    lines += [f"published: {published(row)}" for row in plan["job"]["published"]]
    lines.append("environment on every node:")
    lines += [
        f"  {name}={MASK if hidden(plan, name) else value}"
        for name, value in sorted(plan["env"].items())
    ]
    for node in plan["nodes"]:
        ranks = [str(rank["rank"]) for rank in plan["ranks"] if rank["node"] == node["name"]]
        lines.append(
            "{}: rank {}  devices {}  address {} on {}  ports {}".format(
                node["name"],
                ",".join(ranks),
                ",".join(node["devices"]),
                node["address"],
                node["interface"],
                ports(plan),
            )
        )
        lines += [
            f"  {name}={MASK if hidden(plan, name) else value}"
            for name, value in sorted(node["env"].items())
        ]
    for path, target in sorted(plan["links"].items()):
        lines.append(f"link {path} -> {target}")
    for kind in BROUGHT:
        if what[kind]:
            lines.append("before the start: {} on {}".format(kind, ", ".join(what[kind])))
    lines += [f"in the way: {text}" for text in obstacles(plan, facts)]
    if not any(what[kind] for kind in BROUGHT):
        lines.append("before the start: nothing, every node is ready")
    secrets = secrets_of(plan)
    return [printable(line, *secrets, limit=LONGEST) for line in lines]
