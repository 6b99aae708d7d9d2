# SPDX-License-Identifier: Apache-2.0
"""Description of a node for the mesh, made by the node itself.

A node is a dict: ``{name, user, address, port, host, addresses, host_keys, identity, home, site,
inventory, problems}``. The functions that read the node do nothing else.
"""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import shutil

from ..base import mounts
from ..base.files import read_text
from ..base.mounts import mount_of
from .primitives import sha256
from .store import own_identity, read_host_keys, read_record


def choose_address(setting, reached, host, addresses):
    """Return the address at which the peers reach a node.

    setting: trainyard_address, an IP address or a network of which the node holds one address, or
    ''. reached: the address at which the controller's connection arrived, as the node sees it, or
    ''. It is right behind a jump host or a forwarded port too. host: ansible_host. addresses: those
    of the node. Raises ValueError.
    """
    if not setting:
        return reached.split("%")[0] or host
    network = ipaddress.ip_network(setting, strict=False)
    if network.num_addresses == 1:
        return str(network.network_address)
    matches = [item for item in addresses if ipaddress.ip_address(item) in network]
    if len(matches) != 1:
        listed = ", ".join(matches or addresses) or "none"
        raise ValueError(
            f"trainyard_address {setting} must hold exactly one address of this node, which has:"
            f" {listed}"
        )
    return matches[0]


def own_addresses(listing):
    """Return the addresses in the output of `ip -json address show`.

    Loopback and link-local ones are left out.
    """
    addresses = []
    for link in json.loads(listing or "[]"):
        for item in link.get("addr_info", []):
            text = item.get("local")
            if text and not _is_local(ipaddress.ip_address(text)):
                addresses.append(text)
    return addresses


def _is_local(address):
    """Return True for an address that no other node can reach."""
    return address.is_loopback or address.is_link_local


def shared_home(mountinfo, home, inode, network_filesystems):
    """Return an id that is equal on all nodes with the same home directory.

    It is '' for a home that is not on a network file system. mountinfo: text of
    /proc/self/mountinfo. inode: of the home. Server names are left out: nodes may mount one export
    from several addresses of its server.
    """
    mount = mount_of(home, mountinfo)
    if mount.kind not in network_filesystems:
        return ""
    export = mount.source.rpartition(":")[2]
    path = os.path.relpath(home, mount.point)
    return sha256("|".join((mount.kind, export, mount.root, path, str(inode))))[:16]


def describe_node(
    name,
    host,
    port,
    address_setting,
    ssh_port,
    directory,
    host_keys,
    network_filesystems,
    run,
    environ,
):
    """Return this machine as a node of the mesh.

    run(argv) -> (code, stdout, stderr). environ: the environment of the controller's login. host,
    port, address_setting: ansible_host, ansible_port and trainyard_address of the inventory.
    ssh_port: the peers' port, 0 to find it.
    """
    problems = []
    account = pwd.getpwuid(os.geteuid())
    home = os.path.realpath(account.pw_dir)
    reached, reached_port = _login_endpoint(environ)
    addresses = own_addresses(run(["ip", "-json", "address", "show"])[1])
    try:
        address = choose_address(address_setting, reached, host or name, addresses)
    except ValueError as problem:
        address = address_setting
        problems.append(str(problem))
    problems += _problems_of_account(environ)
    keys, machine = read_host_keys(host_keys), own_identity()
    if not keys:
        problems.append(
            f"no host public key found in {', '.join(host_keys)}; say where sshd has them with"
            " ssh_trust_host_keys"
        )
    if not machine:
        problems.append(
            "has no machine id, so it could not be told from another; run systemd-machine-id-setup"
            " there"
        )
    return {
        "name": name,
        "user": account.pw_name,
        "address": address,
        "port": ssh_port or reached_port or port or 22,
        "host": host or name,
        "addresses": [item for item in [reached.split("%")[0]] if item],
        "host_keys": keys,
        "identity": machine,
        "home": shared_home(
            read_text(mounts.TABLE), home, os.stat(home).st_ino, network_filesystems
        ),
        "site": (read_record(home, directory) or {}).get("site") or "",
        "inventory": [name, host, port, address_setting],
        "problems": problems,
    }


def _login_endpoint(environ):
    """Return (address, port) that the controller's own login really reached.

    They are ('', 0) if unknown.
    """
    # SSH_CONNECTION: the client's address and port, then this machine's.
    fields = (environ.get("SSH_CONNECTION") or "").split()
    if len(fields) != 4:
        return "", 0
    return fields[2], int(fields[3])


def _problems_of_account(environ):
    """Return what the account or its programs lack."""
    problems = []
    if environ.get("SUDO_USER") and os.geteuid() == 0:
        problems.append(
            f"became root from {environ['SUDO_USER']}, but the mesh belongs to the training user;"
            " take ansible_become out of the inventory"
        )
    for program in ("ssh", "ssh-keygen"):
        if not shutil.which(program):
            problems.append(
                f"has no {program}; run ansible-playbook playbooks/provision.yml -K, or install"
                " openssh-client there"
            )
    return problems
