# SPDX-License-Identifier: Apache-2.0
"""What the ways between the nodes carry, held against what the site asks: clock, packet size,
bandwidth. Pure.
"""

from __future__ import annotations

import statistics

from ..base import findings

CHECK = "network"
# A way may be slower than the middle of all by so much before somebody is told.
SLOW_EDGE = 4.0


def judge(heard, allowed):
    """Return findings; heard: {node name: what library/network_proof.py returned in state
    connected}; allowed: bandwidth (Gbit/s), clock_seconds.
    """
    edges = {
        (name, to): row for name, result in heard.items() for to, row in result["edges"].items()
    }
    found = _clocks(edges, allowed) + _sizes(heard, edges)
    rates = {pair: row["gbits"] for pair, row in edges.items() if row.get("gbits") is not None}
    floor = float(allowed.get("bandwidth") or 0)
    middle = statistics.median(rates.values()) if rates else 0
    for (name, to), rate in sorted(rates.items()):
        if floor and rate < floor:
            remedy = (
                "see `ethtool` (speed, duplex) on both, the switch between them, or lower"
                " preflight_bandwidth"
            )
            found.append(
                findings.finding(
                    CHECK,
                    f"{name} to {to}: {rate:.3g} Gbit/s; wanted at least {floor:g}",
                    remedy,
                    [name, to],
                )
            )
        elif len(rates) > 2 and rate * SLOW_EDGE < middle:
            text = (
                f"{name} to {to}: {rate:.3g} Gbit/s, and half of all ways carry {middle:.3g} or"
                " more; the slowest way sets the pace"
            )
            found.append(
                findings.finding(
                    CHECK,
                    text,
                    "compare `ethtool` (speed, duplex, errors) with another node's",
                    [name, to],
                    "warn",
                )
            )
    for pair, row in sorted(edges.items()):
        if "together" in row and row.get("gbits") is None and floor:
            text = "%s to %s: no bandwidth could be measured; wanted at least %g Gbit/s" % (
                pair + (floor,)
            )
            found.append(
                findings.finding(
                    CHECK, text, "run the check again, then look at the way between the two", pair
                )
            )
    return found


def _clocks(edges, allowed):
    found, said, floors = [], set(), allowed.get("clock_seconds") or {}
    for pair, row in sorted(edges.items()):
        gap = row.get("offset") or 0
        level = next(
            (
                level
                for level in ("stop", "warn")
                if level in floors and abs(gap) > float(floors[level])
            ),
            None,
        )
        if level and frozenset(pair) not in said:
            said.add(frozenset(pair))
            text = "{}'s clock is {:.1f} s {} {}'s; allowed {} s".format(
                pair[1],
                abs(gap),
                "ahead of" if gap > 0 else "behind",
                pair[0],
                floors[level],
            )
            found.append(
                findings.finding(
                    "clock",
                    text,
                    "as root on the one that is wrong: timedatectl set-ntp true",
                    pair,
                    level,
                )
            )
    return found


def _sizes(heard, edges):
    values = {
        name: result["own"]["interface"]["mtu"]
        for name, result in heard.items()
        if (result["own"].get("interface") or {}).get("mtu")
    }
    remedy = (
        "give all interfaces of the fabric one MTU that the switches carry: ip link set IFACE mtu"
        " N, and in the network's configuration"
    )
    found = findings.unequal(CHECK, "MTU of the fabric's interface", values, remedy, "warn")
    for (name, to), row in sorted(edges.items()):
        size = row.get("path_mtu")
        if size == 0:
            text = (
                f"{name} to {to}: no UDP comes through, so the path MTU is not known; larger"
                " packets pass by TCP"
            )
            found.append(findings.finding(CHECK, text, "", (name, to), "note"))
        elif size and size < min(values.get(name, size), values.get(to, size)):
            text = (
                "%s to %s: packets of more than %d bytes are lost, and the interfaces have MTU %d"
                % (
                    name,
                    to,
                    size,
                    min(values[name], values[to]),
                )
            )
            found.append(findings.finding(CHECK, text, remedy, (name, to), "warn"))
    return found
