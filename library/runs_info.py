#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe the runs of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: runs_info
short_description: Describe the runs of a node
description:
  - Returns each run with its size, its newest checkpoint and whether it is active or held, and what
    else lies among the runs.
  - M(prune_choice) chooses runs by a rule, and M(run_prune) removes them.
options:
  folder:
    description: The product's directory. A relative path starts at the user's home.
    type: str
    default: .trainyard
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Describe the node's runs
  runs_info:
  register: runs
"""

RETURN = r"""
look:
  description: "runs, strange, unfinished and bytes; see plugins/module_utils/runs/prune_scan.py."
  type: dict
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
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import (
    prune_scan,
)


def main():
    module = AnsibleModule(
        argument_spec={"folder": {"type": "str", "default": ".trainyard"}},
        supports_check_mode=True,
    )

    run = command_runner(module)
    folder = os.path.expanduser(module.params["folder"])
    base = os.path.join(os.path.expanduser("~"), folder)
    try:
        running = prune_scan.find_held(run)
        look = prune_scan.scan_runs(
            os.path.join(base, "runs"),
            lambda name: prune_scan.describe_node_run(base, name, running),
        )
    except (attempt_dir.AttemptError, OSError, ValueError) as error:
        module.fail_json(**describe_failure(error))
    module.exit_json(changed=False, look=printable_data(look))


if __name__ == "__main__":
    main()
