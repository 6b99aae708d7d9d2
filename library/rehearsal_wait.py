#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Wait for a rehearsal on a node, read it, remove it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rehearsal_wait
short_description: Wait for a rehearsal's end on a node, return its ranks' results, and remove it
description:
  - The module attempt has started it as attempt 0 of a run. A rehearsal that has not ended after
      the given seconds is stopped. Its directory is removed in any case; the ranks' results, and
      the ends of their logs, are returned.
options:
  run_id:
    description: The run whose plan is rehearsed.
    type: str
    required: true
  node:
    description: The node's name in the plan.
    type: str
    required: true
  base:
    description: The product's directory on the node; relative paths start at the user's home.
    type: str
    default: .trainyard
  seconds:
    description: After so many seconds it is stopped.
    type: float
    default: 90
  refused:
    description: Why it did not start here, or empty.
    type: str
    default: ""
  alone:
    description: Whether it did not start on another node, so that there is nothing to wait for.
    type: bool
    default: false
attributes:
  check_mode:
    support: none
author: Trainyard
"""

EXAMPLES = r"""
- name: Wait for its end
  rehearsal_wait:
    run_id: 20261120-103501-ppyoloe-1f2e
    node: "{{ inventory_hostname }}"
"""

RETURN = r"""
ranks:
  description: "One item for every process that printed a line: rank, world, endpoint, endpoints,
    stage (how far it came), joined_rank, joined_world, sum, bytes, seconds, bandwidth (bytes/s),
    convolution, backend, version, error and after (the stage before it)."
  type: list
  elements: dict
  returned: success
transports:
  description: NCCL's ways, such as NET/IB, to the number of connections.
  type: dict
  returned: success
events:
  description: The agent's events.
  type: list
  elements: dict
  returned: success
hung:
  description: Whether it had not ended within the given seconds.
  type: bool
  returned: success
halted:
  description: "Whether it was stopped, by the failing node's agent, or this module."
  type: bool
  returned: success
seconds:
  description: How long it was waited for.
  type: float
  returned: success
console:
  description: The end of the launcher's console.
  type: list
  elements: str
  returned: success
logs:
  description: The end of each rank's log by rank.
  type: dict
  returned: success
refused:
  description: Why it did not start here.
  type: str
  returned: success
without_peers:
  description: "Of a second try of one node's GPUs with NCCL_P2P_DISABLE=1 after a hang: hung and
    ranks (rank, stage, sum), or null."
  type: raw
  returned: success
left:
  description: What could not be removed, or empty.
  type: str
  returned: success
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
from ansible_collections.trainyard.cluster.plugins.module_utils.rehearsal import (
    node_rehearsal,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "run_id": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "base": {"type": "str", "default": ".trainyard"},
            "seconds": {"type": "float", "default": 90},
            "refused": {"type": "str", "default": ""},
            "alone": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    if module.check_mode:  # nothing was started, so there is nothing to wait for
        module.exit_json(changed=False, skipped=True)
    given = module.params
    base = os.path.join(os.path.expanduser("~"), given["base"])

    run = command_runner(module)
    try:
        found = node_rehearsal.finish(
            run,
            base,
            given["run_id"],
            given["node"],
            given["seconds"],
            given["refused"],
            given["alone"],
        )
        module.exit_json(changed=False, **found)
    except (attempt_dir.AttemptError, OSError) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
