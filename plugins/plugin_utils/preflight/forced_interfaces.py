# SPDX-License-Identifier: Apache-2.0
"""Forced interfaces and RDMA devices of the ranks, compared with the nodes'.

NCCL's manual (Environment Variables): NCCL_SOCKET_IFNAME and NCCL_IB_HCA are lists with commas,
matched by their beginning; `=` in front asks for whole names, `^` for all others, `^=` for both.
gloo takes one whole name. NCCL_IB_HCA may end in `:port`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import (
    Finding,
    finding,
)

NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def match_names(text: str, names: Sequence[str], exact: bool = False) -> list[str]:
    """Return those of the names that the variable's text means.

    exact: names are whole, and there are no signs (gloo).
    """
    inverted = text.startswith("^") and not exact
    if inverted:
        text = text[1:]
    if text.startswith("=") and not exact:
        text, exact = text[1:], True
    words = [word.strip() for word in text.split(",") if word.strip()]
    if exact:
        matches = {name for name in names if name in words}
    else:
        matches = {name for name in names if name.startswith(tuple(words))}
    return [name for name in names if (name in matches) != inverted]


def judge_forced(plan: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return findings about GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME.

    The plan has them from the site or the job. plan: the plan.
    """
    findings: list[Finding] = []
    if len(plan["nodes"]) < 2:
        return findings
    for name in NAMES:
        if name in plan["env"]:
            findings += _forced_findings(plan, facts, name)
    return findings


def _forced_findings(
    plan: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]], name: str
) -> list[Finding]:
    """Return the findings of one variable of the plan."""
    findings, other_addresses = [], {}
    text = plan["env"][name]
    for node in plan["nodes"]:
        addresses: dict[str, list[str]] = {}
        for entry in facts[node["name"]]["addresses"]:
            addresses.setdefault(entry["interface"], []).append(entry["address"])
        matches = match_names(text, list(addresses), exact=name.startswith("GLOO"))
        if not matches:
            shown = ", ".join(
                f"{interface} ({', '.join(values)})" for interface, values in addresses.items()
            )
            problem = f"{name}={text} names no interface with an IPv4 address here; it has {shown}"
            findings.append(
                finding("interface.unknown", problem, _remedy(name, node), node["name"])
            )
        elif node["interface"] not in matches:
            other_addresses[node["name"]] = [
                address for interface in matches for address in addresses[interface]
            ]
    return findings + _other_network_findings(plan, name, other_addresses)


def _other_network_findings(
    plan: Mapping[str, Any], name: str, other_addresses: Mapping[str, Sequence[str]]
) -> list[Finding]:
    """Return findings of nodes where the forced interface is not the fabric's.

    A second network is used and not proven, and a local one leads nowhere. other_addresses: {node
    name: addresses of the forced interfaces}.
    """
    findings = []
    text = plan["env"][name]
    everywhere = [address for addresses in other_addresses.values() for address in addresses]
    for node in plan["nodes"]:
        addresses = other_addresses.get(node["name"])
        if not addresses:
            continue
        problem = (
            f"{name}={text} leads to {', '.join(addresses)}, and the plan's address is"
            f" {node['address']} on {node['interface']}"
        )
        if all(
            ipaddress.ip_address(address).is_loopback or everywhere.count(address) > 1
            for address in addresses
        ):
            problem += "; no other node reaches that"
            findings.append(
                finding("interface.unreachable", problem, _remedy(name, node), node["name"])
            )
        else:
            problem += ": this check does not try the way that the data will take"
            remedy = f"set trainyard_address to that interface's network, and take {name} away"
            findings.append(
                finding("interface.not_the_fabric", problem, remedy, node["name"], "warn")
            )
    return findings


def _remedy(name: str, node: Mapping[str, Any]) -> str:
    return (
        f"take {name} out of trainyard_env and the job's env: the plan sets it itself"
        f" ({node['interface']} here), or set trainyard_address"
    )


def judge_adapters(
    plan: Mapping[str, Any], hcas: Mapping[str, Sequence[Mapping[str, Any]] | None]
) -> list[Finding]:
    """Return findings about NCCL_IB_HCA. hcas: {node name: rows of node_check.list_hcas}."""
    text = plan["env"].get("NCCL_IB_HCA")
    if not text or plan["env"].get("NCCL_IB_DISABLE") == "1":
        return []
    findings = []
    names = ",".join(word.split(":")[0] for word in text.split(","))
    remedy = "see `ibstat`; correct NCCL_IB_HCA, or set NCCL_IB_DISABLE=1 to go without RDMA"
    for node, rows in hcas.items():
        if rows is None:
            continue
        matches = match_names(names, [row["name"] for row in rows])
        active = [row for row in rows if row["name"] in matches and "ACTIVE" in row["state"]]
        shown = ", ".join(f"{row['name']}:{row['port']} {row['state']}" for row in rows) or "none"
        if not matches:
            problem = f"NCCL_IB_HCA={text} names no RDMA device here; it has {shown}"
            findings.append(finding("interface.unknown_adapter", problem, remedy, node))
        elif not active:
            problem = f"NCCL_IB_HCA={text}: no port of it is active: {shown}"
            findings.append(finding("interface.adapter_down", problem, remedy, node))
    return findings
