# SPDX-License-Identifier: Apache-2.0
"""What a node is for the mesh, said by the node itself.

A node is a dict: ``{name, user, address, port, host, addresses, host_keys, identity, home, site,
inventory, problems}``. What reads the node does nothing else.
"""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import shutil

from .primitives import read_bytes, sha256
from .store import own_identity, read_host_keys, read_record


def choose_address(wanted, reached, host, own):
    """Return the address at which the peers reach a node.

    wanted: trainyard_address, an IP address or a network of which the node holds one address (or
    ''); reached: the address at which the controller's connection arrived, as the node sees it (or
    ''): true behind a jump host or a forwarded port too; host: ansible_host. own: the node's
    addresses. Raises ValueError.
    """
    if not wanted:
        return reached.split("%")[0] or host
    network = ipaddress.ip_network(wanted, strict=False)
    if network.num_addresses == 1:
        return str(network.network_address)
    held = [item for item in own if ipaddress.ip_address(item) in network]
    if len(held) != 1:
        found = ", ".join(held or own) or "none"
        raise ValueError(
            f"trainyard_address {wanted} must hold exactly one address of this node, which has:"
            f" {found}"
        )
    return held[0]


def own_addresses(listing):
    """Return the addresses in the output of `ip -json address show`, without loopback and
    link-local ones.
    """
    found = [
        item["local"]
        for link in json.loads(listing or "[]")
        for item in link.get("addr_info", [])
        if item.get("local")
    ]
    return [
        item
        for item in found
        if not (ipaddress.ip_address(item).is_loopback or ipaddress.ip_address(item).is_link_local)
    ]


def shared_home(mountinfo, home, inode, network_filesystems):
    """Return an id that is equal on all nodes that see the same home directory on a network file
    system, '' for a local one.

    mountinfo: text of /proc/self/mountinfo. Server names are left out: nodes may mount one export
    from several addresses of its server.
    """
    best = None
    for line in mountinfo.splitlines():
        left, _dash, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 2:
            continue
        point = fields[4].replace("\\040", " ")
        if (home + "/").startswith(point.rstrip("/") + "/") and (
            best is None or len(point) >= len(best[0])
        ):
            best = (point, fields[3], tail[0], tail[1])
    if best is None or best[2] not in network_filesystems:
        return ""
    point, root, kind, source = best
    return sha256(
        "|".join((kind, source.rpartition(":")[2], root, os.path.relpath(home, point), str(inode)))
    )[:16]


def describe_node(
    name, host, port, wanted, ssh_port, directory, host_keys, network_filesystems, run, environ
):
    """Return this machine as a node of the mesh. run(argv) -> (code, stdout, stderr); environ: the
    environment of the controller's login.

    host, port, wanted: ansible_host, ansible_port and trainyard_address as the inventory has them;
    ssh_port: the peers' port, 0 to find it.
    """
    problems = []
    account = pwd.getpwuid(os.geteuid())
    home = os.path.realpath(account.pw_dir)
    # SSH_CONNECTION: client's address and port, then this machine's: what the controller's own
    # login really reached.
    reached = (environ.get("SSH_CONNECTION") or "").split()
    reached = (reached[2], int(reached[3])) if len(reached) == 4 else ("", port or 22)
    own = own_addresses(run(["ip", "-json", "address", "show"])[1])
    try:
        address = choose_address(wanted, reached[0], host or name, own)
    except ValueError as problem:
        address = wanted
        problems.append(str(problem))
    if environ.get("SUDO_USER") and os.geteuid() == 0:
        text = (
            "became root from %s, but the mesh belongs to the training user; take ansible_become"
            " out of the inventory"
        )
        problems.append(text % environ["SUDO_USER"])
    for program in ("ssh", "ssh-keygen"):
        if not shutil.which(program):
            problems.append(
                f"has no {program}; run ansible-playbook playbooks/provision.yml -K, or install"
                " openssh-client there"
            )
    keys = read_host_keys(host_keys)
    if not keys:
        problems.append(
            "no host public key found in {}; say where sshd has them with ssh_trust_host_keys".format(
                ", ".join(host_keys)
            )
        )
    who = own_identity()
    if not who:
        problems.append(
            "has no machine id, so it could not be told from another; run systemd-machine-id-setup"
            " there"
        )
    mounts = (read_bytes("/proc/self/mountinfo") or b"").decode("utf-8", "replace")
    return {
        "name": name,
        "user": account.pw_name,
        "address": address,
        "port": ssh_port or reached[1],
        "host": host or name,
        "addresses": sorted({item for item in (reached[0].split("%")[0],) if item}),
        "host_keys": keys,
        "identity": who,
        "home": shared_home(mounts, home, os.stat(home).st_ino, network_filesystems),
        "site": (read_record(home, directory) or {}).get("site") or "",
        "inventory": [name, host, port, wanted],
        "problems": problems,
    }
