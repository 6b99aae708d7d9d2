#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_authority
short_description: Keep the site's certificate authority on the controller
description:
  - Runs on the controller, once for a site. Makes the authority's key pair, or takes the public key
    of one in an agent or on a token, and keeps the journal of it. The journal has the serial
    numbers, every key that the authority has had, and the nodes that were taken back.
  - With O(state=absent) it removes the directory, and refuses one that holds anything else.
version_added: "0.1.0"
author: Trainyard
options:
  directory:
    description: Directory of the authority on the controller.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  state:
    description: The wanted state of the authority. V(noted) makes none, and only takes nodes back
      and in.
    type: str
    choices: [present, noted, absent]
    default: present
  public_key:
    description: Path of a public key whose private half is in an agent or on a token. Empty for a
      key pair in O(directory).
    type: path
  nodes:
    description:
      - RV(ssh_mesh_node#module:held) and C(state.authority) of every node, as a pair. An authority of
        this site that is not one of this controller's is refused, before a key is made or changed.
    type: dict
    default: {}
  replace:
    description: Replace another controller's authority instead.
    type: bool
    default: false
  rotate:
    description: Make a new key pair. The former one stays known as this site's own, and its private
      half is removed.
    type: bool
    default: false
  take_back:
    description: Name of a node that is no longer trusted. What was signed for it is removed, and it
      gets no certificate again.
    type: str
    default: ""
  known:
    description: Names that may be taken back. Besides them, nodes for which something was signed
      may be.
    type: list
    elements: str
    default: []
  take_in:
    description: Names of nodes that were taken back and are trusted again.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Writes nothing; an authority that is not there yet has an empty public key.
"""

EXAMPLES = r"""
- name: Make the site's certificate authority
  mesh_authority:
    directory: "{{ trainyard_state_dir }}/ca"
    site: "{{ trainyard_site }}"
  delegate_to: localhost
  run_once: true
  register: mesh_authority
"""

RETURN = r"""
public_key:
  description: The authority's public key; empty where it was not made yet, as in a check of a fresh
    site.
  returned: with O(state=present)
  type: str
authority:
  description: The authority's C(fingerprint), C(public_key), C(by) (user@controller) and C(since)
    (unix seconds).
  returned: with O(state=present)
  type: dict
own:
  description: Fingerprints of all keys that this authority has had.
  returned: with O(state=present)
  type: list
  elements: str
taken_back:
  description: Nodes that were taken back, each with C(by) and C(since).
  returned: with O(state=present) and O(state=noted)
  type: dict
texts:
  description: The same as sentences, with the remedy.
  returned: with O(state=present) and O(state=noted)
  type: list
  elements: str
"""
