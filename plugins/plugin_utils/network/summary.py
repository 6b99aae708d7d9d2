# SPDX-License-Identifier: Apache-2.0
"""Notes about what the network check measured.

There is one row per node, or one row for many nodes. Pure.
"""

from __future__ import annotations

import statistics

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings

# More nodes than this stand in one row.
ROWS = 8
# So many kinds of nodes are named in it.
KINDS = 4


def notes(nodes, heard):
    """Return the notes about nodes and links.

    nodes: {name: node of the plan}. heard: {name: what library/network_check.py returned in state
    connected}.
    """
    if len(heard) <= ROWS:
        return [_note(nodes[name], result) for name, result in heard.items()]
    edges = {
        (name, to): row for name, result in heard.items() for to, row in result["edges"].items()
    }
    text = "; ".join(_describe_kinds(nodes, heard) + _describe_links(edges))
    return [findings.finding("network.measured", text, "", list(heard), "note")]


def unmeasured(row):
    """Return True if a link's bandwidth is missing.

    The test failed, or there was no time for it.
    """
    return bool(row.get("late")) or ("together" in row and row.get("gbits") is None)


def _describe_hardware(node, answer):
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
    return node["interface"], mtu, f"HCAs: {findings.named(hcas)}"


def _describe_kinds(nodes, answers):
    """Return texts about the nodes' interfaces, the most frequent kind first."""
    groups = {}
    for name, result in answers.items():
        interface, mtu, hcas = _describe_hardware(nodes[name], result["own"])
        kind = f"{interface}, MTU {mtu}, {hcas}"
        groups.setdefault(kind, []).append(name)
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    first_kind, first_names = ordered[0]
    if len(ordered) == 1:
        return [f"{first_kind} on all {len(answers)} nodes"]
    texts = [f"{first_kind} on {len(first_names)} nodes"]
    texts += [f"{kind} on {findings.named(names)}" for kind, names in ordered[1:KINDS]]
    rest = ordered[KINDS:]
    if rest:
        others = findings.named(name for _kind, names in rest for name in names)
        texts.append(f"{len(rest)} more kinds on {others}")
    return texts


def _describe_links(edges):
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
    missing = sum(unmeasured(row) for row in edges.values())
    late = sum(bool(row.get("late")) for row in edges.values())
    if missing:
        text = f"bandwidth of {missing} of {len(rates) + missing} ways not measured"
        if late:
            text += f", {late} for want of time"
        texts.append(text)
    return texts


def _describe_rates(rates, counts):
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


def _note(node, result):
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
        if unmeasured(row)
    ]
    return findings.finding("network.measured", "; ".join(parts), "", node["name"], "note")
