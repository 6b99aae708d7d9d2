#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_sign
short_description: Sign the nodes' public keys with the site's certificate authority
description:
  - Runs on the controller, once for a site, and calls C(ssh-keygen). A certificate names its site
    and node, holds one principal, that of its node, has a serial number and a short validity, and
    allows nothing on its own.
  - A certificate that is still good is kept. The key of the authority is in O(directory), in an
    agent or on a PKCS#11 token.
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
  ca_public_key:
    description: RV(mesh_authority#module:public_key).
    type: str
    required: true
  keys:
    description: Public key of every node as the node gave it. One that is empty is passed over.
    type: dict
    required: true
  validity:
    description: The validity of a certificate, in the notation of C(ssh-keygen).
    type: str
    default: +24h
  renew_before:
    description: A certificate that is valid for less than this is renewed.
    type: str
    default: +8h
  user:
    description: The training user, while lines that let in by its name are in use; else empty.
    type: str
    default: ""
  agent_key:
    description: Path of the authority's public key where the private half is in an agent or on a
      token.
    type: path
  pkcs11:
    description: Path of the PKCS#11 library of the token that holds the private half.
    type: path
attributes:
  check_mode:
    support: full
    description: Signs nothing.
"""

EXAMPLES = r"""
- name: Sign the nodes' keys
  mesh_sign:
    directory: "{{ trainyard_state_dir }}/ca"
    site: "{{ trainyard_site }}"
    ca_public_key: "{{ mesh_authority.public_key }}"
    keys: {node1: "ssh-ed25519 AAAA..."}
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
certificates:
  description: Every node's certificate; empty where none was signed yet, as in a check.
  returned: success
  type: dict
signed:
  description: Names of the nodes whose certificate is new.
  returned: success
  type: list
  elements: str
"""
