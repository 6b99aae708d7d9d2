# SPDX-License-Identifier: Apache-2.0
"""What the network's proof shows of nodes and ways: a row a node, one row of them all where there
are many. Pure.
"""

from __future__ import annotations

import statistics

from ..base import findings

CHECK = "network"
# More nodes than this stand in one row.
ROWS = 8
# So many kinds of nodes are named in it.
KINDS = 4


def notes(nodes, heard):
    """Return the notes; nodes: {name: node of the plan}; heard: {name: what
    library/network_proof.py returned in state connected}.
    """
    if len(heard) <= ROWS:
        return [_note(nodes[name], result) for name, result in heard.items()]
    text = "; ".join(
        _kinds(nodes, heard)
        + _ways(
            {
                (name, to): row
                for name, result in heard.items()
                for to, row in result["edges"].items()
            }
        )
    )
    return [findings.finding(CHECK, text, "", list(heard), "note")]


def unmeasured(row):
    """Return whether a way's bandwidth was to be measured and could not be, or there was no time
    for it.
    """
    return bool(row.get("late")) or ("together" in row and row.get("gbits") is None)


def _wire(node, own):
    """Return interface, MTU and RDMA devices of a node in words."""
    rows = own.get("hcas") or []
    hcas = [
        "{}:{} {}".format(row["name"], row["port"], row["state"].split(": ")[-1]) for row in rows
    ]
    return (
        node["interface"],
        (own.get("interface") or {}).get("mtu") or "?",
        f"HCAs: {findings.named(hcas)}" if rows else "no HCA",
    )


def _kinds(nodes, heard):
    """Return in words what interfaces the nodes have, the most frequent kind first."""
    groups = {}
    for name, result in heard.items():
        groups.setdefault("{}, MTU {}, {}".format(*_wire(nodes[name], result["own"])), []).append(
            name
        )
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    if len(ordered) == 1:
        return ["%s on all %d nodes" % (ordered[0][0], len(heard))]
    words = [
        "{} on {}".format(kind, findings.named(names) if at else "%d nodes" % len(names))
        for at, (kind, names) in enumerate(ordered[:KINDS])
    ]
    rest = ordered[KINDS:]
    return words + (
        [
            "%d more kinds on %s"
            % (len(rest), findings.named(name for _kind, names in rest for name in names))
        ]
        if rest
        else []
    )


def _ways(edges):
    """Return in words how fast the ways are; edges: {(from, to): row}."""
    rates = sorted(
        (row["gbits"], pair) for pair, row in edges.items() if row.get("gbits") is not None
    )
    trips = sorted(
        (row["rtt"] * 1000, pair) for pair, row in edges.items() if row.get("rtt") is not None
    )
    missing, words = sum(unmeasured(row) for row in edges.values()), []
    if rates:
        counts = sorted({edges[pair]["together"] for _rate, pair in rates})
        words.append(
            "TCP on %d ways, %s nodes at once: slowest %s to %s %.3g Gbit/s, median %.3g, fastest"
            " %.3g"
            % (
                len(rates),
                counts[0] if len(counts) == 1 else "%d to %d" % (counts[0], counts[-1]),
                rates[0][1][0],
                rates[0][1][1],
                rates[0][0],
                statistics.median(rate for rate, _pair in rates),
                rates[-1][0],
            )
        )
    if trips:
        worst = (statistics.median(trip for trip, _pair in trips), trips[-1][0]) + trips[-1][1]
        words.append("latency: median {:.2f} ms, worst {:.2f} ms ({} to {})".format(*worst))
    late = sum(bool(row.get("late")) for row in edges.values())
    if missing:
        words.append(
            "bandwidth of %d of %d ways not measured%s"
            % (missing, len(rates) + missing, ", %d for want of time" % late if late else "")
        )
    return words


def _note(node, result):
    """Return the line that shows what a node's ways are made of."""
    interface, mtu, hcas = _wire(node, result["own"])
    parts = ["{} {}, MTU {}".format(interface, node["address"], mtu), hcas]
    rates = sorted(
        (
            (row["gbits"], to, row)
            for to, row in result["edges"].items()
            if row.get("gbits") is not None
        ),
        key=lambda item: item[:2],
    )
    if rates:
        slow, to, row = rates[0]
        many = "slowest of %d: " % len(rates) if len(rates) > 1 else ""
        parts.append(
            "%sto %s %.3g Gbit/s (TCP, %d nodes at once), %.2f ms"
            % (many, to, slow, row["together"], row.get("rtt", 0) * 1000)
        )
    parts += [
        f"to {to}: bandwidth not measured"
        for to, row in sorted(result["edges"].items())
        if unmeasured(row)
    ]
    return findings.finding(CHECK, "; ".join(parts), "", node["name"], "note")
