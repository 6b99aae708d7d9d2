#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Find a checkpoint to resume from on a node, or copy it from another node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: resume_point
short_description: Find the newest complete checkpoint of a run on a node, or copy it there
description:
  - C(found) looks at all attempts of a run on this node. It reads the files of a checkpoint to their end, executes nothing of them, and names what is
    newer but not complete. Nothing is deleted. M(resume_choice) takes the best of what all machines have found.
  - C(brought) runs on a node that lacks the chosen checkpoint. It is copied from the node's own
    attempt, else from another node over the mesh, compared with its digest, and becomes
    C(checkpoints/<digest>), read-only. Where no node can give it, RV(brought) is false and nothing
    is changed. Copies of other checkpoints that no start has asked for within the hour are removed
    there, unless an attempt holds the node.
options:
  state: {description: The action to take., type: str, choices: [found, brought], required: true}
  run_id: {description: "The run (C(found) only).", type: str, default: ""}
  base: {description: "The product's directory on the node; relative paths start at the user's home.", type: str, default: .trainyard}
  rule: {description: "The suite table's C(resume) (C(found) only).", type: dict, default: {}}
  node: {description: "This node's name (C(brought) only).", type: str, default: ""}
  point: {description: "As M(resume_choice) returned it (C(brought) only).", type: dict, default: {}}
attributes:
  check_mode: {support: full, description: Copies nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Look for complete checkpoints on the node
  resume_point:
    state: found
    run_id: 20261120-103501-ppyoloe-1f2e
    rule: "{{ hostvars.localhost.preflight_read.suite.resume }}"
  register: looked

- name: Bring it from a node that holds it
  resume_point:
    state: brought
    node: "{{ inventory_hostname }}"
    point: "{{ chosen.point }}"
"""

RETURN = r"""
found:
  description: >-
    point (attempt, name, stem, path, files {path: [kind, size, sha256]}, bytes, digest, epoch and step that are done, lr, saved, or null), skipped
    ([{attempt, name, why}] of what is newer and not complete).
  type: dict
  returned: found
brought: {description: Whether the node holds the checkpoint now., type: bool, returned: brought}
said: {description: "Why a source could not give it, one line each.", type: list, elements: str, returned: brought}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    mesh_credential,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import command_runner
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    finder,
    model_collector,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    checkpoint_transfer,
)


def find(given):
    """Return what the run has on this node."""
    attempt_dir.check_run_id(given["run_id"])
    home = os.path.expanduser("~")
    base = os.path.join(home, given["base"])
    mesh_credential.register(home, base)
    found = finder.find_in_run(os.path.join(base, "runs", given["run_id"]), given["rule"])
    return {"changed": False, "found": printable_data(found)}


def result(given, run, write):
    """Return the module's result. See RETURN."""
    if given["state"] == "found":
        return find(given)
    home = os.path.expanduser("~")
    changed, brought, said = checkpoint_transfer.fetch(
        run, home, os.path.join(home, given["base"]), given["node"], given["point"], write
    )
    return {"changed": changed, "brought": brought, "said": [printable(line) for line in said]}


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["found", "brought"], "required": True},
            "run_id": {"type": "str", "default": ""},
            "base": {"type": "str", "default": ".trainyard"},
            "rule": {"type": "dict", "default": {}},
            "node": {"type": "str", "default": ""},
            "point": {"type": "dict", "default": {}},
        },
        required_if=[("state", "brought", ("node", "point"))],
        supports_check_mode=True,
    )

    run = command_runner(module, handle_exceptions=False)
    try:
        module.exit_json(**result(module.params, run, not module.check_mode))
    except (
        attempt_dir.AttemptError,
        model_collector.CheckpointError,
        OSError,
        ValueError,
    ) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
