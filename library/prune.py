#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe the runs of a place, or remove some of them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prune
short_description: Describe the runs of a place, or remove some of them
description:
  - C(looked) describes the runs of this place. C(removed) looks once more, and removes the runs of O(names).
  - What runs or is held stays, and so does what is not understood from top to bottom. M(prune_choice) applies the rule.
options:
  state: {description: What is done., type: str, choices: [looked, removed], required: true}
  folder:
    description: "At home: the directory of runs. On a node: the product's directory; relative paths start at the user's home."
    type: str
    default: .trainyard
  home: {description: Whether the place is the controller's., type: bool, default: false}
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

import contextlib
import functools
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import (
    prune_scan,
)


def at_place(given, run, write):
    """Return the result of a state."""
    base = os.path.join(os.path.expanduser("~"), os.path.expanduser(given["folder"]))
    folder = base if given["home"] else os.path.join(base, "runs")
    describe = functools.partial(prune_scan.at_home if given["home"] else prune_scan.on_node, base)

    def held():
        return prune_scan.held_at_home(base) if given["home"] else prune_scan.held_here(run)

    if given["state"] == "looked":
        running = held()
        return {
            "changed": False,
            "look": printable_data(prune_scan.look(folder, lambda name: describe(name, running))),
        }
    if not write:
        return {"changed": bool(given["names"]), "removed": [], "freed": 0, "problems": []}
    # on a node no start may come between the look and the removal
    with contextlib.nullcontext() if given["home"] else attempt_dir.hold(base):
        found = prune_scan.remove(folder, given["names"], lambda name: describe(name, {}), held)
    return dict(printable_data(found), changed=bool(found["removed"]))


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["looked", "removed"], "required": True},
            "folder": {"type": "str", "default": ".trainyard"},
            "home": {"type": "bool", "default": False},
            "names": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )

    def run(argv):
        return module.run_command(
            argv,
            environ_update=dict(attempt_dir.user_environment(os.getuid()), LANG="C", LC_ALL="C"),
        )

    given = module.params
    try:
        module.exit_json(**at_place(given, run, not module.check_mode))
    except (attempt_dir.AttemptError, OSError, ValueError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
