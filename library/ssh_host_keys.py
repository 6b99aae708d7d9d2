#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_host_keys
short_description: Pin the host keys of nodes met for the first time, once a user vouched for them
description:
  - Runs on the controller. Scans all nodes at once with ssh-keyscan and compares what answers with
    what is pinned in O(known_hosts) and O(also).
  - A key is written to O(known_hosts) only if O(fingerprints) holds its fingerprint. Keys without a
    vouched fingerprint come back in RV(unknown), so that they can be shown and confirmed.
  - Fails, naming each node and the remedy, where a pinned key changed, where a fingerprint does not
    match, or where a node that is not pinned does not answer. No pinned key is ever replaced or
    removed.
version_added: "0.1.0"
author: Trainyard
options:
  hosts:
    description: For every node's inventory name its C(ansible_host); an empty one means the name
      itself.
    type: dict
    required: true
  ports:
    description: For every node's inventory name its C(ansible_port); 22 where it is left out.
    type: dict
    default: {}
  fingerprints:
    description: For every node's inventory name the fingerprints (V(SHA256:...)) that a user
      vouches for.
    type: dict
    default: {}
  known_hosts:
    description: The site's own known_hosts file; its directory exists.
    type: path
    required: true
  also:
    description: Other known_hosts files that are honoured and never written.
    type: list
    elements: path
    default: []
  timeout:
    description: Seconds that a scan waits for one node.
    type: int
    default: 5
"""

EXAMPLES = r"""
- name: Pin what the inventory vouches for, and learn what is unknown
  ssh_host_keys:
    hosts:
      node1: 192.0.2.11
    fingerprints:
      node1: ["SHA256:tR0oV22jYUy6C9qXamYqCedA+SyMCNVxbZ4Z0QQvpSg"]
    known_hosts: ~/.local/state/trainyard/lab/known_hosts
    also: [~/.ssh/known_hosts]
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
pinned:
  description: Nodes whose host key was pinned before.
  returned: success
  type: list
  elements: str
recorded:
  description: Nodes whose host keys were pinned now.
  returned: success
  type: list
  elements: str
unknown:
  description: For every node without a vouched fingerprint, the fingerprints of the keys it
    answered with.
  returned: success
  type: dict
shown:
  description: The same as text, one line a key.
  returned: success
  type: list
  elements: str
"""
