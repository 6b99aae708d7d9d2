# SPDX-License-Identifier: Apache-2.0
"""Comparison of the measured quality of links with the limits of the site.

Pure. Quality is the offset of the clocks, the path MTU and the bandwidth.
"""

from __future__ import annotations

import statistics

from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import (
    finding,
    unequal,
)

# A link that is slower than the median of all by this factor gets a warning.
SLOW_EDGE = 4.0


def judge(heard, allowed):
    """Return the findings about clocks, packet sizes and bandwidth of all links.

    heard: {node name: what library/network_check.py returned in state connected}. allowed:
    bandwidth (Gbit/s), clock_seconds ({level: seconds}).
    """
    edges = {
        (name, to): row for name, result in heard.items() for to, row in result["edges"].items()
    }
    floor = float(allowed.get("bandwidth") or 0)
    findings = _judge_clocks(edges, allowed.get("clock_seconds") or {})
    findings += _judge_packet_sizes(heard, edges)
    return findings + _judge_rates(edges, floor) + _judge_missing_rates(edges, floor)


def _judge_rates(edges, floor):
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


def _judge_missing_rates(edges, floor):
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


def _judge_clocks(edges, floors):
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


def _level_of_offset(offset, floors):
    """Return the level of a finding about an offset in seconds, or None.

    None means that the offset is allowed.
    """
    for level in ("stop", "warn"):
        if level in floors and abs(offset) > float(floors[level]):
            return level
    return None


def _judge_packet_sizes(answers, edges):
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
        size = row.get("path_mtu")
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
