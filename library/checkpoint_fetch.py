#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Copy a checkpoint to a node that lacks it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_fetch
short_description: Copy a checkpoint to a node that lacks it
description:
  - Copies the chosen checkpoint from the node's own attempt, else from another node over the mesh,
    and compares it with its digest. It becomes C(checkpoints/<digest>), read-only.
  - Where no node can give it, RV(brought) is false and nothing is changed.
  - Copies of other checkpoints that no start has asked for within the hour are removed there,
    unless an attempt holds the node.
options:
  base:
    description: The product's directory on the node. A relative path starts at the user's home.
    type: str
    default: .trainyard
  node:
    description: This node's name.
    type: str
    required: true
  point:
    description: The checkpoint, as M(resume_point_choice) returned it.
    type: dict
    required: true
attributes:
  check_mode: {support: full, description: Copies nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Copy the checkpoint from a node that has it
  checkpoint_fetch:
    node: "{{ inventory_hostname }}"
    point: "{{ chosen.point }}"
"""

RETURN = r"""
brought: {description: Whether the node holds the checkpoint now., type: bool, returned: success}
said: {description: "Why a source could not give it, one line each.", type: list, elements: str, returned: success}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import command_runner
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    model_collector,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    checkpoint_transfer,
)


def fetch(given, run, write):
    """Copy the checkpoint, and return the module's result. See RETURN."""
    home = os.path.expanduser("~")
    changed, brought, said = checkpoint_transfer.fetch(
        run, home, os.path.join(home, given["base"]), given["node"], given["point"], write
    )
    return {"changed": changed, "brought": brought, "said": [printable(line) for line in said]}


def main():
    module = AnsibleModule(
        argument_spec={
            "base": {"type": "str", "default": ".trainyard"},
            "node": {"type": "str", "required": True},
            "point": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )

    run = command_runner(module, handle_exceptions=False)
    try:
        module.exit_json(**fetch(module.params, run, not module.check_mode))
    except (
        attempt_dir.AttemptError,
        model_collector.CheckpointError,
        OSError,
        ValueError,
    ) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
