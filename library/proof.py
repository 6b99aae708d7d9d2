#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Judge what nodes have proven."""

from __future__ import annotations

DOCUMENTATION = r"""
module: proof
short_description: Judge what the nodes found of network or plan, and keep the proof
description:
  - Runs on the controller. Fails with everything that keeps the training from starting, unless it
    is only to be reported. A proof without such a finding is kept below the site's state directory
    and spares its repetition for a while.
options:
  kind:
    description: What was tried.
    type: str
    choices: [network, rehearsal]
    required: true
  plan:
    description: The plan.
    type: dict
    required: true
  facts:
    description: Node name to what node_info returned.
    type: dict
    required: true
  results:
    description: Node name to what the node's module returned; a node that failed has msg.
    type: dict
    required: true
  rivals:
    description: Node name to the other check that has stopped the node's listener.
    type: dict
    default: {}
  rehearsal:
    description: The nodes that are to rehearse after a check of the network.
    type: list
    elements: str
    default: []
  depth:
    description: How deeply the network was looked at; only a full look is kept.
    type: str
    choices: [quick, full]
    default: full
  allowed:
    description: What the site asks (roles/preflight/defaults/main.yml).
    type: dict
    default: {}
  state_dir:
    description: What the controller keeps of the site.
    type: path
    required: true
  report:
    description: Return the findings instead of failing with them.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Keeps nothing.
author: Trainyard
"""

EXAMPLES = r"""
- name: Judge the network
  proof:
    kind: network
    plan: "{{ planned.plan }}"
    facts: "{{ facts }}"
    results: "{{ results }}"
    state_dir: ~/.local/state/trainyard/mysite
"""

RETURN = r"""
stops:
  description: "Of what is in the way of a start: check and nodes."
  type: list
  elements: dict
  returned: where it failed for that reason
findings:
  description: What was found, see findings.py.
  type: list
  elements: dict
  returned: success
not_rehearsed:
  description: The nodes that are not to rehearse, since the network is broken.
  type: list
  elements: str
  returned: success
lines:
  description: The same as a table for people.
  type: list
  elements: str
  returned: success
"""
