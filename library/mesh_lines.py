#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_lines
short_description: Set the site's own lines in a node's authorized_keys
description:
  - Runs on a node as the training user. The gate in the lines starts with the node's own Python 3.8
    or newer, C(/usr/bin/python3) or the one that executes this module. Writes the site's lines at the top of
    C(~/.ssh/authorized_keys), whole or not at all. The other bytes of the file stay as they are.
  - Earlier lines of the site, those of a former authority for instance, stay as long as O(old)
    says.
version_added: "0.1.0"
author: Trainyard
options:
  site:
    description: Name of the site.
    type: str
    required: true
  lines:
    description: The site's lines. Without it no line is added and no earlier one goes, but for what
      O(gone) says.
    type: list
    elements: str
  old:
    description: Whether earlier lines stay. V(idle) removes them when no attempt of this user runs
      on the node.
    type: str
    choices: [keep, idle, drop]
    default: keep
  gone:
    description:
      - Names of nodes that were taken back. Their lines go whatever runs, and so does an earlier
        line that does not tell the nodes apart.
    type: list
    elements: str
    default: []
  mode:
    description: Mode of a file that is not there yet.
    type: str
    default: "0600"
attributes:
  check_mode:
    support: full
    description: Writes nothing.
"""

EXAMPLES = r"""
- name: Remove the lines of a former authority where nothing runs
  mesh_lines:
    site: lab
    lines: ["{{ mesh.line }}"]
    old: idle
"""

RETURN = r"""
old:
  description: How many earlier lines of the site are in the file now.
  returned: success
  type: int
busy:
  description: Whether an attempt of this user runs on the node; also true where its systemd does
    not answer. False where it did not matter.
  returned: success
  type: bool
"""

import os
import pwd

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import interpreter
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import (
    authorized_keys,
    store,
)

SPEC = {
    "site": {"type": "str", "required": True},
    "lines": {"type": "list", "elements": "str"},
    "old": {"type": "str", "choices": ["keep", "idle", "drop"], "default": "keep"},
    "gone": {"type": "list", "elements": "str", "default": []},
    "mode": {"type": "str", "default": "0600"},
}


def main():
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    given = module.params
    path = os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".ssh", "authorized_keys")
    busy = given["old"] == "idle" and store.is_busy(module.run_command)
    keep, left = given["old"] == "keep" or busy, []
    lines = given["lines"]
    if lines:
        try:
            python = interpreter.shared_python(module.run_command)
        except interpreter.InterpreterError as error:
            module.fail_json(**describe_failure(error))
        lines = authorized_keys.name_interpreter(lines, python)

    def change(text):
        new, old = authorized_keys.arrange(text, given["site"], lines, keep, given["gone"])
        left[:] = [old]
        return new

    before, after = authorized_keys.rewrite(
        path, change, int(given["mode"], 8), not module.check_mode
    )
    module.exit_json(changed=before != after, old=left[0], busy=busy)


if __name__ == "__main__":
    main()
