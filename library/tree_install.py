#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Place a synced tree on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tree_install
short_description: Verify a synced tree and switch it in
description:
  - C(probed) returns whether the node holds the tree bit for bit, and the directory for a sync.
    C(placed) verifies what was sent against the manifest, makes it C(<kind>/<digest>) by one
    rename, and takes the write bits away.
options:
  state:
    description: The action to take.
    type: str
    choices: [probed, placed]
    required: true
  base:
    description: The product's directory on the node; relative paths start at the user's home.
    type: str
    default: .trainyard
  kind:
    description: The kind of tree.
    type: str
    choices: [code, data, weights, checkpoints]
    required: true
  digest:
    description: Digest of its manifest.
    type: str
    required: true
  manifest:
    description: The manifest, relative path to [kind, size, sha256] (C(placed) only).
    type: dict
attributes:
  check_mode:
    support: full
    description: Verifies nothing and moves nothing.
author: Trainyard
"""

EXAMPLES = r"""
- name: Verify the code and switch it in
  tree_install:
    state: placed
    kind: code
    digest: 4f0c...
    manifest: "{{ lookup('ansible.builtin.file', 'manifests/4f0c....json') }}"
"""

RETURN = r"""
ok: {description: Whether the node holds the tree bit for bit., type: bool, returned: success}
differences: {description: Differing files by name., type: list, elements: str, returned: success}
staging: {description: Where a sync is to send the tree., type: str, returned: success}
place: {description: Where the tree lies., type: str, returned: success}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    tree_install,
    tree_state,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["probed", "placed"], "required": True},
            "base": {"type": "str", "default": ".trainyard"},
            "kind": {
                "type": "str",
                "choices": ["code", "data", "weights", "checkpoints"],
                "required": True,
            },
            "digest": {"type": "str", "required": True},
            "manifest": {"type": "dict"},
        },
        required_if=[("state", "placed", ("manifest",))],
        supports_check_mode=True,
    )
    base = os.path.join(os.path.expanduser("~"), module.params["base"])
    kind, digest = module.params["kind"], module.params["digest"]
    place, staging = tree_install.tree_paths(base, kind, digest)
    try:
        state = tree_state.look(base, kind, digest)
        changed = module.params["state"] == "placed" and not state["ok"]
        if not module.check_mode:
            if module.params["state"] == "probed":
                os.makedirs(os.path.dirname(staging), mode=0o700, exist_ok=True)
            elif changed:
                tree_install.switch_in(base, kind, digest, module.params["manifest"])
                state = {"ok": True, "differences": []}
        module.exit_json(
            changed=changed,
            ok=state["ok"],
            differences=state["differences"],
            place=place,
            staging=staging,
        )
    except (tree_install.TreeError, manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
