#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Remove runs from a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_prune
short_description: Remove runs from a node
description:
  - Looks at each run once more before it removes it. A run that is active or held stays, and so
    does what is not understood from top to bottom.
  - M(runs_info) describes the runs and M(prune_choice) applies the rule. M(controller_run_prune)
    removes runs from the controller.
options:
  folder:
    description: The product's directory. A relative path starts at the user's home.
    type: str
    default: .trainyard
  names:
    description: The ids of the runs to remove.
    type: list
    elements: str
    required: true
attributes:
  check_mode: {support: full, description: Removes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Remove the chosen runs
  run_prune:
    names: "{{ chosen.remove[inventory_hostname] | default([]) }}"
"""

RETURN = r"""
removed: {description: Ids of the runs that are gone., type: list, elements: str, returned: success}
freed: {description: Freed bytes., type: int, returned: success}
problems: {description: "What was left, and why.", type: list, elements: str, returned: success}
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


def prune(given, run, write):
    """Remove runs, and return the module's result. See RETURN."""
    base = os.path.join(os.path.expanduser("~"), os.path.expanduser(given["folder"]))
    folder = os.path.join(base, "runs")
    if not write:
        return {"changed": bool(given["names"]), "removed": [], "freed": 0, "problems": []}
    # no start may come between the look and the removal
    with attempt_dir.lock_node(base):
        found = prune_scan.remove_runs(
            folder,
            given["names"],
            lambda name: prune_scan.describe_node_run(base, name, {}),
            lambda: prune_scan.find_held(run),
        )
    return dict(printable_data(found), changed=bool(found["removed"]))


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "str", "default": ".trainyard"},
            "names": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )

    run = command_runner(module)
    given = module.params
    try:
        module.exit_json(**prune(given, run, not module.check_mode))
    except (attempt_dir.AttemptError, OSError, ValueError) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
