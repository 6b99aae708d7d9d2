#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read every byte of the code, data and weights on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tree_verify
short_description: Read every byte of the code, data and weights on a node
description:
  - Compares the trees with their manifests, and returns digests of the files that were on the node
    before. A place that all nodes share is read on the first node only.
  - Changes nothing but its notes about files that it has read, which lie below the product's
    directory. M(node_info) has described trees and places in short.
options:
  base:
    description: The product's directory on the node. A relative path starts at the user's home.
    type: str
    default: .trainyard
  node:
    description: The node's name.
    type: str
    default: ""
  nodes:
    description: The names of all nodes.
    type: list
    elements: str
    default: []
  trees:
    description: As M(job_inputs) returned them.
    type: list
    elements: dict
    default: []
  places:
    description: "As M(job_inputs) returned them (C(placed))."
    type: list
    elements: dict
    default: []
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Read every byte
  tree_verify:
    trees: "{{ inputs.trees }}"
    places: "{{ inputs.placed }}"
  register: verified
"""

RETURN = r"""
trees:
  description: As M(node_info) returns C(trees).
  type: dict
  returned: success
summary:
  description: As M(node_info) returns C(placement.summary), the sha256 of all places.
  type: str
  returned: success
places:
  description: As M(node_info) returns C(placement.places).
  type: dict
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    paths,
    placement,
    tree_state,
)


def verify(given, base):
    """Return what this node holds, with every byte read."""
    is_first = given["node"] in given["nodes"][:1]
    places = {
        place["key"]: paths.describe_path(base, place, "full")
        for place in given["places"]
        if place["placement"] != "shared" or is_first
    }
    trees = {
        f"{tree['kind']}/{tree['digest'][:16]}": tree_state.look(
            base, tree["kind"], tree["digest"], "full"
        )
        for tree in given["trees"]
    }
    return {"summary": placement.summary(places), "trees": trees, "places": places}


def main():
    module = AnsibleModule(
        argument_spec={
            "base": {"type": "str", "default": ".trainyard"},
            "node": {"type": "str", "default": ""},
            "nodes": {"type": "list", "elements": "str", "default": []},
            "trees": {"type": "list", "elements": "dict", "default": []},
            "places": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    base = os.path.join(os.path.expanduser("~"), module.params["base"])
    try:
        module.exit_json(changed=False, **verify(module.params, base))
    except (manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
