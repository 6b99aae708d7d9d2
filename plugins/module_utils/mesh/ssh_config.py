# SPDX-License-Identifier: Apache-2.0
"""Compile a site's mesh on the controller: known_hosts, ssh configuration, one line per peer in
authorized_keys. Pure.
"""

from __future__ import annotations

import ipaddress
import json
import re

from .certificates import needs_renewal
from .known_nodes import USER
from .primitives import (
    DIRECTORY,
    GATE,
    PYTHON,
    RECORD_VERSION,
    TRUST,
    inventory_digest,
    is_address,
    marker,
    principal,
    public_key,
    sha256,
)

# Names end up in ssh's configuration, in known_hosts and in file names: nothing that one of them
# would read as more than a name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}\Z")
_PATH = re.compile(r"[A-Za-z0-9._/+=@-]{1,500}\Z")
_SPAN = re.compile(r"\+(?:\d+[smhdw])+\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
CONFIG_TAIL = """\
Host *
  User {user}
  IdentityFile {directory}/id_ed25519
  CertificateFile {directory}/id_ed25519-cert.pub
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {directory}/known_hosts
  # Nothing but the mesh's own file counts; this one does not exist, and only root could make it.
  GlobalKnownHostsFile /etc/ssh/no_known_hosts
  StrictHostKeyChecking yes
  UpdateHostKeys no
  CheckHostIP no
  PreferredAuthentications publickey
  BatchMode yes
  ConnectTimeout 5
  ServerAliveInterval 5
  ServerAliveCountMax 3
  RequestTTY no
  ForwardAgent no
  ForwardX11 no
  ClearAllForwardings yes
  ControlMaster no
  ControlPath none
  LogLevel ERROR
"""


def span_seconds(text):
    """Return the seconds of a span in OpenSSH's notation such as +7d or +1h30m. Raises ValueError."""
    if not _SPAN.match(str(text)):
        raise ValueError(f"want a span such as +7d or +12h, got {text!r}")
    return sum(
        int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhdw])", str(text))
    )


def home_owners(nodes):
    """Return {name: name of the node that writes its home}: the first node of those that share one."""
    first = {}
    return {
        node["name"]: first.setdefault(node["home"] or "node " + node["name"], node["name"])
        for node in nodes
    }


def _twins(nodes, key, text):
    seen, found = {}, []
    for node in nodes:
        for value in key(node):
            if value in seen:
                found.append("{}: {}".format(node["name"], text % seen[value]))
                break
            seen.setdefault(value, node["name"])
    return found


def problems_of(nodes, site, consent=False):
    """Return every reason, in words with the node and the remedy, why these nodes cannot become one
    mesh.
    """
    found = ["{}: {}".format(node["name"], text) for node in nodes for text in node["problems"]]
    if not _NAME.match(site):
        found.append(f"trainyard_site: must be letters, digits, dots, dashes; got {site!r}")
    for node in nodes:
        if not _NAME.match(node["name"]):
            found.append(
                "{!r}: an inventory name must be letters, digits, dots, dashes; rename the host".format(
                    node["name"]
                )
            )
        if not USER.match(node["user"]):
            found.append(
                "{}: the user name {!r} cannot be used in ssh's configuration".format(
                    node["name"], node["user"]
                )
            )
        if node["address"] and not (is_address(node["address"]) or _NAME.match(node["address"])):
            found.append("{}: {!r} is not an address".format(node["name"], node["address"]))
        if is_address(node["address"]) and len(nodes) > 1:
            address = ipaddress.ip_address(node["address"])
            if address.is_loopback or address.is_unspecified:
                text = (
                    "%s: %s reaches the node itself only; set trainyard_address to the address at"
                    " which its peers reach it"
                )
                found.append(text % (node["name"], address))
        if node["site"] and node["site"] != site:
            text = (
                "%s: belongs to the mesh of the site '%s'; take that back first, with that site's"
                " inventory: playbooks/untrust.yml"
            )
            found.append(text % (node["name"], node["site"]))
    users = sorted({node["user"] for node in nodes})
    if len(users) > 1:
        told = ", ".join("{} {}".format(node["name"], node["user"]) for node in nodes)
        found.append(
            f"the nodes' users differ ({told}); a site has one training user: set ansible_user for"
            " the whole group"
        )
    same = (
        "is the same machine as %s, or a copy that kept its machine id and host name; list it once,"
        " or give it its own"
    )
    found += _twins(nodes, lambda node: [node["identity"]] if node["identity"] else [], same)
    keys = (
        "holds the host key of %s, so one could pass for the other; make new ones: rm"
        " /etc/ssh/ssh_host_*, ssh-keygen -A, restart sshd"
    )
    found += _twins(nodes, lambda node: node["host_keys"], keys)
    found += _twins(
        nodes,
        lambda node: [(node["address"], node["port"])],
        "has the address and port of %s; set trainyard_address or ssh_trust_port",
    )
    if not consent:
        text = (
            "shares its home directory with %s, so both would hold one private key; to allow that"
            " set ssh_trust_shared_home: true"
        )
        found += _twins(nodes, lambda node: [node["home"]] if node["home"] else [], text)
    return found


def _hosted(name, port):
    return name if port == 22 else f"[{name}]:{port}"


def known_hosts(nodes):
    """Return the text of the mesh's known_hosts: every node's host keys under its name and under
    every address it may be called by.
    """
    lines = []
    for node in nodes:
        names = [node["name"]]  # ssh looks a HostKeyAlias up without the port
        for name in (node["name"], node["address"], node["host"], *node["addresses"]):
            if _hosted(name, node["port"]) not in names:
                names.append(_hosted(name, node["port"]))
        lines += ["{} {}".format(",".join(names), key) for key in sorted(node["host_keys"])]
    return "".join(line + "\n" for line in lines)


def client_config(nodes, site, directory=DIRECTORY):
    """Return the text of the mesh's ssh configuration. A node is called by its inventory name, or
    by its address (as mpirun does).
    """
    place = directory if directory.startswith("/") else "~/" + directory
    addresses = [node["address"] for node in nodes]
    text = f"# The mesh of the site '{site}'. Written by {TRUST}\n"
    for node in nodes:
        alone = addresses.count(node["address"]) == 1 and node["address"] not in [
            other["name"] for other in nodes
        ]
        text += "Host {}\n".format(
            " ".join((node["name"], node["address"])) if alone else node["name"]
        )
        text += "  HostName {address}\n  Port {port}\n  HostKeyAlias {name}\n".format(**node)
    return text + CONFIG_TAIL.format(user=nodes[0]["user"], directory=place)


def authorized_lines(nodes, site, ca, extra=(), directory=DIRECTORY):
    """Return the lines in authorized_keys that let the peers in: one per node, with its principal,
    its addresses and the gate's name for it.

    nodes: of mesh_inventory.held. ca: the public key of the site's authority. extra: further
    addresses or networks of all peers. A node is taken back by leaving its line out. sshd reads
    past a line whose principal or address does not fit. Nodes that share a home share one
    certificate, and are told apart by their addresses.
    """
    owners = home_owners(nodes)
    more = [str(ipaddress.ip_network(item, strict=False)) for item in extra]
    place = directory if directory.startswith("/") else "~/" + directory
    lines = []
    for node in nodes:
        own = {
            str(ipaddress.ip_address(item))
            for item in (node["address"], node["host"], *node["addresses"])
            if is_address(item)
        }
        options = (
            'cert-authority,restrict,principals="{}",from="{}",command="{} -I {}/{} {}"'.format(
                principal(site, owners[node["name"]]),
                ",".join(sorted(own) + more),
                PYTHON,
                place,
                GATE,
                node["name"],
            )
        )
        lines.append(f"{options} {public_key(ca)} {marker(site, node['name'])}")
    return lines


def is_ready(told, states, now, before, longest=float("inf")):
    """Return whether the compiled mesh lies on every node as it was proven, with certificates that
    last for `before` seconds more.

    longest: seconds that a certificate may last; one that lasts longer is from before the validity
    was shortened.
    """
    same = [
        all(state[key] == told[key] for key in ("digest", "inventory", "nodes")) for state in states
    ]
    fresh = [
        state["proven"] and not needs_renewal(state["valid_until"], now, before) for state in states
    ]
    short = all(
        state["valid_until"] is None or state["valid_until"] <= now + longest for state in states
    )
    return bool(told["digest"]) and all(same) and all(fresh) and short


def compile_mesh(
    nodes,
    site,
    ca,
    directory=DIRECTORY,
    extra=(),
    consent=False,
    validity="+7d",
    renew_before="+1d",
    gate="",
):
    """Return (mesh, problems). ca: the public key of the site's authority, '' before it was made
    (then there are no lines and no digest).

    gate: text of the gate program. The mesh is {nodes, owners, identities, principals, known_hosts,
    config, lines, digest, inventory}.
    """
    problems = problems_of(nodes, site, consent)
    try:
        if span_seconds(renew_before) >= span_seconds(validity):
            problems.append(
                f"ssh_trust_renew_before ({renew_before}) must be shorter than ssh_trust_validity"
                f" ({validity})"
            )
    except ValueError as problem:
        problems.append(f"ssh_trust_validity, ssh_trust_renew_before: {problem}")
    for item in extra:
        try:
            if ipaddress.ip_network(item, strict=False).prefixlen == 0:
                raise ValueError(item)
        except ValueError:
            problems.append(
                "ssh_trust_from: must be IP addresses or networks such as 10.0.0.0/24, not all of"
                f" the Internet; got {item!r}"
            )
    if not _PATH.match(directory) or ".." in directory.split("/"):
        problems.append(f"directory: letters, digits and . _ / + = @ - only; got {directory!r}")
    if problems or not nodes:
        return None, problems or ["the group 'trainers' is empty"]
    lines = authorized_lines(nodes, site, ca, extra, directory) if ca else []
    texts = [known_hosts(nodes), client_config(nodes, site, directory)]
    return {
        "nodes": [node["name"] for node in nodes],
        "owners": home_owners(nodes),
        "identities": {node["name"]: node["identity"] for node in nodes},
        "known_hosts": texts[0],
        "config": texts[1],
        "principals": {name: principal(site, owner) for name, owner in home_owners(nodes).items()},
        "lines": lines,
        # Names, addresses, ports, users, host keys and the authority are all in these texts; so is
        # the product's own way of writing them.
        "digest": sha256(json.dumps([RECORD_VERSION, sha256(gate), texts, lines])) if ca else "",
        "inventory": inventory_digest([node["inventory"] for node in nodes]),
    }, []
