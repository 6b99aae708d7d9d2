#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Choose the nodes that name their files where code, data or weights differ."""

from __future__ import annotations

DOCUMENTATION = r"""
module: placement_compare
short_description: Choose the nodes that name their files
description:
  - Compares what the nodes know of code, data and weights that lie there already, and returns the nodes that differ and one that agrees with most.
  - M(tree_files_info) then names the files of these nodes.
  - Runs on the controller and changes nothing.
options:
  facts: {description: "{node: facts}, as M(node_info) returned them.", type: dict, required: true}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Choose the nodes that name their files
  placement_compare:
    facts: {node1: "{{ hostvars.node1.preflight_probe.facts }}"}
"""

RETURN = r"""
nodes: {description: "Nodes to ask, the reference first.", type: list, elements: str, returned: success}
buckets: {description: Place to numbers of its parts., type: dict, returned: success}
"""
