# SPDX-License-Identifier: Apache-2.0
"""Comparison of nodes' descriptions with what the controller knows of them.

Names, hosts, ports and host keys in the mesh come from the inventory and from the controller's
known_hosts. A node adds its address, where the inventory leaves that open, and digests that are
compared and never executed.
"""

from __future__ import annotations

import concurrent.futures
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence, Set
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import RunCommand
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh.primitives import (
    TRUST,
    is_address,
    public_key,
)

from . import host_keys

USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,252}\$?\Z")
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:%-]{0,252}\Z")
_SITE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._:-]{0,252})?\Z")
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?\Z")
_HOME = re.compile(r"[0-9a-f]{0,64}\Z")
_TEXTS = {"user": USER, "identity": _DIGEST, "home": _HOME, "site": _SITE}
# Problems that a node states about itself, and characters of each.
MOST_PROBLEMS, PROBLEM_CHARACTERS = 20, 500


def inventory_rows(names: Sequence[str], inventory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the inventory says of each node.

    A row is {name, host, port, address, ssh_port, user}. inventory: {hosts, ports, addresses,
    ssh_ports, users}, each {name: value}. A value may be missing or
    empty.
    """
    rows = []
    for name in names:
        values = {
            key: (inventory.get(key) or {}).get(name)
            for key in ("hosts", "ports", "addresses", "ssh_ports", "users")
        }
        rows.append(
            {
                "name": str(name),
                "host": str(values["hosts"] or name),
                "port": int(values["ports"] or 22),
                "address": str(values["addresses"] or ""),
                "ssh_port": int(values["ssh_ports"] or 0),
                "user": str(values["users"] or ""),
            }
        )
    return rows


def resolve_host(run_command: RunCommand, host: str, port: int) -> tuple[list[str], int, list[str]]:
    """Return (names in known_hosts, port, addresses) of a host.

    They are as the controller's ssh reaches it. run(argv) -> (code, stdout, stderr). A name may be
    an alias of ssh's configuration. Addresses are empty where the controller cannot resolve the
    name, behind a jump host for instance.
    """
    names = [host]
    if not is_address(host):
        names += _aliases_of(run_command, host, port)
    addresses: set[str] = set()
    for name in names:
        try:
            addresses.update(
                str(item[4][0]).split("%")[0]
                for item in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError):
            continue
    return names, port, sorted(addresses)


def _aliases_of(run_command: RunCommand, host: str, port: int) -> list[str]:
    """Return the other names of a host in ssh's configuration."""
    settings = {}
    for line in run_command(["ssh", "-G", "-p", str(port), "--", host])[1].splitlines():
        key, space, value = line.partition(" ")
        if space:
            settings[key] = value
    names = [settings.get(key) for key in ("hostkeyalias", "hostname")]
    return [name for name in names if name and name != host]


def look_up_nodes(
    rows: Sequence[Mapping[str, Any]],
    files: Sequence[str],
    run_command: RunCommand,
    parallel: int = 16,
) -> dict[str, dict[str, Any]]:
    """Return {name: {keys, authority, addresses}} as the controller knows the nodes.

    rows: of inventory_rows. files: the controller's known_hosts files. run_command: see
    resolve_host.
    """

    def look_up(row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the controller knows of one node."""
        names, port, addresses = resolve_host(run_command, row["host"], row["port"])
        keys: set[str] = set()
        authority = False
        for name in names:
            pinned, vouched, _source = host_keys.pinned_keys(run_command, files, name, port)
            keys.update(key for keys_of_type in pinned.values() for key in keys_of_type)
            authority = authority or vouched
        return {"keys": sorted(keys), "authority": authority, "addresses": addresses}

    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, parallel)) as pool:
        return {row["name"]: entry for row, entry in zip(rows, pool.map(look_up, rows))}


def normalize_address(text: Any) -> str | None:
    """Return an address that a peer can connect to, in its canonical form, or None."""
    try:
        address = ipaddress.ip_address(str(text))
    except ValueError:
        return None
    if address.is_unspecified or address.is_multicast or "%" in str(address):
        return None
    return str(address)


def address_of(
    row: Mapping[str, Any], claim: Any, addresses: Sequence[str]
) -> tuple[str, str | None]:
    """Return (address, problem) of a node on the fabric.

    row: of inventory_rows. claim: the address that the node states. addresses: those of the
    inventory's host, empty where they are unknown.
    """
    stated = normalize_address(claim)
    shown = printable(str(claim), limit=60)
    if row["address"]:
        network = ipaddress.ip_network(row["address"], strict=False)
        if network.num_addresses == 1:
            return str(network.network_address), None
        if stated and ipaddress.ip_address(stated) in network:
            return stated, None
        return "", (
            f"states the address {shown}, which is not in trainyard_address {row['address']};"
            " correct one of the two"
        )
    if stated and (not addresses or stated in addresses):
        return stated, None
    if not addresses:
        return "", (
            f"states no usable address ({shown}) and the controller cannot resolve"
            f" {row['host']}; set trainyard_address"
        )
    return "", (
        f"states the address {shown}, but the inventory's {row['host']} is {', '.join(addresses)};"
        " if peers reach it elsewhere, set trainyard_address"
    )


def port_of(row: Mapping[str, Any], claim: Any) -> tuple[int, str | None]:
    """Return (port, problem) of a node's sshd for its peers."""
    if row["ssh_port"] or claim == row["port"]:
        return row["ssh_port"] or row["port"], None
    return row["port"], (
        f"states that its sshd is at port {printable(str(claim), limit=20)}, the inventory has"
        f" {row['port']}; if peers reach it at another port, set ssh_trust_port"
    )


def keys_of(
    row: Mapping[str, Any], claim: Any, knowledge: Mapping[str, Any]
) -> tuple[list[str], str | None]:
    """Return (host keys, problem): the pinned keys, whatever the node states.

    claim: the keys that the node states. knowledge: what the controller knows of it, see
    look_up_nodes.
    """
    if knowledge["keys"]:
        return list(knowledge["keys"]), None
    stated = set()
    if isinstance(claim, list):
        stated = {public_key(str(text)) for text in claim} - {None}
    if knowledge["authority"] and stated:
        # Certificates of hosts vouch for names that need not be the inventory's. Only root can use
        # a host key at the port of the inventory.
        return sorted(stated), None
    return [], f"no host key of it is pinned on the controller; run {TRUST}"


def merge_node(
    row: Mapping[str, Any], description: Any, knowledge: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one node of the mesh.

    row: of inventory_rows. description: the node's description of itself (node_description).
    knowledge: what the controller knows of it, see look_up_nodes.
    """
    if not isinstance(description, dict):
        description = {}
    problems = [
        printable(str(text), limit=PROBLEM_CHARACTERS)
        for text in list(description.get("problems") or ())[:MOST_PROBLEMS]
    ]
    address, address_problem = address_of(row, description.get("address"), knowledge["addresses"])
    port, port_problem = port_of(row, description.get("port"))
    keys, key_problem = keys_of(row, description.get("host_keys"), knowledge)
    texts, text_problems = _valid_texts(row, description)
    problems += [text for text in (address_problem, port_problem, key_problem) if text]
    host = row["host"]
    if not _HOST.match(host):
        host = row["name"]
    return {
        "name": row["name"],
        "user": texts["user"],
        "address": address,
        "port": port,
        "host": host,
        "addresses": _source_addresses(row, description, set(knowledge["addresses"])),
        "host_keys": keys,
        "identity": texts["identity"],
        "home": texts["home"],
        "site": texts["site"],
        "inventory": [row["name"], row["host"], row["port"], row["address"]],
        "problems": problems + text_problems,
    }


def _valid_texts(
    row: Mapping[str, Any], description: Mapping[str, Any]
) -> tuple[dict[str, str], list[str]]:
    """Return ({field: text}, problems) of the texts that a node states.

    A text that is not valid is ''.
    """
    texts, problems = {}, []
    for field, pattern in _TEXTS.items():
        value = description.get(field)
        texts[field] = ""
        if isinstance(value, str) and pattern.match(value):
            texts[field] = value
        if texts[field] != value or (field == "user" and not value):
            shown = printable(str(value), limit=60)
            problems.append(f"its answer is not valid: {field} is {shown!r}")
    if row["user"] and texts["user"] and texts["user"] != row["user"]:
        problems.append(f"its user is {texts['user']}, the inventory has {row['user']}")
    return texts, problems


def _source_addresses(
    row: Mapping[str, Any], description: Mapping[str, Any], allowed: Set[str]
) -> list[str]:
    """Return the sorted addresses that the node's peers may see it come from.

    They are those of the inventory's host, and what the node states of that. allowed: the addresses
    of the inventory's host, empty where they are unknown.
    """
    claims = map(normalize_address, list(description.get("addresses") or ())[:8])
    stated = {address for address in claims if address}
    if allowed:
        return sorted(stated & allowed)
    if row["address"]:
        return []
    return sorted(stated)


def merge_nodes(
    names: Sequence[str],
    inventory: Mapping[str, Any],
    descriptions: Sequence[Any],
    files: Sequence[str],
    run_command: RunCommand,
) -> list[dict[str, Any]]:
    """Return the nodes of the mesh in the order of the names.

    descriptions: what each node states, in the same order. inventory: see inventory_rows. files,
    run_command: see look_up_nodes.
    """
    rows = inventory_rows(names, inventory)
    knowledge = look_up_nodes(rows, files, run_command)
    nodes = [
        merge_node(row, description, knowledge[row["name"]])
        for row, description in zip(rows, descriptions)
    ]
    for node in nodes:
        taken: set[str] = set()
        for other in nodes:
            if other is not node:
                taken.update((other["address"], other["host"]))
        node["addresses"] = [item for item in node["addresses"] if item not in taken]
    return nodes
