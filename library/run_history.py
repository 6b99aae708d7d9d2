#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What has happened of a run so far."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_history
short_description: Tell what has happened of a run so far
description:
  - C(looked) runs on a node and says which attempts of the run it knows, how they ended, and what the first rank's log tells of epochs, evaluations
    and checkpoints (the end of a long log). C(told) runs on the controller and puts what the nodes said into lines. Both change nothing.
options:
  state: {description: What to do., type: str, choices: [looked, told], required: true}
  run_id: {description: The run (C(looked) only)., type: str, default: ""}
  node: {description: The node's name in the plan (C(looked) only)., type: str, default: ""}
  base: {description: "The product's directory on the node; relative paths start at the user's home.", type: str, default: .trainyard}
  looks: {description: What C(looked) returned on the nodes (C(told) only)., type: list, elements: dict, default: []}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Ask the node what has happened so far
  run_history:
    state: looked
    run_id: 20261120-103501-ppyoloe-1f2e
    node: "{{ inventory_hostname }}"
"""

RETURN = r"""
history: {description: "run, node, attempts; see plugins/module_utils/runs/history.py.", type: dict, returned: looked}
lines: {description: The history in lines for people., type: list, elements: str, returned: told}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import history


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["looked", "told"], "required": True},
            "run_id": {"type": "str", "default": ""},
            "node": {"type": "str", "default": ""},
            "base": {"type": "str", "default": ".trainyard"},
            "looks": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        if given["state"] == "told":
            module.exit_json(changed=False, lines=history.lines(given["looks"]))
        base = os.path.join(os.path.expanduser("~"), given["base"])
        module.exit_json(changed=False, history=history.look(base, given["run_id"], given["node"]))
    except (attempt_dir.AttemptError, OSError, ValueError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
