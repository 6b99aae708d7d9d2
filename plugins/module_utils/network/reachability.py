# SPDX-License-Identifier: Apache-2.0
"""Which ports the network's proof needs, and what the nodes' answers mean. Pure; who connects to
whom: ring.py.
"""

from __future__ import annotations

from ..base import findings
from ..plan import render
from ..preflight import interfaces
from . import link_quality, summary
from .check_lock import ID

CHECK = "network"
# Launchers whose ranks all come to the first node's start port (docs/facts.md, 1, 3, 5;
# launchers.py): there it is needed, elsewhere nobody listens.
MEET_AT_START = ("paddle", "fleetrun", "msrun")
WHY = {
    "timeout": "no answer",
    "refused": "refused",
    "unroutable": "no route",
    "forbidden": "forbidden on this node itself",
    "source": "the address is not on this node any more",
    "hello": "connected, but nothing was said",
    "large": "connected, but larger packets do not come through",
    "stranger": "somebody else's program answers",
    "wrong": "another machine answers",
    "error": "failed",
}


def planned(made):
    """Return the ports of the plan that listeners are opened on: the ranks', and the ends of the
    range from which --master gives others.
    """
    start = made["ports"]["start"]
    ends = (
        [int(text) for text in made["env"]["PORT_RANGE"].split(":")]
        if "PORT_RANGE" in made["env"]
        else []
    )
    return sorted({start, start + made["ports"]["count"] - 1} | set(ends))


def needed(made):
    """Return the planned ports without which nothing can start, all of the first node: where the
    ranks meet.
    """
    name = made["launcher"]["name"]
    meets = name in MEET_AT_START or bool(made["scheduler"])
    return (
        (planned(made) if "PORT_RANGE" in made["env"] else [made["ports"]["start"]])
        if meets
        else []
    )


def judge(made, results, allowed):
    """Return findings; results: {node name: what library/network_proof.py returned in state
    connected, or what the connection said (msg)}.
    """
    met, busy = (
        _met(results),
        {name for name, result in results.items() if result and result.get("rival")},
    )
    if len(met) > 1 and busy:
        return [_rival(met)]
    # What one node alone says of another check is taken for its own trouble: the others are judged
    # as if it were not there.
    found = [_alone(name, met[name]) for name in met if name in busy] or _elsewhere(results)
    results = {name: result for name, result in results.items() if name not in busy}
    nodes = {node["name"]: node for node in made["nodes"]}
    heard = {
        name: _whole(result, nodes)
        for name, result in results.items()
        if result and "reached" in result and result.get("own")
    }
    heard = {
        name: dict(result, unreached=_of_this_check(result["unreached"], busy))
        for name, result in heard.items()
    }
    found += [_mute(name, result or {}) for name, result in results.items() if name not in heard]
    for name, result in heard.items():
        found += _own(
            name, nodes[name], result, needed(made) if name == made["nodes"][0]["name"] else []
        )
    found += _unreached(made, nodes, heard)
    found += _seen(nodes, heard)
    found += link_quality.judge(heard, allowed)
    found += interfaces.adapters(
        made, {name: result["own"].get("hcas") for name, result in heard.items()}
    )
    return found + summary.notes(nodes, heard)


def _whole(result, nodes):
    """Return what a node said with every part in it, and without what it says of nodes that the
    plan does not have.
    """
    told = dict({"unreached": [], "seen_as": {}, "edges": {}, "aside": {}}, **result)
    if not {"failed", "ephemeral", "range"} <= set(result["own"].get("listening") or ()):
        told["own"] = dict(result["own"], listening=None)
    told["edges"] = {
        to: dict({"together": 1}, **row) if row.get("gbits") is not None else row
        for to, row in told["edges"].items()
    }
    return dict(told, unreached=[row for row in told["unreached"] if row["to"] in nodes])


def _of_this_check(rows, busy):
    """Return the failed connections that say something of the network: none to another check's
    listener, none to a node that has such a one.
    """
    return [row for row in rows if row["why"] != "other" and row["to"] not in busy]


def _met(results):
    """Return {node: [rival]} of the nodes that speak of another check: on themselves, or on a node
    that they came to.

    A node says `other` of a peer. Where that peer says of itself that it has a rival, both count.
    """
    met = {
        name: [result["rival"]] if result and result.get("rival") else []
        for name, result in results.items()
    }
    for name, result in results.items():
        rows = (result or {}).get("unreached", [])
        met[name] += [
            {"id": row["text"], "seconds": row.get("age", 0)}
            for row in rows
            if row["why"] == "other"
        ]
    return {name: rivals for name, rivals in met.items() if rivals}


def _since(rivals):
    """Return in words which checks were met, and for how long they had been there."""
    ids = (
        findings.named(sorted({rival["id"] for rival in rivals if ID.match(rival["id"] or "")}))
        or "its id is not known"
    )
    return "(%s), since %d s" % (ids, max(rival["seconds"] for rival in rivals))


def _rival(met):
    """Return the one finding that another check was met: what two checks find of each other's
    listeners says nothing of the network.
    """
    text = "another check of these nodes was running " + _since(
        [rival for rivals in met.values() for rival in rivals]
    )
    return findings.finding(CHECK, text, "run this one again when it is through", list(met))


def _alone(name, rivals):
    """Return the finding about a node that says that another check was running on it, when no other
    node speaks of one.
    """
    text = "another check was running on it " + _since(rivals)
    return findings.finding(
        CHECK, text, "run this one again when that one is through; then look at this node", name
    )


def _elsewhere(results):
    """Return findings about nodes that are said to have another check's listener and do not say so
    themselves.

    Two nodes are believed. Where one node says so, either of the two may be wrong, and both are
    named.
    """
    rows = {}
    for name, result in results.items():
        for row in (result or {}).get("unreached", []):
            if row["why"] == "other" and row["to"] in results:
                rows.setdefault(row["to"], {}).setdefault(
                    name, {"id": row["text"], "seconds": row.get("age", 0)}
                )
    found = []
    for to, told in rows.items():
        text = f"{findings.named(told)} met another check on {to} {_since(list(told.values()))}"
        remedy = "run this one again when that one is through; then look at %s" % (
            to if len(told) > 1 else "both"
        )
        found.append(findings.finding(CHECK, text, remedy, to if len(told) > 1 else [*told, to]))
    return found


def _mute(name, result):
    remedy = "log in by hand with the same user and key and look at the node; then try again"
    return findings.finding(
        CHECK,
        "did not take part in the network's proof: %s"
        % (
            (result.get("msg") or "").strip()
            or (result.get("module_stderr") or "").strip()
            or "no reason was given"
        ),
        remedy,
        name,
    )


def _own(name, node, result, ports):
    """Judge what a node's own listener could not do."""
    own = result["own"]
    if not own.get("listening"):
        return [_mute(name, {"msg": own.get("msg") or "its listener did not start"})]
    failed, found = own["listening"]["failed"], []
    for port in ports:
        if str(port) in failed:
            text = "port %d, where the ranks meet, cannot be taken on %s: %s" % (
                port,
                node["address"],
                failed[str(port)],
            )
            found.append(
                findings.finding(
                    CHECK, text, "end what holds it, or choose another with -e start_port", name
                )
            )
    if not own["listening"]["ephemeral"]:
        text = "no port between %d and %d can be taken on %s" % (
            tuple(own["listening"]["range"]) + (node["address"],)
        )
        found.append(
            findings.finding(
                CHECK,
                text,
                "gloo and NCCL take theirs there: see net.ipv4.ip_local_port_range and `ss -s`",
                name,
            )
        )
    return found


def _unreached(made, nodes, heard):
    """Judge the connections that failed: every way out of a node, every way in, then single ways."""
    failures = [
        dict(row, source=name) for name, result in heard.items() for row in result["unreached"]
    ]
    reached = {
        (name, to)
        for name, result in heard.items()
        for to, ports in result["reached"].items()
        if ports
    }
    tried = reached | {(row["source"], row["to"]) for row in failures}
    dead = {pair for pair in tried if pair not in reached}
    found, first = [], made["nodes"][0]["name"]
    alone = []
    for name in nodes:
        out, into = (
            {pair for pair in tried if pair[0] == name},
            {pair for pair in tried if pair[1] == name},
        )
        peers = {peer for pair in out | into for peer in pair} - {name}
        if (
            len(nodes) > 2 and len(peers) > 1 and out and into and out | into <= dead
        ):  # one peer may lie
            alone.append(name)
    for name in alone:
        mine = [row for row in failures if name in (row["source"], row["to"])]
        text = "{} reaches nobody and nobody reaches it at {} on {}: {}".format(
            name, nodes[name]["address"], nodes[name]["interface"], _reasons(mine, heard))  # fmt: skip
        found.append(
            findings.finding(CHECK, text, _cut_remedy(made, nodes[name], mine, heard), name)
        )
    rest = [row for row in failures if row["source"] not in alone and row["to"] not in alone]
    mute = [
        name
        for name in nodes
        if len(nodes) > 2
        and len({row["to"] for row in rest if row["source"] == name}) > 1
        and not any(pair[0] == name for pair in reached)
    ]
    for name in mute:
        mine = [row for row in rest if row["source"] == name]
        text = "{} reaches nobody from {} on {}, though others are reached: {}".format(
            name, nodes[name]["address"], nodes[name]["interface"], _reasons(mine, heard))  # fmt: skip
        remedy = "look at the rules for what leaves {}: nft list ruleset; ip route get {}".format(
            name,
            nodes[mine[0]["to"]]["address"],
        )
        found.append(findings.finding(CHECK, text, remedy, name))
    groups, misled = {}, {(row["source"], row["to"]) for row in rest if row["why"] == "wrong"}
    for row in rest:
        pair = (row["source"], row["to"])
        # Where another machine answers, what that one refuses says nothing.
        if row["source"] not in mute and (row["why"] == "wrong" or pair not in misled):
            kind = "" if pair in dead else _kind(row, heard)
            groups.setdefault(
                (
                    row["to"],
                    kind,
                    row["why"],
                    row["text"] if row["why"] in ("wrong", "error") else "",
                ),
                [],
            ).append(row)
    for (to, kind, why, _text), rows in groups.items():
        wanted = (
            kind != "planned"
            or why in ("large", "wrong")
            or any(to == first and row["port"] in needed(made) for row in rows)
        )
        found.append(
            _way(
                made,
                nodes,
                heard,
                to,
                kind,
                why,
                rows,
                reached,
                tried,
                "stop" if wanted else "warn",
            )
        )
    return found


def _kind(row, heard):
    """Return whether a port is planned or ephemeral; a listener says so itself."""
    said = (heard.get(row["to"], {}).get("own") or {}).get("listening") or {}
    return "ephemeral" if row["port"] in said.get("ephemeral", ()) else "planned"


def _reasons(rows, heard):
    """Return in words how connections failed, and what answers beside them."""
    words = sorted({WHY.get(row["why"], row["why"]) for row in rows})
    sides = [heard[row["source"]]["aside"].get(row["to"]) or {} for row in rows]
    answers = [
        label
        for key, label in (("ping", "ping works"), ("ssh", "SSH answers"))
        if sides and all(side.get(key) for side in sides)
    ]
    words += sorted({row["text"] for row in rows if row["why"] == "error"})
    return ", ".join(words) + (", while {}".format(" and ".join(answers)) if answers else "")


def _range(node, heard):
    said = (heard.get(node["name"], {}).get("own") or {}).get("listening")
    return "%d-%d" % tuple(said["range"]) if said else "the range of net.ipv4.ip_local_port_range"


def _open(made, node, sources, nodes, heard, kind=""):
    """Return what a firewall of a node has to let in."""
    parts = {
        "planned": render.ports(made) if len(planned(made)) > 1 else str(made["ports"]["start"]),
        "ephemeral": _range(node, heard),
    }
    wanted = parts[kind] if kind else "{}, {}".format(parts["planned"], parts["ephemeral"])
    return "a firewall has to let TCP {} from {} into {} ({}), on it or on the way; provision.yml opens a node's own with runtime_firewall".format(
        wanted, findings.named([nodes[name]["address"] for name in sources]), node["name"], node["address"])  # fmt: skip


def _cut_remedy(made, node, rows, heard):
    sources = sorted({row["source"] for row in rows} - {node["name"]}) or [
        row["to"] for row in rows[:1]
    ]
    nodes = {item["name"]: item for item in made["nodes"]}
    return "see `ip -br address show {}` there, cable, VLAN and switch; {}".format(
        node["interface"],
        _open(made, node, sources, nodes, heard),
    )


def _way(made, nodes, heard, to, kind, why, rows, reached, tried, level):
    """Return the finding of one group: connections to one node that failed for one reason on one
    kind of port.
    """
    node, sources = nodes[to], list(dict.fromkeys(row["source"] for row in rows))
    asked = {pair[0] for pair in tried if pair[1] == to}
    who = (
        f"nobody (tried: {findings.named(sources)}) reaches"
        if len(asked) > 1 and set(sources) == asked
        else findings.named(sources) + " cannot reach"
    )
    ports = sorted({row["port"] for row in rows})
    where = "{} {}".format("port" if len(ports) == 1 else "ports", ", ".join(map(str, ports)))
    where = {
        "planned": where,
        "ephemeral": where + " (ephemeral, as gloo and NCCL take them)",
        "": "any port of it",
    }[kind]
    text = "{} {} at {}, {}: {}".format(who, to, node["address"], where, _reasons(rows, heard))
    back = [(to, name) in reached for name in sources if (to, name) in tried]
    if back and all(back) and not any((name, to) in reached for name in sources):
        text += "; the other direction works"
    others = sorted(
        {port for name in sources for port in heard[name]["reached"].get(to, [])} - set(ports)
    )
    if others:
        text += "; reached: {}".format(", ".join(map(str, others)))
    if level == "warn":
        text += "; no rank listens there with {}".format(made["launcher"]["name"])
    return findings.finding(
        CHECK,
        text,
        _remedy(made, node, nodes, heard, kind, why, rows, sources),
        [to] + sources,
        level,
    )


def _remedy(made, node, nodes, heard, kind, why, rows, sources):
    name, address = node["name"], node["address"]
    if why in ("timeout", "refused", "hello"):
        return _open(made, node, sources, nodes, heard, kind)
    if why == "unroutable":
        opening = _open(made, node, sources, nodes, heard, kind)
        return (
            f"on {sources[0]}: ip route get {address}; give trainyard_address a network that all"
            f" nodes share; a firewall that rejects reads the same: {opening}"
        )
    if why == "large":
        interface = node["interface"]
        return (
            "a black hole for full packets (ICMP 'fragmentation needed' is dropped, or a switch has"
            f" smaller frames): ping -M do -s 1472 {address}; "
            + f"give all nodes' interfaces ({interface}) the MTU that the way has"
        )
    if why == "wrong":
        return "{} answers at {}: one address on two machines, or a translation (NAT) on the way: ip neigh show {}; correct trainyard_address".format(
            rows[0]["text"], address, address)  # fmt: skip
    if why == "stranger":
        return (
            f"a proxy or another program answers on the way to {name} ({address}): ss -ltnp there"
        )
    if why == "forbidden":
        return "a rule for outgoing connections on {}: nft list chain inet filter output".format(
            ", ".join(sources)
        )
    return "on {}: ip -br address; then run the check again".format(", ".join(sources))


def _seen(nodes, heard):
    """Judge who comes with another address than its own."""
    found = []
    for name, result in heard.items():
        for address in sorted(set(result["seen_as"].values())):
            peers = [to for to, seen in result["seen_as"].items() if seen == address]
            text = "{} comes to {} as {} instead of {}".format(
                name,
                findings.named(peers),
                address,
                nodes[name]["address"],
            )
            remedy = (
                "an address translation (NAT) is between the nodes: ranks that answer to this"
                " address reach another machine; route the fabric without it"
            )
            # The address is what the peers say: the word of one is about both.
            found.append(
                findings.finding(
                    CHECK, text, remedy, name if len(peers) > 1 else [name, *peers], "warn"
                )
            )
    return found
