#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Return the state of every run on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_states_info
short_description: Return the state of every run on a node
description:
  - Returns each run of the training user with its state, its latest step and its owner, whichever
    controller has started it.
  - Returns the attempts that other users run on this machine, as far as every user may see them.
    That is the run, its unit and the user.
  - Changes nothing.
options:
  node: {description: The node's name in the inventory., type: str, required: true}
  most:
    description: Number of runs that have ended, the newest first. Those that go on are always there.
    type: int
    default: 20
  base:
    description: The product's directory on the node; relative paths start at the user's home.
    type: str
    default: .trainyard
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Read the runs of the node
  run_states_info:
    node: "{{ inventory_hostname }}"
  register: states
"""

RETURN = r"""
runs:
  description: The runs, the newest first; see plugins/module_utils/runs/run_states.py.
  type: list
  elements: dict
  returned: success
left_out: {description: Number of older runs., type: int, returned: success}
others:
  description: "run, attempt, unit and user of other users' attempts."
  type: list
  elements: dict
  returned: success
tickets:
  description: "The starts that wait for this node, in their order: id, run, by, since and turn."
  type: list
  elements: dict
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    tickets,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import command_runner
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import (
    run_states,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "most": {"type": "int", "default": 20},
            "base": {"type": "str", "default": ".trainyard"},
        },
        supports_check_mode=True,
    )
    params = module.params
    base = os.path.join(os.path.expanduser("~"), params["base"])
    try:
        runs, left_out = run_states.read_runs(
            command_runner(module), base, params["node"], params["most"]
        )
        others = run_states.other_users()
        waiting = tickets.list_living(tickets.folder_of(base), change=False)
    except (attempt_dir.AttemptError, OSError) as error:
        module.fail_json(**describe_failure(error))
    module.exit_json(
        changed=False, runs=runs, left_out=left_out, others=others, tickets=waiting[: tickets.MOST]
    )


if __name__ == "__main__":
    main()
