#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_mesh_config
short_description: Compile the files of the mesh
description:
  - Runs on the controller, once for a site, and writes nothing. Makes the text of the mesh's
    C(known_hosts) and C(config), one line per peer for C(authorized_keys), and the digest of it
    all.
  - Names, hosts and ports come from the inventory, host keys from the controller's known_hosts.
    What M(ssh_mesh_node) found on a node adds its address, which is compared with the inventory, and
    digests that are only compared.
  - Fails with every problem of every node at once, each with its remedy.
version_added: "0.1.0"
author: Trainyard
options:
  nodes:
    description: RV(ssh_mesh_node#module:node) of every node, in the order of the ranks.
    type: list
    elements: dict
    required: true
  names:
    description: Inventory names of the nodes, in the same order.
    type: list
    elements: str
    required: true
  inventory:
    description:
      - The inventory's data of the nodes. C(hosts), C(ports), C(addresses), C(ssh_ports) and
        C(users), each a mapping of node names to C(ansible_host), C(ansible_port),
        C(trainyard_address), C(ssh_trust_port) and C(ansible_user); a value may be empty.
    type: dict
    required: true
  known_hosts:
    description: The controller's known_hosts files.
    type: list
    elements: path
    default: []
  gate:
    description: Text of the gate's programs, which the digest covers.
    type: str
    default: ""
  states:
    description: RV(ssh_mesh_node#module:state) of every node.
    type: list
    elements: dict
    default: []
  site:
    description: Name of the site.
    type: str
    required: true
  ca_public_key:
    description: Public key of the site's certificate authority. Empty before it was made, as in a
      check of a fresh site.
    type: str
    default: ""
  directory:
    description: The mesh's directory on the nodes, relative to the user's home directory or
      absolute.
    type: str
    default: .trainyard/mesh
  extra_from:
    description: IP addresses or networks from which peers may come besides the nodes' own
      addresses, where they are translated on the way.
    type: list
    elements: str
    default: []
  shared_home:
    description: Whether nodes may share one home directory, and so one private key.
    type: bool
    default: false
  validity:
    description: The validity of a certificate, in the notation of ssh-keygen, V(+7d) for
      instance.
    type: str
    default: +7d
  renew_before:
    description: A certificate that is valid for less than this is renewed; shorter than
      O(validity).
    type: str
    default: +1d
"""

EXAMPLES = r"""
- name: Compile the mesh
  ssh_mesh_config:
    nodes: "{{ groups['trainers'] | map('extract', hostvars, ['ssh_mesh_node', 'node']) }}"
    names: "{{ groups['trainers'] }}"
    inventory: {hosts: {node1: "198.51.100.11", node2: "198.51.100.12"}}
    known_hosts: ["{{ trainyard_state_dir }}/known_hosts", ~/.ssh/known_hosts]
    states: "{{ groups['trainers'] | map('extract', hostvars, ['ssh_mesh_node', 'state']) }}"
    site: "{{ trainyard_site }}"
    ca_public_key: >-
      {{ lookup('ansible.builtin.file', trainyard_state_dir ~ '/ca/id_ed25519.pub') }}
  delegate_to: localhost
  run_once: true
  register: mesh
"""

RETURN = r"""
ready:
  description: Whether this very mesh lies on every node as it was proven, and no certificate is due
    for renewal.
  returned: success
  type: bool
known_hosts:
  description: Text of the mesh's known_hosts.
  returned: success
  type: str
config:
  description: Text of the mesh's ssh configuration.
  returned: success
  type: str
lines:
  description: The lines for authorized_keys, one per node; none where O(ca_public_key) is empty.
  returned: success
  type: list
  elements: str
principals:
  description: For every node the one principal of its certificate.
  returned: success
  type: dict
pattern:
  description: Regular expression that matches the site's own lines in authorized_keys and no other.
  returned: success
  type: str
digest:
  description: SHA-256 over texts, lines and gate, and so over all that went into them; empty where
    O(ca_public_key) is.
  returned: success
  type: str
inventory:
  description: SHA-256 over what the inventory says of the nodes.
  returned: success
  type: str
nodes:
  description: Inventory names in the order of the ranks.
  returned: success
  type: list
  elements: str
owners:
  description: For every node the one that writes its home directory, itself unless several share
    one.
  returned: success
  type: dict
identities:
  description: For every node what its answer to a login is compared with.
  returned: success
  type: dict
"""
