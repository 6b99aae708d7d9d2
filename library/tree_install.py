#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Place a synced tree on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tree_install
short_description: Verify a synced tree and switch it in
description:
  - C(probed) returns whether the node holds the tree bit for bit, and the directory for a sync.
    C(begun) puts the manifest beside that directory, so that other nodes can ask this one for the
    tree, takes what other trees of the node have of it, and returns what is missing. C(withdrawn)
    tells them that it will not come. C(placed) verifies what was sent against the manifest, makes it
    C(<kind>/<digest>) by one rename, and takes the write bits away.
options:
  state:
    description: The action to take.
    type: str
    choices: [probed, begun, withdrawn, placed]
    required: true
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
  manifest:
    description: The manifest, relative path to [kind, size, sha256]. C(placed) takes the one that
      came with the tree where it is not given.
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
missing:
  description: Files to be sent, as first and last places in the sorted list of the manifest's paths;
    null where rsync has to compare all of them (after C(begun) only).
  type: list
  elements: list
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import mesh_credential
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    tree_install,
    tree_relay,
    tree_state,
)

STATES = ("probed", "begun", "withdrawn", "placed")
KINDS = ("code", "data", "weights", "checkpoints", "wheels")


# Ranges of files that are returned. Where there are more, rsync compares all files.
MOST_RANGES = 10_000


def ranges(marks):
    """Return [[first, last]] of the places at which marks are true."""
    found = []
    for place, mark in enumerate(marks):
        if mark and found and found[-1][1] == place - 1:
            found[-1][1] = place
        elif mark:
            found.append([place, place])
    return found


def act(base, params, ok):
    """Do what the state asks for, and return what is missing then (see RETURN).

    ok: whether the node holds the tree bit for bit.
    """
    tree = base, params["kind"], params["digest"]
    if params["state"] == "probed" and not ok:
        # Where it is, the gate of the mesh serves no damaged copy to the other nodes.
        os.makedirs(tree_install.tree_paths(*tree)[1], mode=0o700, exist_ok=True)
    elif params["state"] == "begun":
        missing = set(tree_relay.begin(*tree, params["manifest"]))
        found = ranges(path in missing for path in sorted(params["manifest"]))
        if len(found) <= MOST_RANGES:
            return found
    elif params["state"] == "withdrawn":
        tree_relay.give_up(*tree)
    elif params["state"] == "placed" and not ok:
        tree_install.switch_in(*tree, params["manifest"])
    return None


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": list(STATES), "required": True},
            "base": {"type": "str", "default": ".trainyard"},
            "kind": {"type": "str", "choices": list(KINDS), "required": True},
            "digest": {"type": "str", "required": True},
            "manifest": {"type": "dict"},
        },
        required_if=[("state", "begun", ("manifest",))],
        supports_check_mode=True,
    )
    params, home = module.params, os.path.expanduser("~")
    base = os.path.join(home, params["base"])
    place, staging = tree_install.tree_paths(base, params["kind"], params["digest"])
    try:
        state = tree_state.look(base, params["kind"], params["digest"])
        changed = params["state"] == "placed" and not state["ok"]
        missing = None
        if not module.check_mode:
            # The gate of the mesh serves trees below it to the other nodes.
            mesh_credential.register(home, base)
            missing = act(base, params, state["ok"])
            if changed:
                state = {"ok": True, "differences": []}
        found = {"ok": state["ok"], "differences": state["differences"]}
        places = {"place": place, "staging": staging}
        module.exit_json(changed=changed, missing=missing, **places, **found)
    except (tree_install.TreeError, manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
