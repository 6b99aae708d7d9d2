#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Send a tree to a node, from the controller or from another node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tree_send
short_description: Send a tree to a node, from the controller or from another node
description:
  - An action plugin. The first node of O(chain) gets the tree from the controller by rsync
    (M(ansible.posix.synchronize)), and each other one from the nodes before it (M(tree_fetch)), at
    the same time. So a tree leaves the controller once, whatever the number of nodes.
  - A node that no other one can serve gets what it lacks from the controller.
  - A node that holds the tree already (O(holders)) serves the first one, too.
options:
  base:
    description: The product's directory on the node; relative paths start at the user's home.
    type: str
    default: .trainyard
  tree:
    description: "The tree, as M(job_inputs) returned it: kind, name, digest, source, bytes, follow."
    type: dict
    required: true
  cache_dir:
    description: The controller's cache, with the tree's manifest and list of files.
    type: path
    required: true
  staging:
    description: Where the tree is sent to on the node. A relative path starts at the user's home.
    type: str
    required: true
  chain:
    description: The nodes that lack the tree, in the order in which it goes through them.
    type: list
    elements: str
    required: true
  holders:
    description: Nodes that hold the tree already.
    type: list
    elements: str
    default: []
author: Trainyard
"""

EXAMPLES = r"""
- name: Send the data
  tree_send:
    tree: "{{ inputs.trees[0] }}"
    cache_dir: /home/me/.cache/trainyard
    staging: .trainyard/staging/data-4f0c
    chain: [node1, node2, node3]
"""

RETURN = r"""
origin:
  description: Where the tree came from, C(controller) or C(nodes).
  type: str
  returned: success
said:
  description: Why a node before this one did not give the tree.
  type: list
  elements: str
  returned: success
"""
