# SPDX-License-Identifier: Apache-2.0
"""The ports on which a job's processes listen: which they are, whether they are free where it
matters, and which ones are free everywhere. Pure.

What the nodes say of them is looked up by sockets.py.
"""

from __future__ import annotations

import re

from ..base.findings import finding
from ..suites import launchers
from .sockets import RECOMMENDED, WINDOW, owner_words

# Another check's listener (netturns.py), which the network's proof waits for.
CHECK = re.compile(r"/yardcheck-[0-9a-z]+/netprobe\.py( |\Z)")


def needs(launcher, accelerator, nodes, rendezvous, start, count):
    """Return {listened, others, pool} of a job.

    listened: ports on which the first node listens, so that a start fails or hangs where one is
    taken (fact 5). others: ports of ranks, on all nodes; they are in the plan, and with CPU gloo
    nobody listens there (fact 5). pool: a range of which every node's launcher takes free ones
    (--master). One node of Paddle's needs none: its launcher takes any free port.
    """
    entry = launchers.LAUNCHERS[launcher]
    if accelerator in entry.get("scheduler", {}) or any("{port}" in word for word in entry["argv"]):
        return {"listened": [start], "others": [], "pool": []}
    if nodes < 2 or not entry["endpoints_env"]:
        return {"listened": [], "others": [], "pool": []}
    if "PORT_RANGE" in launchers.rendezvous(launcher, rendezvous).get("env", {}):
        values = launchers.values_of([""], [""] * count, "", start, 0)
        return {
            "listened": [start],
            "others": [],
            "pool": list(range(values["first_free"], values["last_free"] + 1)),
        }
    return {"listened": [start], "others": list(range(start, start + count)), "pool": []}


def wanted(job, site, nodes):
    """Return the ports that are to be tried on every node."""
    start = job.get("start_port") or site["start_port"]
    need = needs(
        job["launcher"],
        nodes[0]["accelerator"],
        len(nodes),
        job.get("rendezvous"),
        start,
        len(nodes[0]["devices"]),
    )
    return sorted(
        port for port in set(need["listened"] + need["others"] + need["pool"]) if port <= 65535
    )


def _inside(port, ranges):
    return any(first <= port <= last for first, last in ranges)


def next_start(start, span, told):
    """Return the next start port from which `span` ports are free on all nodes, or None. told: what
    look says, one of each node.
    """
    bad = set()
    for one in told:
        bad.update(one["used"], (item["port"] for item in one["taken"]))
    ephemeral = [pair for one in told for pair in one["ephemeral"]]
    last = max([start + WINDOW] + [RECOMMENDED[1]] * (start <= RECOMMENDED[1])) - span
    # Upwards from the one that was asked for, then what the documents recommend; only what has been
    # looked at.
    for first in list(range(start + 1, min(last, start + WINDOW, 65535 - span) + 1)) + list(
        range(RECOMMENDED[0], min(start, last))
    ):
        block = range(first, first + span)
        if not bad.intersection(block) and not any(
            _inside(port, ephemeral) for port in (first, first + span - 1)
        ):
            return first
    return None


def judge(made, facts, allowed):
    """Return findings: a port that the first node listens on and that is taken stops; one that
    nobody will use is only told.
    """
    nodes, start, count = made["nodes"], made["ports"]["start"], made["ports"]["count"]
    told = {
        node["name"]: facts[node["name"]]["ports"]
        for node in nodes
        if facts[node["name"]].get("ports")
    }
    meeting = "master" if "PORT_RANGE" in made["env"] else None
    need = needs(made["launcher"]["name"], made["accelerator"], len(nodes), meeting, start, count)
    span = len(set(need["listened"] + need["others"] + need["pool"]))
    if not told or not span:
        return []
    better = next_start(start, span, list(told.values()))
    move = (
        "-e start_port=%d is free on all nodes, or end what has it" % better
        if better
        else "no other one is near; give start_port in the job"
    )
    found = []
    for place, node in enumerate(nodes):
        one = told.get(node["name"])
        for item in one["taken"] if one else ():
            if len(nodes) > 1 and CHECK.search(item["command"] or ""):
                continue
            text = "port %d: %s" % (item["port"], owner_words(item))
            if item["port"] in need["listened"] and place == 0:
                remedy = (
                    "playbooks/stop.yml -e run={} ends it; or {}".format(item["run"], move)
                    if item["run"]
                    else move
                )
                found.append(
                    finding(
                        "port", f"{text}; the ranks of all nodes meet there", remedy, node["name"]
                    )
                )
            elif item["port"] in need["others"]:
                found.append(
                    finding(
                        "port",
                        f"{text}; it is a rank's, where CPU training does not listen",
                        move,
                        node["name"],
                        "warn",
                    )
                )
        # The launcher tries a hundred of the range one after another from anywhere in it
        # (launch/context/node.py, get_free_port).
        free = (
            len(need["pool"]) - len([item for item in one["taken"] if item["port"] in need["pool"]])
            if one
            else 0
        )
        if one and need["pool"] and free < 2 * count:
            text = (
                "of the ports %d to %d, of which the launcher gives its ranks free ones, %d are"
                " free and %d are needed"
            )
            found.append(
                finding(
                    "port",
                    text % (need["pool"][0], need["pool"][-1], free, 2 * count),
                    move,
                    node["name"],
                )
            )
    first = told.get(nodes[0]["name"])
    if first and _inside(start, first["ephemeral"]) and not _inside(start, first["reserved"]):
        text = (
            "start port %d is one that the kernel gives to any connection (%s), so it can be taken"
            " at any moment"
        )
        ranges = ", ".join("%d to %d" % tuple(pair) for pair in first["ephemeral"])
        remedy = "choose one outside it" + (", such as -e start_port=%d" % better if better else "")
        remedy += ", or let root set net.ipv4.ip_local_reserved_ports=%d" % start
        found.append(finding("port", text % (start, ranges), remedy, nodes[0]["name"], "warn"))
    return found
