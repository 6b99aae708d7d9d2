# SPDX-License-Identifier: Apache-2.0
"""Judgement of the network check: the ports that it needs, and the nodes' answers.

Pure. node_check.py chooses the nodes that connect to each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import (
    Finding,
    finding,
    named,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.network.check_lock import ID
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import Plan

from ..plan import render
from ..preflight import forced_interfaces
from . import link_quality

# Launchers whose ranks all come to the first node's start port (docs/facts.md, 1, 3, 5;
# launcher_table.py). There it is needed. Nothing listens on the other nodes' start ports.
MEET_AT_START = ("paddle", "fleetrun", "msrun")
WHY = {
    "timeout": "no answer",
    "refused": "refused",
    "unroutable": "no route",
    "forbidden": "forbidden on this node itself",
    "source": "the address is not on this node any more",
    "hello": "connected, but nothing was said",
    "large": "connected, but larger packets do not come through",
    "stranger": "another program answers",
    "wrong": "another machine answers",
    "error": "failed",
}
# The code of a failed connection, per reason of WHY.
CODE_OF_FAILURE = {
    "timeout": "network.port_filtered",
    "refused": "network.port_refused",
    "unroutable": "network.no_route",
    "forbidden": "network.outgoing_blocked",
    "source": "network.address_gone",
    "hello": "network.silent_port",
    "large": "network.large_packets_lost",
    "stranger": "network.port_taken",
    "wrong": "network.wrong_machine",
    "error": "network.connection_failed",
}
# Each kind of port, as a pattern around the port numbers. '' means that no port was reached.
PORTS_OF_KIND = {
    "planned": "{}",
    "ephemeral": "{} (ephemeral, as gloo and NCCL take them)",
    "": "any port of it",
}


@dataclasses.dataclass
class _Connections:
    """The connections that the nodes tried, and the ones that succeeded.

    plan: the compiled plan. nodes: {name: node of the plan}. answers: {name: result} of the nodes
    that took part. failures: rows of `unreached` with `source`, the node that tried. reached and
    tried: pairs (from, to) of node names.
    """

    plan: Plan
    nodes: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Mapping[str, Any]]
    failures: list[dict[str, Any]]
    reached: set[tuple[str, str]]
    tried: set[tuple[str, str]]

    def is_dead(self, pair: tuple[str, str]) -> bool:
        """Return True if the pair was tried and no port was reached."""
        return pair in self.tried and pair not in self.reached


def listening_ports(plan: Plan) -> list[int]:
    """Return the ports of the plan that listeners are opened on, sorted.

    They are the ends of the ranks' range, and of the range from which --master gives others.
    """
    start = plan["ports"]["start"]
    ports = {start, start + plan["ports"]["count"] - 1}
    if "PORT_RANGE" in plan["env"]:
        ports.update(int(text) for text in plan["env"]["PORT_RANGE"].split(":"))
    return sorted(ports)


def meeting_ports(plan: Plan) -> list[int]:
    """Return the planned ports without which nothing can start.

    All are ports of the first node, where the ranks meet.
    """
    if plan["launcher"]["name"] not in MEET_AT_START and not plan["scheduler"]:
        return []
    if "PORT_RANGE" in plan["env"]:
        return listening_ports(plan)
    return [plan["ports"]["start"]]


def judge(plan: Plan, results: Mapping[str, Any], allowed: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of a network check.

    results: {node name: what library/network_check.py returned in state connected, or the
    connection's error (msg)}. allowed: the limits of the site, see the module `link_quality`.
    """
    rivals = _collect_rivals(results)
    busy = {name for name, result in results.items() if result and result.get("rival")}
    if len(rivals) > 1 and busy:
        return [_describe_rivals(rivals)]
    # If only one node speaks of another check, the trouble is taken to be that node's own. The
    # others are judged as if it were not there.
    findings = [_describe_lone_rival(name, rivals[name]) for name in rivals if name in busy]
    findings = findings or _judge_rivals_of_peers(results)
    results = {name: result for name, result in results.items() if name not in busy}
    nodes = {node["name"]: node for node in plan["nodes"]}
    answers = _usable_answers(results, nodes, busy)
    findings += [
        _describe_silent_node(name, result or {})
        for name, result in results.items()
        if name not in answers
    ]
    for name, result in answers.items():
        ports = []
        if name == plan["nodes"][0]["name"]:
            ports = meeting_ports(plan)
        findings += _judge_listener(name, nodes[name], result["own"], ports)
    findings += _judge_failures(_collect_connections(plan, nodes, answers))
    findings += _judge_translated_addresses(nodes, answers)
    findings += link_quality.judge(answers, allowed)
    hcas = {name: result["own"].get("hcas") for name, result in answers.items()}
    findings += forced_interfaces.judge_adapters(plan, hcas)
    return findings + link_quality.describe_links(nodes, answers)


# --- the nodes' answers


def _usable_answers(
    results: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], busy: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return {node name: completed answer} of the nodes that took part."""
    answers = {}
    for name, result in results.items():
        if not result or "reached" not in result or not result.get("own"):
            continue
        answer = _complete_answer(result, nodes)
        answer["unreached"] = _failures_of_this_check(answer["unreached"], busy)
        answers[name] = answer
    return answers


def _complete_answer(
    result: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return an answer with every part in it, and only with nodes that the plan has."""
    answer = dict({"unreached": [], "seen_as": {}, "edges": {}, "aside": {}}, **result)
    if not {"failed", "ephemeral", "range"} <= set(result["own"].get("listening") or ()):
        answer["own"] = dict(result["own"], listening=None)
    edges = {}
    for peer, row in answer["edges"].items():
        edges[peer] = row
        if row.get("gbits") is not None:
            edges[peer] = dict({"together": 1}, **row)
    answer["edges"] = edges
    answer["unreached"] = [row for row in answer["unreached"] if row["to"] in nodes]
    return answer


def _failures_of_this_check(
    rows: Sequence[Mapping[str, Any]], busy: Collection[str]
) -> list[Mapping[str, Any]]:
    """Return the failed connections that say something about the network.

    A connection to another check's listener, or to a node that has one, says nothing about it.
    """
    return [row for row in rows if row["why"] != "other" and row["to"] not in busy]


# --- other checks on the same nodes


def _collect_rivals(results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return {node: [rival]} of the nodes that speak of another check.

    The other check is on the node itself or on a peer that it connected to. A node says `other` of
    a peer. If that peer says of itself that it has a rival, both count.
    """
    rivals = {}
    for name, result in results.items():
        result = result or {}
        known = _rivals_of_peers(result)
        if result.get("rival"):
            known.insert(0, result["rival"])
        if known:
            rivals[name] = known
    return rivals


def _rivals_of_peers(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return [{id, seconds}] of the other checks that one node met on its peers."""
    return [_rival_of(row) for row in result.get("unreached", []) if row["why"] == "other"]


def _rival_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return {id, seconds} of the other check that a failed connection met."""
    return {"id": row["text"], "seconds": row.get("age", 0)}


def _describe_age(rivals: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that says which checks were met, and since when they were there."""
    ids = sorted({rival["id"] for rival in rivals if ID.match(rival["id"] or "")})
    names = named(ids) or "its id is not known"
    seconds = int(max(rival["seconds"] for rival in rivals))
    return f"({names}), since {seconds} s"


def _describe_rivals(rivals: Mapping[str, Sequence[Mapping[str, Any]]]) -> Finding:
    """Return the one finding that another check was met.

    What two checks find of each other's listeners says nothing about the network.
    """
    age = _describe_age([rival for known in rivals.values() for rival in known])
    return finding(
        "network.other_check",
        f"another check of these nodes was running {age}",
        "run this one again when it is through",
        list(rivals),
    )


def _describe_lone_rival(name: str, rivals: Sequence[Mapping[str, Any]]) -> Finding:
    """Return the finding about another check that only its own node speaks of."""
    return finding(
        "network.other_check",
        f"another check was running on it {_describe_age(rivals)}",
        "run this one again when that one is through; then look at this node",
        name,
    )


def _judge_rivals_of_peers(results: Mapping[str, Any]) -> list[Finding]:
    """Return findings about nodes where only peers met another check.

    Two nodes are believed. If only one node says so, either of the two may be wrong, and both are
    named.
    """
    rivals: dict[str, dict[str, dict[str, Any]]] = {}
    for name, result in results.items():
        for row in (result or {}).get("unreached", []):
            if row["why"] == "other" and row["to"] in results:
                rivals.setdefault(row["to"], {}).setdefault(name, _rival_of(row))
    findings = []
    for peer, witnesses in rivals.items():
        suspects, nodes = "both", [*witnesses, peer]
        if len(witnesses) > 1:
            suspects, nodes = peer, [peer]
        age = _describe_age(list(witnesses.values()))
        text = f"{named(witnesses)} met another check on {peer} {age}"
        remedy = f"run this one again when that one is through; then look at {suspects}"
        findings.append(finding("network.other_check", text, remedy, nodes))
    return findings


# --- a node's own listener


def _describe_silent_node(name: str, result: Mapping[str, Any]) -> Finding:
    """Return the finding about a node that did not take part."""
    reason = (
        (result.get("msg") or "").strip()
        or (result.get("module_stderr") or "").strip()
        or "no reason was given"
    )
    return finding(
        "network.no_answer",
        f"did not take part in the network's proof: {reason}",
        "log in by hand with the same user and key and look at the node; then try again",
        name,
    )


def _judge_listener(
    name: str, node: Mapping[str, Any], answer: Mapping[str, Any], ports: Sequence[int]
) -> list[Finding]:
    """Return findings about what a node's own listener could not do.

    answer: what the node says of itself (`own`). ports: the ports that the ranks need on it.
    """
    listener = answer.get("listening")
    if not listener:
        reason = answer.get("msg") or "its listener did not start"
        return [_describe_silent_node(name, {"msg": reason})]
    findings = []
    address, failed = node["address"], listener["failed"]
    for port in ports:
        if str(port) in failed:
            text = (
                f"port {port}, where the ranks meet, cannot be taken on {address}:"
                f" {failed[str(port)]}"
            )
            remedy = "end what holds it, or choose another with -e start_port"
            findings.append(finding("network.port_taken", text, remedy, name))
    if not listener["ephemeral"]:
        low, high = listener["range"]
        text = f"no port between {low:d} and {high:d} can be taken on {address}"
        remedy = "gloo and NCCL take theirs there: see net.ipv4.ip_local_port_range and `ss -s`"
        findings.append(finding("network.no_ephemeral_port", text, remedy, name))
    return findings


# --- connections that failed


def _collect_connections(
    plan: Plan,
    nodes: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
) -> _Connections:
    """Return the _Connections of all nodes that took part."""
    failures: list[dict[str, Any]] = []
    reached: set[tuple[str, str]] = set()
    for name, result in answers.items():
        failures += [dict(row, source=name) for row in result["unreached"]]
        reached.update((name, peer) for peer, ports in result["reached"].items() if ports)
    tried = reached | {(row["source"], row["to"]) for row in failures}
    return _Connections(plan, nodes, answers, failures, reached, tried)


def _judge_failures(connections: _Connections) -> list[Finding]:
    """Return findings about failed connections.

    First come the nodes that are cut off, then the nodes that reach no peer, then single links.
    """
    isolated = [name for name in connections.nodes if _is_isolated(connections, name)]
    findings = [_describe_isolated_node(connections, name) for name in isolated]
    rest = [
        row
        for row in connections.failures
        if row["source"] not in isolated and row["to"] not in isolated
    ]
    outgoing = {
        name: [row for row in rest if row["source"] == name]
        for name in connections.nodes
        if _reaches_nobody(connections, name, rest)
    }
    findings += [_describe_blocked_sender(connections, *item) for item in outgoing.items()]
    for (peer, kind, why, _text), rows in _group_failures(connections, rest, outgoing).items():
        level = _level_of_failures(connections.plan, peer, kind, why, rows)
        findings.append(_describe_failures(connections, peer, kind, why, rows, level))
    return findings


def _is_isolated(connections: _Connections, name: str) -> bool:
    """Return True if a node with two peers or more has no working connection.

    One peer may be wrong, and a cluster of two nodes has only one.
    """
    links = {pair for pair in connections.tried if name in pair}
    peers = {peer for pair in links for peer in pair} - {name}
    return (
        len(connections.nodes) > 2
        and len(peers) > 1
        and any(source == name for source, _peer in links)
        and any(peer == name for _source, peer in links)
        and all(connections.is_dead(pair) for pair in links)
    )


def _describe_isolated_node(connections: _Connections, name: str) -> Finding:
    """Return the finding about a node that is cut off."""
    node = connections.nodes[name]
    rows = [row for row in connections.failures if name in (row["source"], row["to"])]
    text = (
        f"{name} reaches nobody and nobody reaches it at {node['address']} on {node['interface']}:"
        f" {_describe_reasons(rows, connections.answers)}"
    )
    # Without a node that tried to reach it, the rule is needed for the node that it tried.
    sources = sorted({row["source"] for row in rows} - {name}) or [rows[0]["to"]]
    remedy = (
        f"see `ip -br address show {node['interface']}` there, cable, VLAN and switch;"
        f" {_describe_opening(connections, node, sources)}"
    )
    return finding("network.isolated", text, remedy, name)


def _reaches_nobody(
    connections: _Connections, name: str, failures: Sequence[Mapping[str, Any]]
) -> bool:
    """Return True if a node tried two peers or more and reached none of them."""
    return (
        len(connections.nodes) > 2
        and len({row["to"] for row in failures if row["source"] == name}) > 1
        and not any(source == name for source, _peer in connections.reached)
    )


def _describe_blocked_sender(
    connections: _Connections, name: str, rows: Sequence[Mapping[str, Any]]
) -> Finding:
    """Return the finding about a node that reaches no peer, while other nodes do."""
    node, peer = connections.nodes[name], connections.nodes[rows[0]["to"]]
    text = (
        f"{name} reaches nobody from {node['address']} on {node['interface']}, though others are"
        f" reached: {_describe_reasons(rows, connections.answers)}"
    )
    remedy = (
        f"look at the rules for what leaves {name}: nft list ruleset; ip route get"
        f" {peer['address']}"
    )
    return finding("network.outgoing_blocked", text, remedy, name)


def _group_failures(
    connections: _Connections, failures: Sequence[Mapping[str, Any]], blocked: Collection[str]
) -> dict[tuple[str, str, str, str], list[Mapping[str, Any]]]:
    """Return the failures not yet explained, in groups.

    A group's key is (peer, kind of port, why, text). blocked: names of the nodes that reach no peer
    at all.
    """
    misled = {(row["source"], row["to"]) for row in failures if row["why"] == "wrong"}
    groups: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for row in failures:
        pair, why = (row["source"], row["to"]), row["why"]
        text = kind = ""
        # If another machine answers, what that machine refuses says nothing.
        if row["source"] in blocked or (why != "wrong" and pair in misled):
            continue
        if not connections.is_dead(pair):
            kind = _kind_of_port(row, connections.answers)
        if why in ("wrong", "error"):
            text = row["text"]
        groups.setdefault((row["to"], kind, why, text), []).append(row)
    return groups


def _kind_of_port(row: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return 'planned' or 'ephemeral', as the listener of the peer says."""
    if row["port"] in _listener_of(row["to"], answers).get("ephemeral", ()):
        return "ephemeral"
    return "planned"


def _listener_of(name: str, answers: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what a node's listener says of itself, {} for nothing."""
    return (answers.get(name, {}).get("own") or {}).get("listening") or {}


def _level_of_failures(
    plan: Plan, peer: str, kind: str, why: str, rows: Sequence[Mapping[str, Any]]
) -> str:
    """Return 'stop', or 'warn' if no rank needs the ports that were not reached."""
    if kind != "planned" or why in ("large", "wrong"):
        return "stop"
    if peer == plan["nodes"][0]["name"] and any(row["port"] in meeting_ports(plan) for row in rows):
        return "stop"
    return "warn"


def _describe_failures(
    connections: _Connections,
    peer: str,
    kind: str,
    why: str,
    rows: Sequence[Mapping[str, Any]],
    level: str,
) -> Finding:
    """Return the finding about connections to one node that failed for one reason.

    rows: the failures, all on one kind of port.
    """
    node = connections.nodes[peer]
    sources = list(dict.fromkeys(row["source"] for row in rows))
    ports = sorted({row["port"] for row in rows})
    text = (
        f"{_describe_sources(connections, peer, sources)} {peer} at {node['address']},"
        f" {_describe_ports(ports, kind)}: {_describe_reasons(rows, connections.answers)}"
    )
    if _is_one_way(connections, peer, sources):
        text += "; the other direction works"
    others = set()
    for name in sources:
        others.update(connections.answers[name]["reached"].get(peer, []))
    others -= set(ports)
    if others:
        text += f"; reached: {', '.join(map(str, sorted(others)))}"
    if level == "warn":
        text += f"; no rank listens there with {connections.plan['launcher']['name']}"
    remedy = _remedy_of_failures(connections, node, kind, why, rows, sources)
    code = CODE_OF_FAILURE.get(why, CODE_OF_FAILURE["error"])
    return finding(code, text, remedy, [peer, *sources], level)


def _describe_sources(connections: _Connections, peer: str, sources: Sequence[str]) -> str:
    """Return the beginning of a sentence: which nodes do not reach the peer."""
    tried_by = {source for source, target in connections.tried if target == peer}
    if len(tried_by) > 1 and set(sources) == tried_by:
        return f"nobody (tried: {named(sources)}) reaches"
    return f"{named(sources)} cannot reach"


def _describe_ports(ports: Sequence[int], kind: str) -> str:
    """Return the text that names the ports that were not reached."""
    noun = "ports"
    if len(ports) == 1:
        noun = "port"
    return PORTS_OF_KIND[kind].format(f"{noun} {', '.join(map(str, ports))}")


def _is_one_way(connections: _Connections, peer: str, sources: Sequence[str]) -> bool:
    """Return True if only the opposite direction works.

    The peer reaches all sources that it tried, and none of them reaches it.
    """
    back = [(peer, name) for name in sources if (peer, name) in connections.tried]
    return (
        bool(back)
        and connections.reached.issuperset(back)
        and not any((name, peer) in connections.reached for name in sources)
    )


def _describe_reasons(
    rows: Sequence[Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the text that says how connections failed.

    It says, too, what else answers at their targets.
    """
    reasons = sorted({WHY.get(row["why"], row["why"]) for row in rows})
    reasons += sorted({row["text"] for row in rows if row["why"] == "error"})
    text = ", ".join(reasons)
    others = [answers[row["source"]]["aside"].get(row["to"]) or {} for row in rows]
    services = [
        label
        for key, label in (("ping", "ping works"), ("ssh", "SSH answers"))
        if others and all(other.get(key) for other in others)
    ]
    if services:
        text += f", while {' and '.join(services)}"
    return text


# --- remedies


def _remedy_of_failures(
    connections: _Connections,
    node: Mapping[str, Any],
    kind: str,
    why: str,
    rows: Sequence[Mapping[str, Any]],
    sources: Sequence[str],
) -> str:
    """Return what helps against failed connections to one node.

    why: the reason, a key of WHY. sources: names of the nodes that tried.
    """
    name, address, interface = node["name"], node["address"], node["interface"]
    if why in ("timeout", "refused", "hello"):
        return _describe_opening(connections, node, sources, kind)
    if why == "unroutable":
        opening = _describe_opening(connections, node, sources, kind)
        return (
            f"on {sources[0]}: ip route get {address}; give trainyard_address a network that all"
            f" nodes share; a firewall that rejects reads the same: {opening}"
        )
    if why == "large":
        return (
            "a black hole for full packets (ICMP 'fragmentation needed' is dropped, or a switch has"
            f" smaller frames): ping -M do -s 1472 {address}; give all nodes' interfaces"
            f" ({interface}) the MTU that the way has"
        )
    if why == "wrong":
        return (
            f"{rows[0]['text']} answers at {address}: one address on two machines, or a translation"
            f" (NAT) on the way: ip neigh show {address}; correct trainyard_address"
        )
    if why == "stranger":
        return (
            f"a proxy or another program answers on the way to {name} ({address}): ss -ltnp there"
        )
    if why == "forbidden":
        return (
            f"a rule for outgoing connections on {', '.join(sources)}:"
            " nft list chain inet filter output"
        )
    return f"on {', '.join(sources)}: ip -br address; then run the check again"


def _describe_opening(
    connections: _Connections, node: Mapping[str, Any], sources: Sequence[str], kind: str = ""
) -> str:
    """Return what a firewall of a node has to let in.

    kind: 'planned' or 'ephemeral' ports, both by default.
    """
    plan = connections.plan
    ports = {
        "planned": str(plan["ports"]["start"]),
        "ephemeral": _ephemeral_range(node["name"], connections.answers),
    }
    if len(listening_ports(plan)) > 1:
        ports["planned"] = render.format_ports(plan)
    wanted = ports.get(kind) or ", ".join(ports.values())
    addresses = named([connections.nodes[name]["address"] for name in sources])
    return (
        f"a firewall has to let TCP {wanted} from {addresses} into {node['name']}"
        f" ({node['address']}), on it or on the way; provision.yml opens a node's own with"
        " runtime_firewall"
    )


def _ephemeral_range(name: str, answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the range of ephemeral ports of a node as text."""
    listener = _listener_of(name, answers)
    if not listener:
        return "the range of net.ipv4.ip_local_port_range"
    low, high = listener["range"]
    return f"{low:d}-{high:d}"


# --- addresses


def _judge_translated_addresses(
    nodes: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]]
) -> list[Finding]:
    """Return findings about nodes that peers see with another address."""
    remedy = (
        "an address translation (NAT) is between the nodes: ranks that answer to this address reach"
        " another machine; route the fabric without it"
    )
    findings = []
    for name, result in answers.items():
        for address in sorted(set(result["seen_as"].values())):
            peers = [peer for peer, seen in result["seen_as"].items() if seen == address]
            text = (
                f"{name} comes to {named(peers)} as {address} instead of {nodes[name]['address']}"
            )
            # The peers say which address it is. What one peer alone says is about both.
            suspects = [name]
            if len(peers) == 1:
                suspects += peers
            findings.append(finding("network.translated", text, remedy, suspects, "warn"))
    return findings
