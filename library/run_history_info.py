#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read the history of a run on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_history_info
short_description: Read the history of a run on a node
description:
  - Returns the attempts of the run that this node knows, how they ended, and the epochs, evaluations and checkpoints in the first rank's log (the end
    of a long log). Changes nothing.
  - The filter P(trainyard.cluster.history_lines#filter) describes it in lines.
options:
  run_id: {description: The run., type: str, required: true}
  node: {description: The node's name in the plan., type: str, required: true}
  base: {description: "The product's directory on the node; relative paths start at the user's home.", type: str, default: .trainyard}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Ask the node what has happened so far
  run_history_info:
    run_id: 20261120-103501-ppyoloe-1f2e
    node: "{{ inventory_hostname }}"
"""

RETURN = r"""
history: {description: "run, node, attempts; see plugins/module_utils/runs/history.py.", type: dict, returned: success}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import priority
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import history


def main():
    module = AnsibleModule(
        argument_spec={
            "run_id": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "base": {"type": "str", "default": ".trainyard"},
        },
        supports_check_mode=True,
    )
    given = module.params
    priority.lower()  # a training goes on beside it
    try:
        base = os.path.join(os.path.expanduser("~"), given["base"])
        module.exit_json(
            changed=False, history=history.read_history(base, given["run_id"], given["node"])
        )
    except (attempt_dir.AttemptError, OSError, ValueError) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
