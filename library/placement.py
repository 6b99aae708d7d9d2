#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read what lies on a node already, more closely than the probe."""

from __future__ import annotations

DOCUMENTATION = r"""
module: placement
short_description: Verify code, data and weights on a node in full, or name their files
description:
  - Reads only. Its notes about files that it has read lie below the product's directory. The probe
    has described the places in short.
options:
  state:
    description:
      - C(full) reads every byte of the trees and places of this node. C(named) shows the files of the given parts by name.
      - C(outline) describes a code tree that lies on this node, with the texts of a suite config and of the files that it builds on.
      - C(base) describes the product's directory, for M(shared_base_check).
    type: str
    choices: [full, named, outline, base]
    required: true
  base: {description: "The product's directory on the node; relative paths start at the user's home.", type: str, default: .trainyard}
  node: {description: The node's name., type: str, default: ""}
  nodes: {description: The names of all nodes., type: list, elements: str, default: []}
  trees: {description: As job_inputs gives them., type: list, elements: dict, default: []}
  places: {description: "As job_inputs gives them (C(placed)).", type: list, elements: dict, default: []}
  buckets: {description: "Place to numbers of its parts (C(named)), as M(placement_compare) returns them.", type: dict, default: {}}
  path: {description: The code's directory (C(outline))., type: str}
  config: {description: The suite's config in it (C(outline))., type: str}
  exclude: {description: "Directories in it that the training never sees (C(outline)).", type: list, elements: str, default: []}
  full: {description: "Whether every byte has been read (C(named)).", type: bool, default: false}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Read every byte
  placement: {state: full, trees: "{{ inputs.trees }}", places: "{{ inputs.placed }}"}
  register: verified
"""

RETURN = r"""
trees: {description: "As node_info's trees (C(full)).", type: dict, returned: full}
summary: {description: "As node_info's placement.summary (C(full)).", type: str, returned: full}
places: {description: "As node_info's placement.places (C(full)), or the files by name (C(named)).", type: dict, returned: "full, named"}
outline: {description: "digest, files, bytes, names, texts, commit, dirty.", type: dict, returned: outline}
found: {description: "identity and nonce (C(base)).", type: dict, returned: base}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    paths,
    placement,
    remote_outline,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import probe


def full(given, base):
    """Read every byte. Shared places are read only on the first node."""
    wanted = [
        place
        for place in given["places"]
        if place["placement"] != "shared" or given["node"] in given["nodes"][:1]
    ]
    seen = {place["key"]: paths.describe_path(base, place, "full") for place in wanted}
    return {
        "summary": placement.summary(seen),
        "trees": {
            "{}/{}".format(t["kind"], t["digest"][:16]): probe.tree_state(
                base, t["kind"], t["digest"], "full"
            )
            for t in given["trees"]
        },
        "places": seen,
    }


def named(given, base):
    """Show files by name."""
    asked = [place for place in given["places"] if given["buckets"].get(place["key"])]
    return {
        "places": {
            place["key"]: paths.list_entries(
                base, place, given["buckets"][place["key"]], given["full"]
            )
            for place in asked
        }
    }


DO = {
    "full": full,
    "named": named,
    "outline": lambda given, base: {
        "outline": remote_outline.describe_tree(
            base, given["path"], given["config"], given["exclude"]
        )
    },
    "base": lambda given, base: {
        "found": placement.describe_base(base, given["node"], given["nodes"])
    },
}


def main():
    lists, dicts = (
        {"type": "list", "elements": "dict", "default": []},
        {"type": "dict", "default": {}},
    )
    words = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["full", "named", "outline", "base"],
                "required": True,
            },
            "base": {"type": "str", "default": ".trainyard"},
            "node": {"type": "str", "default": ""},
            "nodes": words,
            "trees": lists,
            "places": lists,
            "buckets": dicts,
            "path": {"type": "str"},
            "config": {"type": "str"},
            "exclude": words,
            "full": {"type": "bool", "default": False},
        },
        required_if=[("state", "outline", ("path", "config"))],
        supports_check_mode=True,
    )
    given = module.params
    try:
        module.exit_json(
            changed=False,
            **DO[given["state"]](given, os.path.join(os.path.expanduser("~"), given["base"])),
        )
    except (manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
