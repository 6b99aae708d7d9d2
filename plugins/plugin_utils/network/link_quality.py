# SPDX-License-Identifier: Apache-2.0
"""Quality of the links that the network check measured: clocks, path MTU and bandwidth.

Pure. The module compares it with the limits of the site, and writes the notes about all links.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import (
    Finding,
    finding,
    named,
    unequal,
)

# A link that is slower than the median of all by this factor gets a warning.
SLOW_EDGE = 4.0
# More nodes than this stand in one row.
MOST_ROWS = 8
# So many kinds of nodes are named in it.
MOST_KINDS = 4
# {(from, to): row} of all links.
Edges = Mapping[tuple[str, str], Mapping[str, Any]]


def judge(answers: Mapping[str, Mapping[str, Any]], allowed: Mapping[str, Any]) -> list[Finding]:
    """Return the findings about clocks, packet sizes and bandwidth of all links.

    answers: {node name: what library/network_check.py returned in state connected}. allowed:
    bandwidth (Gbit/s), clock_seconds ({level: seconds}).
    """
    edges = {
        (name, to): row for name, result in answers.items() for to, row in result["edges"].items()
    }
    floor = float(allowed.get("bandwidth") or 0)
    findings = _judge_clocks(edges, allowed.get("clock_seconds") or {})
    findings += _judge_packet_sizes(answers, edges)
    return findings + _judge_rates(edges, floor) + _judge_missing_rates(edges, floor)


def _judge_rates(edges: Edges, floor: float) -> list[Finding]:
    """Return findings about slow links.

    floor: the lowest bandwidth allowed in Gbit/s, 0 for any.
    """
    rates = {pair: row["gbits"] for pair, row in edges.items() if row.get("gbits") is not None}
    median = 0
    if rates:
        median = statistics.median(rates.values())
    findings = []
    for (name, peer), rate in sorted(rates.items()):
        link = f"{name} to {peer}: {rate:.3g} Gbit/s"
        if floor and rate < floor:
            text = f"{link}; wanted at least {floor:g}"
            remedy = (
                "see `ethtool` (speed, duplex) on both, the switch between them, or lower"
                " preflight_bandwidth"
            )
            findings.append(finding("network.slow", text, remedy, [name, peer]))
        elif len(rates) > 2 and rate * SLOW_EDGE < median:
            text = (
                f"{link}, and half of all ways carry {median:.3g} or more; the slowest way sets the"
                " pace"
            )
            remedy = "compare `ethtool` (speed, duplex, errors) with another node's"
            findings.append(
                finding("network.slower_than_others", text, remedy, [name, peer], "warn")
            )
    return findings


def _judge_missing_rates(edges: Edges, floor: float) -> list[Finding]:
    """Return findings about links without a measured bandwidth.

    Without a floor (Gbit/s) the list is empty.
    """
    findings = []
    for (name, peer), row in sorted(edges.items()):
        if floor and "together" in row and row.get("gbits") is None:
            text = (
                f"{name} to {peer}: no bandwidth could be measured; wanted at least"
                f" {floor:g} Gbit/s"
            )
            remedy = "run the check again, then look at the way between the two"
            findings.append(finding("network.no_bandwidth", text, remedy, (name, peer)))
    return findings


def _judge_clocks(edges: Edges, floors: Mapping[str, Any]) -> list[Finding]:
    """Return findings about clocks that differ, one for each pair of nodes.

    floors: {level: seconds}, the offset from which on a finding has this level.
    """
    findings, judged = [], set()
    for pair, row in sorted(edges.items()):
        offset = row.get("offset") or 0
        level = _level_of_offset(offset, floors)
        if not level or frozenset(pair) in judged:
            continue
        judged.add(frozenset(pair))
        relation = "behind"
        if offset > 0:
            relation = "ahead of"
        text = (
            f"{pair[1]}'s clock is {abs(offset):.1f} s {relation} {pair[0]}'s;"
            f" allowed {floors[level]} s"
        )
        remedy = "as root on the one that is wrong: timedatectl set-ntp true"
        findings.append(finding("clock.nodes_differ", text, remedy, pair, level))
    return findings


def _level_of_offset(offset: float, floors: Mapping[str, Any]) -> str | None:
    """Return the level of a finding about an offset in seconds, or None.

    None means that the offset is allowed.
    """
    for level in ("stop", "warn"):
        if level in floors and abs(offset) > float(floors[level]):
            return level
    return None


def _judge_packet_sizes(answers: Mapping[str, Mapping[str, Any]], edges: Edges) -> list[Finding]:
    """Return findings about MTUs that differ and links with smaller packets."""
    mtus = {}
    for name, result in answers.items():
        mtu = (result["own"].get("interface") or {}).get("mtu")
        if mtu:
            mtus[name] = mtu
    remedy = (
        "give all interfaces of the fabric one MTU that the switches carry: ip link set IFACE mtu"
        " N, and in the network's configuration"
    )
    findings = unequal("network.mtu_differs", "MTU of the fabric's interface", mtus, remedy, "warn")
    for (name, peer), row in sorted(edges.items()):
        size: Any = row.get("path_mtu")
        if size == 0:
            text = (
                f"{name} to {peer}: no UDP comes through, so the path MTU is not known; larger"
                " packets pass by TCP"
            )
            findings.append(finding("network.path_mtu_unknown", text, "", (name, peer), "note"))
        elif size and size < min(mtus.get(name, size), mtus.get(peer, size)):
            text = (
                f"{name} to {peer}: packets of more than {size} bytes are lost, and the interfaces"
                f" have MTU {min(mtus[name], mtus[peer])}"
            )
            findings.append(finding("network.path_mtu_small", text, remedy, (name, peer), "warn"))
    return findings


# --- notes


def describe_links(
    nodes: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]]
) -> list[Finding]:
    """Return the notes about nodes and links.

    nodes: {name: node of the plan}. answers: {name: what library/network_check.py returned in state
    connected}.
    """
    if len(answers) <= MOST_ROWS:
        return [_note(nodes[name], result) for name, result in answers.items()]
    edges = {
        (name, to): row for name, result in answers.items() for to, row in result["edges"].items()
    }
    text = "; ".join(_describe_kinds(nodes, answers) + _describe_link_figures(edges))
    return [finding("network.measured", text, "", list(answers), "note")]


def is_unmeasured(row: Mapping[str, Any]) -> bool:
    """Return True if a link's bandwidth is missing.

    The test failed, or there was no time for it.
    """
    return bool(row.get("late")) or ("together" in row and row.get("gbits") is None)


def _describe_hardware(node: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[str, Any, str]:
    """Return interface, MTU and RDMA devices of a node as three texts.

    answer: what the node says of itself (`own`).
    """
    mtu = (answer.get("interface") or {}).get("mtu") or "?"
    hcas = [
        f"{row['name']}:{row['port']} {row['state'].split(': ')[-1]}"
        for row in answer.get("hcas") or []
    ]
    if not hcas:
        return node["interface"], mtu, "no HCA"
    return node["interface"], mtu, f"HCAs: {named(hcas)}"


def _describe_kinds(
    nodes: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return texts about the nodes' interfaces, the most frequent kind first."""
    groups: dict[str, list[str]] = {}
    for name, result in answers.items():
        interface, mtu, hcas = _describe_hardware(nodes[name], result["own"])
        kind = f"{interface}, MTU {mtu}, {hcas}"
        groups.setdefault(kind, []).append(name)
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    first_kind, first_names = ordered[0]
    if len(ordered) == 1:
        return [f"{first_kind} on all {len(answers)} nodes"]
    texts = [f"{first_kind} on {len(first_names)} nodes"]
    texts += [f"{kind} on {named(names)}" for kind, names in ordered[1:MOST_KINDS]]
    rest = ordered[MOST_KINDS:]
    if rest:
        others = named(name for _kind, names in rest for name in names)
        texts.append(f"{len(rest)} more kinds on {others}")
    return texts


def _describe_link_figures(edges: Edges) -> list[str]:
    """Return texts that say how fast the links are.

    edges: {(from, to): row}.
    """
    rates = sorted(
        (row["gbits"], pair) for pair, row in edges.items() if row.get("gbits") is not None
    )
    trips = sorted(
        (row["rtt"] * 1000, pair) for pair, row in edges.items() if row.get("rtt") is not None
    )
    texts = []
    if rates:
        texts.append(_describe_rates(rates, [edges[pair]["together"] for _rate, pair in rates]))
    if trips:
        median = statistics.median(trip for trip, _pair in trips)
        worst, (name, peer) = trips[-1]
        texts.append(f"latency: median {median:.2f} ms, worst {worst:.2f} ms ({name} to {peer})")
    missing = sum(is_unmeasured(row) for row in edges.values())
    late = sum(bool(row.get("late")) for row in edges.values())
    if missing:
        text = f"bandwidth of {missing} of {len(rates) + missing} ways not measured"
        if late:
            text += f", {late} because time was short"
        texts.append(text)
    return texts


def _describe_rates(rates: Sequence[tuple[float, tuple[str, str]]], counts: Sequence[int]) -> str:
    """Return the text about the bandwidth of all links.

    rates: [(Gbit/s, (from, to))], the slowest first. counts: how many nodes sent at once, per link.
    """
    at_once = str(min(counts))
    if max(counts) != min(counts):
        at_once = f"{min(counts)} to {max(counts)}"
    slowest, (name, peer) = rates[0]
    median = statistics.median(rate for rate, _pair in rates)
    return (
        f"TCP on {len(rates)} ways, {at_once} nodes at once: slowest {name} to {peer}"
        f" {slowest:.3g} Gbit/s, median {median:.3g}, fastest {rates[-1][0]:.3g}"
    )


def _note(node: Mapping[str, Any], result: Mapping[str, Any]) -> Finding:
    """Return the note about one node: hardware, slowest link, what is missing."""
    interface, mtu, hcas = _describe_hardware(node, result["own"])
    parts = [f"{interface} {node['address']}, MTU {mtu}", hcas]
    rates = sorted(
        (row["gbits"], to) for to, row in result["edges"].items() if row.get("gbits") is not None
    )
    if rates:
        rate, peer = rates[0]
        row = result["edges"][peer]
        text = (
            f"to {peer} {rate:.3g} Gbit/s (TCP, {row['together']} nodes at once),"
            f" {row.get('rtt', 0) * 1000:.2f} ms"
        )
        if len(rates) > 1:
            text = f"slowest of {len(rates)}: {text}"
        parts.append(text)
    parts += [
        f"to {peer}: bandwidth not measured"
        for peer, row in sorted(result["edges"].items())
        if is_unmeasured(row)
    ]
    return finding("network.measured", "; ".join(parts), "", node["name"], "note")
