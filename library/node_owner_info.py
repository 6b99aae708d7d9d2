#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The run that holds a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_owner_info
short_description: Return the attempts that hold a node
description:
  - One quick look finds whether a node answers and which attempts hold it, of any user. Changes
    nothing. It needs neither a plan nor a run.
options:
  base:
    description: The product's directory on the node; relative paths start at the user's home.
    type: str
    default: .trainyard
attributes:
  check_mode:
    support: full
    description: Reads only.
author: Trainyard
"""

EXAMPLES = r"""
- name: Look for the nodes that answer
  node_owner_info:
  register: look
  ignore_unreachable: true
"""

RETURN = r"""
held:
  description: The attempts that hold the node (run, attempt, user, mine, since and more; see
    attempts/ownership.py).
  type: list
  elements: dict
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    ownership,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import command_runner


def main():
    module = AnsibleModule(
        argument_spec={"base": {"type": "str", "default": ".trainyard"}}, supports_check_mode=True
    )

    run = command_runner(module)
    try:
        module.exit_json(
            changed=False,
            held=ownership.list_owners(
                run, os.path.join(os.path.expanduser("~"), module.params["base"])
            ),
        )
    except (attempt_dir.AttemptError, OSError) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
