#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Receive a tree from other nodes of the site."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tree_fetch
short_description: Receive a tree from another node, while that one still receives it
description:
  - Asks the gate of each source for the tree over the mesh, one after the other, until every file
    of the manifest is in the staging directory. M(tree_install) switches it in after that.
  - A source need not have the tree yet. It sends what it has, and the rest when it arrives. So a
    tree goes through all nodes as through a chain, and leaves the controller once.
  - What a source sends is verified while it arrives. What came from one source is not asked for
    again.
options:
  base:
    description: The product's directory on the node; relative paths start at the user's home.
    type: str
    default: .trainyard
  kind:
    description: The kind of tree.
    type: str
    choices: [code, data, weights, checkpoints, wheels]
    required: true
  digest:
    description: Digest of its manifest.
    type: str
    required: true
  sources:
    description: Nodes to ask, in the order of the tries.
    type: list
    elements: str
    required: true
  stall:
    description: Seconds after which a source that sends too little is left for the next one.
    type: int
    required: true
  manifest_bytes:
    description: Size of the manifest as JSON. A source may send no larger one.
    type: int
    required: true
attributes:
  check_mode:
    support: full
    description: Asks nobody.
author: Trainyard
"""

EXAMPLES = r"""
- name: Receive the data from the node before this one
  tree_fetch:
    kind: data
    digest: 4f0c...
    sources: [node1]
    stall: 20
    manifest_bytes: 1200
  register: fetched
"""

RETURN = r"""
complete:
  description: Whether every file is in the staging directory.
  type: bool
  returned: success
said:
  description: Why a source did not give the tree, one line each.
  type: list
  elements: str
  returned: success
bytes:
  description: Bytes that were received.
  type: int
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    tree_install,
    tree_relay,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives


def main():
    module = AnsibleModule(
        argument_spec={
            "base": {"type": "str", "default": ".trainyard"},
            "kind": {
                "type": "str",
                "choices": ["code", "data", "weights", "checkpoints", "wheels"],
                "required": True,
            },
            "digest": {"type": "str", "required": True},
            "sources": {"type": "list", "elements": "str", "required": True},
            "stall": {"type": "int", "required": True},
            "manifest_bytes": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    home = os.path.expanduser("~")
    base = os.path.join(home, module.params["base"])
    kind, digest = module.params["kind"], module.params["digest"]
    config = os.path.join(home, primitives.DIRECTORY, "config")
    if module.check_mode:
        module.exit_json(changed=True, complete=False, said=[], bytes=0)
    if not os.path.exists(config):
        module.exit_json(changed=False, complete=False, said=["no mesh is here"], bytes=0)
    argvs = {
        node: tree_relay.ssh_argv(config, node, kind, digest) for node in module.params["sources"]
    }
    try:
        complete, said, received = tree_relay.fetch(
            base, kind, digest, argvs, module.params["stall"], module.params["manifest_bytes"]
        )
    except (tree_install.TreeError, manifest.ManifestError, OSError) as error:
        tree_relay.give_up(base, kind, digest)
        module.fail_json(msg=printable(str(error), newlines=True))
    module.exit_json(changed=True, complete=complete, said=said, bytes=received)


if __name__ == "__main__":
    main()
