#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: environment_differences
short_description: Stop where nodes have different packages
description:
  - Compares the markers of one environment on all nodes and fails with one line per node that
    differs from the first, naming the packages.
  - Environments that we install are equal already by their digest; this is what holds for the
    user's own Pythons.
  - Runs on the controller (C(delegate_to) localhost, C(run_once)).
version_added: "0.1.0"
author: Trainyard
options:
  digest:
    description: Name of the environment.
    type: str
    required: true
  nodes:
    description: What M(python_environment_info) or M(python_environment) returned on each node, by
      inventory name, in rank order.
    type: dict
    required: true
notes:
  - Supports check mode. Nodes that have no marker yet are left out then.
"""

EXAMPLES = r"""
- name: Stop unless every node has the same packages
  environment_differences:
    digest: "{{ wheelhouse.digest }}"
    nodes: >-
      {{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars,
      '__runtime_node'))) }}
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
fingerprint:
  description: sha256 of the packages that all nodes have; empty in check mode where no node has the
    environment.
  type: str
  returned: success
imported:
  description: What all nodes import, V({version, cuda, cuda_version, commit}) of Paddle or
    V({version, targets, commit}) of MindSpore.
  type: dict
  returned: success
"""
