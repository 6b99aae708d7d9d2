#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe the runs of a node, or remove some of them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prune
short_description: Describe the runs of a node, or remove some of them
description:
  - C(looked) describes the runs of this node. C(removed) looks once more, and removes the runs of O(names).
  - What runs or is held stays, and so does what is not understood from top to bottom. M(prune_choice) applies the rule.
  - M(prune_controller) does the same on the controller.
options:
  state: {description: What is done., type: str, choices: [looked, removed], required: true}
  folder: {description: "The product's directory; relative paths start at the user's home.", type: str, default: .trainyard}
  names: {description: Runs to remove here (C(removed) only)., type: list, elements: str, default: []}
attributes:
  check_mode: {support: full, description: Removes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Look at the node's runs
  prune:
    state: looked
  register: looked

- name: Remove what may go
  prune:
    state: removed
    names: "{{ chosen.remove[inventory_hostname] | default([]) }}"
"""

RETURN = r"""
look: {description: "runs, strange, unfinished, bytes; see plugins/module_utils/runs/prune_scan.py.", type: dict, returned: looked}
removed: {description: Runs that are gone., type: list, elements: str, returned: removed}
freed: {description: Bytes., type: int, returned: removed}
problems: {description: What was left, and why., type: list, elements: str, returned: removed}
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


def on_node(given, run, write):
    """Return the result of a state."""
    base = os.path.join(os.path.expanduser("~"), os.path.expanduser(given["folder"]))
    folder = os.path.join(base, "runs")
    if given["state"] == "looked":
        running = prune_scan.find_held(run)
        found = prune_scan.scan_runs(
            folder, lambda name: prune_scan.describe_node_run(base, name, running)
        )
        return {"changed": False, "look": printable_data(found)}
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
            "state": {"type": "str", "choices": ["looked", "removed"], "required": True},
            "folder": {"type": "str", "default": ".trainyard"},
            "names": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )

    run = command_runner(module)
    given = module.params
    try:
        module.exit_json(**on_node(given, run, not module.check_mode))
    except (attempt_dir.AttemptError, OSError, ValueError) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
