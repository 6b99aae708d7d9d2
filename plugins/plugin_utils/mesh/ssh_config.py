# SPDX-License-Identifier: Apache-2.0
"""Compiler of a site's mesh: known_hosts, ssh configuration, authorized_keys.

Pure. There is one line per peer in authorized_keys.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.mesh.certificates import (
    needs_renewal,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh.primitives import (
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

from .known_nodes import USER


class MeshProblem(NamedTuple):
    """One reason why nodes cannot become a mesh: its code, and the text with the remedy."""

    code: str
    text: str


# Names end up in ssh's configuration, in known_hosts and in file names. So they hold nothing that
# one of them would read as more than a name.
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


def span_seconds(text: str) -> int:
    """Return the seconds of a span in OpenSSH's notation.

    Spans are such as +7d or +1h30m. Raises ValueError.
    """
    if not _SPAN.match(str(text)):
        raise ValueError(f"want a span such as +7d or +12h, got {text!r}")
    return sum(
        int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhdw])", str(text))
    )


def home_owners(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return {name: name of the node that writes its home}.

    It is the first node of those that share the home.
    """
    first: dict[str, str] = {}
    return {
        node["name"]: first.setdefault(node["home"] or "node " + node["name"], node["name"])
        for node in nodes
    }


def _describe_twins(
    code: str,
    nodes: Sequence[Mapping[str, Any]],
    values_of: Callable[[Mapping[str, Any]], Iterable[Any]],
    text: str,
) -> list[MeshProblem]:
    """Return a problem for each node that shares a value with an earlier one.

    code: of the problems. values_of(node): the values that only one node may have. text: with {}
    for the earlier node.
    """
    owner: dict[Any, str] = {}
    problems = []
    for node in nodes:
        for value in values_of(node):
            if value in owner:
                problems.append(MeshProblem(code, f"{node['name']}: {text.format(owner[value])}"))
                break
            owner.setdefault(value, node["name"])
    return problems


def find_problems(
    nodes: Sequence[Mapping[str, Any]], site: str, consent: bool = False
) -> list[MeshProblem]:
    """Return every reason why these nodes cannot become one mesh.

    Each names the node and the remedy. consent: True if nodes may share a home directory.
    """
    problems = [
        MeshProblem("trust.node_problem", f"{node['name']}: {text}")
        for node in nodes
        for text in node["problems"]
    ]
    if not _NAME.match(site):
        problems.append(
            MeshProblem(
                "trust.site_name",
                f"trainyard_site: must be letters, digits, dots, dashes; got {site!r}",
            )
        )
    for node in nodes:
        problems += _problems_of_node(node, site, alone=len(nodes) == 1)
    users = {node["user"] for node in nodes}
    if len(users) > 1:
        users_by_node = ", ".join(f"{node['name']} {node['user']}" for node in nodes)
        problems.append(
            MeshProblem(
                "trust.users_differ",
                f"the nodes' users differ ({users_by_node}); a site has one training user: set"
                " ansible_user for the whole group",
            )
        )
    return problems + _problems_of_twins(nodes, consent)


def _problems_of_node(node: Mapping[str, Any], site: str, alone: bool) -> list[MeshProblem]:
    """Return the problems of one node.

    alone: True if the site has no other node.
    """
    name, user, address = node["name"], node["user"], node["address"]
    problems = []
    if not _NAME.match(name):
        problems.append(
            MeshProblem(
                "trust.node_name",
                f"{name!r}: an inventory name must be letters, digits, dots, dashes; rename the"
                " host",
            )
        )
    if not USER.match(user):
        problems.append(
            MeshProblem(
                "trust.user_name",
                f"{name}: the user name {user!r} cannot be used in ssh's configuration",
            )
        )
    if address and not (is_address(address) or _NAME.match(address)):
        problems.append(MeshProblem("trust.address", f"{name}: {address!r} is not an address"))
    if is_address(address) and not alone:
        parsed = ipaddress.ip_address(address)
        if parsed.is_loopback or parsed.is_unspecified:
            problems.append(
                MeshProblem(
                    "trust.loopback_address",
                    f"{name}: {parsed} reaches the node itself only; set trainyard_address to the"
                    " address at which its peers reach it",
                )
            )
    if node["site"] and node["site"] != site:
        problems.append(
            MeshProblem(
                "trust.other_site",
                f"{name}: belongs to the mesh of the site '{node['site']}'; take that back first,"
                " with that site's inventory: ansible-playbook -i INVENTORY playbooks/untrust.yml",
            )
        )
    return problems


def _problems_of_twins(nodes: Sequence[Mapping[str, Any]], consent: bool) -> list[MeshProblem]:
    """Return the problems of nodes that have in common what tells nodes apart."""
    problems = _describe_twins(
        "trust.same_machine",
        nodes,
        lambda node: filter(None, [node["identity"]]),
        "is the same machine as {}, or a copy that kept its machine id and host name; list it once,"
        " or give it its own",
    )
    problems += _describe_twins(
        "trust.same_host_key",
        nodes,
        lambda node: node["host_keys"],
        "holds the host key of {}, so one could pass for the other; make new ones: rm"
        " /etc/ssh/ssh_host_*, ssh-keygen -A, restart sshd",
    )
    problems += _describe_twins(
        "trust.same_address",
        nodes,
        lambda node: [(node["address"], node["port"])],
        "has the address and port of {}; set trainyard_address or ssh_trust_port",
    )
    if not consent:
        problems += _describe_twins(
            "trust.shared_home",
            nodes,
            lambda node: filter(None, [node["home"]]),
            "shares its home directory with {}, so both would hold one private key; to allow that"
            " set ssh_trust_shared_home: true",
        )
    return problems


def _host_pattern(name: str, port: int) -> str:
    """Return how known_hosts names a host at a port."""
    if port == 22:
        return name
    return f"[{name}]:{port}"


def _below_home(directory: str) -> str:
    """Return a directory as a shell and ssh find it.

    A relative one lies in the home.
    """
    if directory.startswith("/"):
        return directory
    return "~/" + directory


def known_hosts(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the mesh's known_hosts.

    It has every node's host keys under its name and under every address it may be called by.
    """
    lines = []
    for node in nodes:
        names = [node["name"]]  # ssh looks a HostKeyAlias up without the port
        for name in (node["name"], node["address"], node["host"], *node["addresses"]):
            names.append(_host_pattern(name, node["port"]))
        pattern = ",".join(dict.fromkeys(names))
        lines += [f"{pattern} {key}\n" for key in sorted(node["host_keys"])]
    return "".join(lines)


def client_config(nodes: Sequence[Mapping[str, Any]], site: str, directory: str = DIRECTORY) -> str:
    """Return the text of the mesh's ssh configuration.

    A node is called by its inventory name, or by its address (as mpirun does).
    """
    names = {node["name"] for node in nodes}
    addresses = [node["address"] for node in nodes]
    text = f"# The mesh of the site '{site}'. Written by {TRUST}\n"
    for node in nodes:
        name, address = node["name"], node["address"]
        patterns = name
        # An address that two nodes share, or that is a node's name, does not say which one.
        if addresses.count(address) == 1 and address not in names:
            patterns = f"{name} {address}"
        text += f"Host {patterns}\n"
        text += f"  HostName {address}\n  Port {node['port']}\n  HostKeyAlias {name}\n"
    return text + CONFIG_TAIL.format(user=nodes[0]["user"], directory=_below_home(directory))


def authorized_lines(
    nodes: Sequence[Mapping[str, Any]],
    site: str,
    ca: str,
    extra: Sequence[str] = (),
    directory: str = DIRECTORY,
) -> list[str]:
    """Return the lines in authorized_keys that let the peers in, one per node.

    A line has the node's principal, its addresses and the gate's name for it. nodes: of
    known_nodes.merge_node. ca: the public key of the site's authority. extra: further addresses or
    networks of all peers. A node is taken back by leaving its line out. sshd reads past a line
    whose principal or address does not fit. Nodes that share a home share one certificate, and are
    told apart by their addresses.
    """
    owners = home_owners(nodes)
    networks = [str(ipaddress.ip_network(item, strict=False)) for item in extra]
    folder = _below_home(directory)
    lines = []
    for node in nodes:
        addresses = {
            str(ipaddress.ip_address(item))
            for item in (node["address"], node["host"], *node["addresses"])
            if is_address(item)
        }
        sources = ",".join(sorted(addresses) + networks)
        command = f"{PYTHON} -I {folder}/{GATE} {node['name']}"
        options = (
            f'cert-authority,restrict,principals="{principal(site, owners[node["name"]])}",'
            f'from="{sources}",command="{command}"'
        )
        lines.append(f"{options} {public_key(ca)} {marker(site, node['name'])}")
    return lines


def is_ready(
    compiled: Mapping[str, Any],
    states: Sequence[Mapping[str, Any]],
    now: float,
    before: float,
    longest: float = float("inf"),
) -> bool:
    """Return True if the compiled mesh lies on every node as it was proven.

    compiled: the compiled mesh. states: of store.mesh_state. The certificates must last for
    `before` seconds more. longest: seconds that a certificate may last. One that lasts longer is
    from before the validity was shortened. now: unix seconds.
    """
    return bool(compiled["digest"]) and all(
        all(state[key] == compiled[key] for key in ("digest", "inventory", "nodes"))
        and state["proven"]
        and not needs_renewal(state["valid_until"], now, before)
        and (state["valid_until"] is None or state["valid_until"] <= now + longest)
        for state in states
    )


def compile_mesh(
    nodes: Sequence[Mapping[str, Any]],
    site: str,
    ca: str,
    directory: str = DIRECTORY,
    extra: Sequence[str] = (),
    consent: bool = False,
    validity: str = "+7d",
    renew_before: str = "+1d",
    gate: str = "",
) -> tuple[dict[str, Any], list[MeshProblem]]:
    """Return (mesh, problems).

    ca: the public key of the site's authority, '' before it was made (then there are no lines and
    no digest). gate: text of the gate's programs. The mesh is {nodes, owners, identities,
    principals, known_hosts, config, lines, digest, inventory}, empty with problems. extra: see
    authorized_lines. consent: see find_problems.
    """
    problems = find_problems(nodes, site, consent)
    problems += _problems_of_settings(directory, extra, validity, renew_before)
    if problems or not nodes:
        return {}, problems or [MeshProblem("trust.no_nodes", "the group 'trainers' is empty")]
    owners = home_owners(nodes)
    texts = [known_hosts(nodes), client_config(nodes, site, directory)]
    lines, digest = [], ""
    if ca:
        lines = authorized_lines(nodes, site, ca, extra, directory)
        # Names, addresses, ports, users, host keys and the authority are all in these texts. So is
        # the product's own way of writing them.
        digest = sha256(json.dumps([RECORD_VERSION, sha256(gate), texts, lines]))
    return {
        "nodes": [node["name"] for node in nodes],
        "owners": owners,
        "identities": {node["name"]: node["identity"] for node in nodes},
        "known_hosts": texts[0],
        "config": texts[1],
        "principals": {name: principal(site, owner) for name, owner in owners.items()},
        "lines": lines,
        "digest": digest,
        "inventory": inventory_digest([node["inventory"] for node in nodes]),
    }, []


def _problems_of_settings(
    directory: str, extra: Sequence[str], validity: str, renew_before: str
) -> list[MeshProblem]:
    """Return the problems of the site's settings.

    See compile_mesh.
    """
    problems = []
    try:
        if span_seconds(renew_before) >= span_seconds(validity):
            problems.append(
                MeshProblem(
                    "trust.validity",
                    f"ssh_trust_renew_before ({renew_before}) must be shorter than"
                    f" ssh_trust_validity ({validity})",
                )
            )
    except ValueError as problem:
        problems.append(
            MeshProblem("trust.validity", f"ssh_trust_validity, ssh_trust_renew_before: {problem}")
        )
    for item in extra:
        if not _is_network(item):
            problems.append(
                MeshProblem(
                    "trust.sources",
                    "ssh_trust_from: must be IP addresses or networks such as 10.0.0.0/24, not all"
                    f" of the Internet; got {item!r}",
                )
            )
    if not _PATH.match(directory) or ".." in directory.split("/"):
        problems.append(
            MeshProblem(
                "trust.directory",
                f"directory: letters, digits and . _ / + = @ - only; got {directory!r}",
            )
        )
    return problems


def _is_network(item: str) -> bool:
    """Return True for an IP address or a network that is not all of the Internet."""
    try:
        return ipaddress.ip_network(item, strict=False).prefixlen > 0
    except ValueError:
        return False
