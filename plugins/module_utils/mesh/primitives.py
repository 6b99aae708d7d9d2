# SPDX-License-Identifier: Apache-2.0
"""Basics of the mesh, by which the nodes of a site log in to each other.

The mesh works without passwords, without N^2 keys and without trust on first use (docs/design.md,
6).

node_description describes a node, known_nodes and ssh_config compile the mesh on the controller.
store has the node's part of it, and login_check tests the logins.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import json
import re

DIRECTORY = ".trainyard/mesh"
KEY = "id_ed25519"
CERTIFICATE = "id_ed25519-cert.pub"
RECORD = "mesh.json"
# 1: one line in authorized_keys for all nodes, with a shell. 2: one line per peer, with a gate.
# 3: a gate whose rsync works with rsync 3.5.0.
RECORD_VERSION = 3
GATE = "gate.py"
TREE_SENDER = "tree_sender.py"
PYTHON = "/usr/bin/python3"
# The files whose bytes a proof is bound to.
PROVEN_FILES = ("config", "known_hosts", GATE, TREE_SENDER, KEY, CERTIFICATE)
HOST_KEYS = ("/etc/ssh/ssh_host_*_key.pub",)
# The files that identify a machine: its machine id and its host name.
WHO = ("/etc/machine-id", "/proc/sys/kernel/hostname")
HOST_KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
# A node's clock may be this much behind the controller's.
CLOCK_SLACK_SECONDS = 300
TRUST = "ansible-playbook playbooks/trust.yml"


def sha256(text):
    """Return the hex sha256 of a text or of bytes."""
    if isinstance(text, str):
        text = text.encode("utf-8")
    return hashlib.sha256(text).hexdigest()


def public_key(text):
    """Return 'type base64' of a public key's line without its comment.

    Returns None for a line that is not a key that a mesh uses.
    """
    fields = text.split()
    if len(fields) >= 2 and fields[0] in HOST_KEY_TYPES:
        return " ".join(fields[:2])
    return None


def fingerprint(line):
    """Return the fingerprint of a public key's line as `ssh-keygen -l` prints it.

    Returns '' for a line that is not a public key.
    """
    key = public_key(line)
    if not key:
        return ""
    try:
        blob = base64.b64decode(key.split()[1], validate=True)
    except (binascii.Error, ValueError):
        return ""
    if not blob:
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def identity(machine_id, hostname):
    """Return the digest that identifies a machine, '' without a machine id."""
    if not machine_id.strip():
        return ""
    return sha256(f"{machine_id.strip()}\n{hostname.strip()}\n")


def is_address(text):
    """Return True if the text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def inventory_digest(rows):
    """Return a digest of what an inventory says of a site's nodes.

    With it a changed address is seen without asking any node.

    rows: (name, ansible_host, ansible_port, trainyard_address) in the order of the ranks, '' or
    None where a variable is not set.
    """
    values = [
        [str(name), str(host or name), int(port or 22), str(address or "")]
        for name, host, port, address in rows
    ]
    return sha256(json.dumps(values))


def principal(site, name):
    """Return the one principal of a node's certificate. No name holds a slash."""
    return f"{site}/{name}"


def marker(site, name):
    """Return the comment that marks a node's line in authorized_keys as a site's."""
    return f"trainyard-ca {site} {name}"


def line_pattern(site):
    """Return a regular expression of a site's lines in authorized_keys.

    There is one line per peer. An earlier Trainyard had one line for all of them.
    """
    return rf"^cert-authority,\S.* trainyard-ca {re.escape(site)}(?: \S+)?$"
