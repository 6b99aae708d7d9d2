# SPDX-License-Identifier: Apache-2.0
"""The controller's own knowledge of a site's nodes, and a node's description of itself compared
with it.

Names, hosts, ports and host keys in the mesh come from the inventory and from the controller's
known_hosts. A node adds its address, where the inventory leaves that open, and digests that are
compared and never executed.
"""

from __future__ import annotations

import concurrent.futures
import ipaddress
import re
import socket

from ..base.sanitize import printable
from . import host_keys
from .primitives import TRUST, is_address, public_key

USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,252}\$?\Z")
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:%-]{0,252}\Z")
_SITE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._:-]{0,252})?\Z")
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?\Z")
_HOME = re.compile(r"[0-9a-f]{0,64}\Z")
# Problems that a node states about itself, and characters of each.
PROBLEMS, PROBLEM_CHARACTERS = 20, 500


def rows_of(names, inventory):
    """Return what the inventory says of each node: [{name, host, port, address, ssh_port, user}].

    inventory: {hosts, ports, addresses, ssh_ports, users}, each {name: value}; a value may be
    missing or empty.
    """
    rows = []
    for name in names:
        said = {
            key: (inventory.get(key) or {}).get(name)
            for key in ("hosts", "ports", "addresses", "ssh_ports", "users")
        }
        rows.append(
            {
                "name": str(name),
                "host": str(said["hosts"] or name),
                "port": int(said["ports"] or 22),
                "address": str(said["addresses"] or ""),
                "ssh_port": int(said["ssh_ports"] or 0),
                "user": str(said["users"] or ""),
            }
        )
    return rows


def resolve(run, host, port):
    """Return (names in known_hosts, port, addresses) of a host as the controller's own ssh reaches
    it.

    run(argv) -> (code, stdout, stderr). A name may be an alias of ssh's configuration. Addresses
    are empty where the controller cannot resolve the name, behind a jump host for instance.
    """
    names = [host]
    if not is_address(host):
        told = dict(
            line.split(" ", 1)
            for line in run(["ssh", "-G", "-p", str(port), "--", host])[1].splitlines()
            if " " in line
        )
        names += [
            told[key]
            for key in ("hostkeyalias", "hostname")
            if told.get(key) and told[key] not in names
        ]
    addresses = set()
    for name in names:
        try:
            addresses.update(
                item[4][0].split("%")[0]
                for item in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError):
            continue
    return names, port, sorted(addresses)


def known(rows, files, run, parallel=16):
    """Return {name: {keys, authority, addresses}} from the controller's known_hosts files and its
    resolver.
    """

    def one(row):
        names, port, addresses = resolve(run, row["host"], row["port"])
        keys, authority = set(), False
        for name in names:
            found, vouched, _source = host_keys.pinned_keys(run, files, name, port)
            keys.update(key for kind in found.values() for key in kind)
            authority = authority or vouched
        return {"keys": sorted(keys), "authority": authority, "addresses": addresses}

    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, parallel)) as pool:
        return {row["name"]: found for row, found in zip(rows, pool.map(one, rows))}


def plain(text):
    """Return an address that a peer can connect to, in its canonical form, or None."""
    try:
        address = ipaddress.ip_address(str(text))
    except ValueError:
        return None
    return (
        None
        if address.is_unspecified or address.is_multicast or "%" in str(address)
        else str(address)
    )


def address_of(row, said, addresses):
    """Return (address, problem) of a node on the fabric.

    row: of rows_of. said: the address that the node states. addresses: those of the inventory's
    host, empty where they are unknown.
    """
    stated = plain(said)
    shown = printable(str(said), limit=60)
    if row["address"]:
        network = ipaddress.ip_network(row["address"], strict=False)
        if network.num_addresses == 1:
            return str(network.network_address), None
        if stated and ipaddress.ip_address(stated) in network:
            return stated, None
        return (
            "",
            (
                f"states the address {shown}, which is not in trainyard_address {row['address']};"
                " correct one of the two"
            ),
        )
    if not addresses:
        if stated:
            return stated, None
        return (
            "",
            (
                f"states no usable address ({shown}) and the controller cannot resolve"
                f" {row['host']}; set trainyard_address"
            ),
        )
    if stated in addresses:
        return stated, None
    known_as = ", ".join(addresses)
    return (
        "",
        (
            f"states the address {shown}, but the inventory's {row['host']} is {known_as}; if peers"
            " reach it elsewhere, set trainyard_address"
        ),
    )


def port_of(row, said):
    """Return (port, problem) of a node's sshd for its peers."""
    if row["ssh_port"] or said == row["port"]:
        return row["ssh_port"] or row["port"], None
    text = (
        "states that its sshd is at port %s, the inventory has %d; if peers reach it at another"
        " port, set ssh_trust_port"
    )
    return row["port"], text % (printable(str(said), limit=20), row["port"])


def keys_of(row, said, found):
    """Return (host keys, problem): those that the controller has pinned, whatever the node states."""
    if found["keys"]:
        return list(found["keys"]), None
    stated = (
        sorted({key for key in (public_key(str(text)) for text in said) if key})
        if isinstance(said, list)
        else []
    )
    if found["authority"] and stated:
        # Certificates of hosts vouch for names that need not be the inventory's. Only root can use
        # a host key at the port of the inventory.
        return stated, None
    return [], f"no host key of it is pinned on the controller; run {TRUST}"


def held(row, said, found):
    """Return one node of the mesh from the inventory, the controller's known_hosts and the node's
    description (mesh_described).
    """
    said = said if isinstance(said, dict) else {}
    problems = [
        printable(str(text), limit=PROBLEM_CHARACTERS)
        for text in list(said.get("problems") or ())[:PROBLEMS]
    ]
    address, *wrong = address_of(row, said.get("address"), found["addresses"])
    port, port_problem = port_of(row, said.get("port"))
    keys, key_problem = keys_of(row, said.get("host_keys"), found)
    wrong += [port_problem, key_problem]
    texts = {}
    for field, pattern in (("user", USER), ("identity", _DIGEST), ("home", _HOME), ("site", _SITE)):
        value = said.get(field)
        texts[field] = value if isinstance(value, str) and pattern.match(value) else ""
        if texts[field] != value or (field == "user" and not value):
            wrong.append(f"its answer is not valid: {field} is {printable(str(value), limit=60)!r}")
    if row["user"] and texts["user"] and texts["user"] != row["user"]:
        wrong.append(f"its user is {texts['user']}, the inventory has {row['user']}")
    # Where its peers may see it come from: the inventory's host, and what the node states of that.
    allowed = set(found["addresses"])
    stated = [plain(item) for item in list(said.get("addresses") or ())[:8]]
    addresses = sorted(
        {
            item
            for item in stated
            if item and (item in allowed or (not allowed and not row["address"]))
        }
    )
    return {
        "name": row["name"],
        "user": texts["user"],
        "address": address,
        "port": port,
        "host": row["host"] if _HOST.match(row["host"]) else row["name"],
        "addresses": addresses,
        "host_keys": keys,
        "identity": texts["identity"],
        "home": texts["home"],
        "site": texts["site"],
        "inventory": [row["name"], row["host"], row["port"], row["address"]],
        "problems": problems + [text for text in wrong if text],
    }


def nodes_of(names, inventory, descriptions, files, run):
    """Return the nodes of the mesh in the order of the names; descriptions: what each node said, in
    the same order.
    """
    rows = rows_of(names, inventory)
    found = known(rows, files, run)
    nodes = [held(row, said, found[row["name"]]) for row, said in zip(rows, descriptions)]
    for node in nodes:
        others = {
            item
            for other in nodes
            if other is not node
            for item in (other["address"], other["host"])
        }
        node["addresses"] = [item for item in node["addresses"] if item not in others]
    return nodes
