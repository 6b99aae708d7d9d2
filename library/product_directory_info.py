#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe the product's directory on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: product_directory_info
short_description: Describe the product's directory on a node
description:
  - Returns what identifies the directory, and the random marks of all nodes that it holds, for
    M(shared_base_check). Writes the mark of this node into the directory where there is one.
options:
  base:
    description: The product's directory on the node. A relative path starts at the user's home.
    type: str
    default: .trainyard
  node:
    description: The node's name.
    type: str
    required: true
  nodes:
    description: The names of all nodes.
    type: list
    elements: str
    required: true
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Describe the product's directory
  product_directory_info:
    node: "{{ inventory_hostname }}"
    nodes: "{{ groups.trainers }}"
  register: base
"""

RETURN = r"""
found:
  description: "base (digests that identify the directory) and nonce (own: the mark of this node,
    seen: the marks of the other nodes)."
  type: dict
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import placement


def main():
    module = AnsibleModule(
        argument_spec={
            "base": {"type": "str", "default": ".trainyard"},
            "node": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    base = os.path.join(os.path.expanduser("~"), given["base"])
    try:
        found = placement.describe_base(base, given["node"], given["nodes"])
    except OSError as error:
        module.fail_json(msg=printable(str(error), newlines=True))
    module.exit_json(changed=False, found=found)


if __name__ == "__main__":
    main()
