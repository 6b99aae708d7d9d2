# SPDX-License-Identifier: Apache-2.0
"""The ports on which a job's processes listen, and which of them are free.

sockets.py looks them up on the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import (
    Finding,
    finding,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight.sockets import (
    RECOMMENDED,
    WINDOW,
    owner_words,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import launcher_table

# Another check's listener (check_lock.py), which the network's proof waits for.
# An older release's is netprobe.py.
CHECK = re.compile(r"/yardcheck-[0-9a-z]+/(?:agent\.pyz listen|netprobe\.py)( |\Z)")

# On the host HCCL listens on 16 ports from HCCL_IF_BASE_PORT on, by default from 60000, and the
# kernel has to reserve them (CANN's reference of environment variables, HCCL_IF_BASE_PORT). With
# HCCL_HOST_SOCKET_PORT_RANGE it takes others. Port 16666 (HCCL_NPU_SOCKET_PORT_RANGE) is of the
# devices' own network, which a socket of the host says nothing about. Untested on hardware.
HCCL_BASE = "HCCL_IF_BASE_PORT"
HCCL_RANGE = "HCCL_HOST_SOCKET_PORT_RANGE"
HCCL_DEFAULT = 60000
HCCL_COUNT = 16
HCCL_LIMITS = (1024, 65520)


def hccl_ports(accelerator: str, ranks: int, env: Mapping[str, str]) -> list[int]:
    """Return the ports on which HCCL's ranks listen on each host, [] where they are not known.

    ranks: of the job. One rank has no other to meet. env: of the job and the site.
    """
    if accelerator != "ascend" or ranks < 2 or env.get(HCCL_RANGE):
        return []
    base = str(env.get(HCCL_BASE) or HCCL_DEFAULT)
    lowest, highest = HCCL_LIMITS
    if not re.fullmatch("[0-9]{1,5}", base) or not lowest <= int(base) <= highest:
        return []
    return list(range(int(base), int(base) + HCCL_COUNT))


def port_needs(
    launcher: str, accelerator: str, nodes: int, rendezvous: str | None, start: int, count: int
) -> dict[str, list[int]]:
    """Return {listened, others, pool} of a job.

    listened: ports on which the first node listens, so that a start fails or hangs where one is
    taken (fact 5). others: ports of ranks, on all nodes. They are in the plan, and with CPU gloo no
    process listens there (fact 5). pool: a range of which every node's launcher takes free ones
    (--master). One node of Paddle's needs none: its launcher takes any free port.
    """
    table: Mapping[str, Any] = launcher_table.LAUNCHERS
    entry = table[launcher]
    if accelerator in entry.get("scheduler", {}) or any("{port}" in word for word in entry["argv"]):
        return {"listened": [start], "others": [], "pool": []}
    if nodes < 2 or not entry["endpoints_env"]:
        return {"listened": [], "others": [], "pool": []}
    if "PORT_RANGE" in launcher_table.rendezvous(launcher, rendezvous).get("env", {}):
        values = launcher_table.template_values([""], [""] * count, "", start, 0)
        pool = list(range(values["first_free"], values["last_free"] + 1))
        return {"listened": [start], "others": [], "pool": pool}
    return {"listened": [start], "others": list(range(start, start + count)), "pool": []}


def _all_ports(need: Mapping[str, Any]) -> set[int]:
    """Return the set of all ports of what `port_needs` returns."""
    return set(need["listened"] + need["others"] + need["pool"])


def ports_to_probe(
    job: Mapping[str, Any], site: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Return the sorted ports to try on every node."""
    start = job.get("start_port") or site["start_port"]
    need = port_needs(
        job["launcher"],
        nodes[0]["accelerator"],
        len(nodes),
        job.get("rendezvous"),
        start,
        len(nodes[0]["devices"]),
    )
    devices = len(nodes[0]["devices"])
    env = {**site.get("env", {}), **job.get("env", {})}
    hccl = hccl_ports(nodes[0]["accelerator"], len(nodes) * devices, env)
    return sorted(port for port in _all_ports(need).union(hccl) if port <= 65535)


def _is_inside(port: int, ranges: Sequence[Sequence[int]]) -> bool:
    return any(first <= port <= last for first, last in ranges)


def find_start_port(start: int, span: int, states: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the next start port with `span` free ports on all nodes, or None.

    states: the answers of sockets.look, one per node.
    """
    used: set[int] = set()
    for state in states:
        used.update(state["used"], (item["port"] for item in state["taken"]))
    ephemeral = [pair for state in states for pair in state["ephemeral"]]
    end = start + WINDOW
    if start <= RECOMMENDED[1]:
        end = max(end, RECOMMENDED[1])
    last = end - span
    # Upwards from the given one, then the range that the upstream documentation recommends. Only
    # ports that have been looked at.
    upwards = range(start + 1, min(last, start + WINDOW, 65535 - span) + 1)
    recommended = range(RECOMMENDED[0], min(start, last))
    for first in [*upwards, *recommended]:
        if used.intersection(range(first, first + span)):
            continue
        if not _is_inside(first, ephemeral) and not _is_inside(first + span - 1, ephemeral):
            return first
    return None


def judge(
    plan: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]], allowed: Mapping[str, Any]
) -> list[Finding]:
    """Return findings about the ports of a plan.

    A taken port that the first node listens on is a STOP. One that no process will use is less.
    plan: the plan.
    """
    nodes, start, count = plan["nodes"], plan["ports"]["start"], plan["ports"]["count"]
    states = {}
    for node in nodes:
        if facts[node["name"]].get("ports"):
            states[node["name"]] = facts[node["name"]]["ports"]
    rendezvous = None
    if "PORT_RANGE" in plan["env"]:
        rendezvous = "master"
    need = port_needs(
        plan["launcher"]["name"], plan["accelerator"], len(nodes), rendezvous, start, count
    )
    span = len(_all_ports(need))
    if not states:
        return []
    hccl_findings = _hccl_findings(plan, states)
    if not span:
        return hccl_findings
    better = find_start_port(start, span, list(states.values()))
    remedy = "no other one is near; give start_port in the job"
    if better:
        remedy = f"-e start_port={better} is free on all nodes, or end what has it"
    findings = []
    first_name = nodes[0]["name"]
    for node in nodes:
        name = node["name"]
        if name not in states:
            continue
        for item in states[name]["taken"]:
            if len(nodes) < 2 or not CHECK.search(item["command"] or ""):
                findings += _taken_findings(name, item, need, name == first_name, remedy)
        findings += _pool_findings(name, states[name], need["pool"], count, remedy)
    if first_name in states:
        findings += _ephemeral_findings(first_name, states[first_name], start, better)
    return findings + hccl_findings


def _hccl_findings(
    plan: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]]
) -> list[Finding]:
    """Return warnings about the ports on which HCCL's ranks listen on each host.

    states: {node name: answer of sockets.look}. No more than warnings: which of the ports a release
    takes, and whether it goes on to the next one, is not known here.
    """
    wanted = hccl_ports(plan["accelerator"], len(plan["ranks"]), plan["env"])
    if not wanted:
        return []
    first, last = wanted[0], wanted[-1]
    own = {"used": range(plan["ports"]["start"], plan["ports"]["start"] + HCCL_COUNT), "taken": []}
    others = [*states.values(), {**own, "ephemeral": []}]
    better = find_start_port(first, HCCL_COUNT, others)
    advice = f"let {HCCL_BASE} in the site's trainyard_env name 16 others"
    if better:
        advice = f"{HCCL_BASE}: {better} in the site's trainyard_env is free on all nodes"
    findings, open_to_all = [], []
    for name, state in states.items():
        for item in state["taken"]:
            if item["port"] in wanted:
                text = (
                    f"port {int(item['port'])}: {owner_words(item)}; HCCL's ranks listen on"
                    f" {first} to {last} of every node (else EJ0003)"
                )
                remedy = f"end what has it, or {advice}"
                findings.append(finding("port.hccl_taken", text, remedy, name, "warn"))
        if any(
            _is_inside(port, state["ephemeral"]) and not _is_inside(port, state["reserved"])
            for port in wanted
        ):
            open_to_all.append(name)
    if open_to_all:
        text = (
            f"HCCL's ranks listen on {first} to {last}, and the kernel gives these ports to any"
            " connection, so one can be taken at any moment"
        )
        remedy = (
            f"as root: sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last} (beside what it"
            f" has), and the same in /etc/sysctl.d; or {advice}"
        )
        findings.append(finding("port.hccl_ephemeral", text, remedy, open_to_all, "warn"))
    return findings


def _taken_findings(
    name: str, item: Mapping[str, Any], need: Mapping[str, Any], is_first: bool, remedy: str
) -> list[Finding]:
    """Return the finding of one port that is taken on a node, where the job needs it."""
    text = f"port {int(item['port'])}: {owner_words(item)}"
    if is_first and item["port"] in need["listened"]:
        if item["run"]:
            remedy = (
                f"ansible-playbook playbooks/stop.yml -e run={item['run']} ends it; or {remedy}"
            )
        return [finding("port.taken", f"{text}; the ranks of all nodes meet there", remedy, name)]
    if item["port"] in need["others"]:
        text += "; it is a rank's, where CPU training does not listen"
        return [finding("port.rank_port_taken", text, remedy, name, "warn")]
    return []


def _pool_findings(
    name: str, state: Mapping[str, Any], pool: Sequence[int], count: int, remedy: str
) -> list[Finding]:
    """Return the finding of a node with too few free ports for its launcher.

    pool: the range of the launcher's ports. count: of the node's ranks.
    """
    # The launcher tries a hundred of the range one after another from anywhere in it
    # (launch/context/node.py, get_free_port).
    free = len(pool) - len([item for item in state["taken"] if item["port"] in pool])
    if not pool or free >= 2 * count:
        return []
    text = (
        f"of the ports {pool[0]} to {pool[-1]}, of which the launcher gives its ranks free ones,"
        f" {free} are free and {2 * count} are needed"
    )
    return [finding("port.too_few", text, remedy, name)]


def _ephemeral_findings(
    name: str, state: Mapping[str, Any], start: int, better: int | None
) -> list[Finding]:
    """Return the finding of a start port that the kernel may give to any connection.

    better: a start port that is free on all nodes, or None.
    """
    if not _is_inside(start, state["ephemeral"]) or _is_inside(start, state["reserved"]):
        return []
    ranges = ", ".join(f"{int(first)} to {int(last)}" for first, last in state["ephemeral"])
    text = (
        f"start port {start} is one that the kernel gives to any connection ({ranges}), so it can"
        " be taken at any moment"
    )
    remedy = "choose one outside it"
    if better:
        remedy += f", such as -e start_port={better}"
    remedy += f", or let root set net.ipv4.ip_local_reserved_ports={start}"
    return [finding("port.ephemeral", text, remedy, name, "warn")]
