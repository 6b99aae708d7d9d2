#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: python_environment_info
short_description: Return a node's Python and the environments that are complete on it
description:
  - Reads only. It runs the interpreter once and reads the markers under C(<home>/env); no package
    is imported.
  - An environment whose installed packages differ from its marker (another version was installed),
    or whose files were changed, does not count as complete.
version_added: "0.1.0"
author: Trainyard
options:
  home:
    description: The product directory on the node; relative to the user's home unless absolute.
    type: str
    required: true
  interpreter:
    description: The Python that environments are built from.
    type: str
    default: /usr/bin/python3
  verify:
    description: How files are compared with their installation; V(cached) reads those that changed
      since, V(full) all.
    type: str
    choices: [cached, sample, full]
    default: cached
notes:
  - Supports check mode, in which it does the same.
"""

EXAMPLES = r"""
- name: See which environments the node has
  python_environment_info:
    home: .trainyard
  register: node

- name: Show the Python to train with
  ansible.builtin.debug:
    msg: "{{ node.environments['6a0c1f1b7d2e9c44'].interpreter }}"
"""

RETURN = r"""
home:
  description: Absolute path of the product directory.
  type: str
  returned: success
python:
  description: Version of the interpreter, major and minor.
  type: str
  returned: success
  sample: "3.11"
machine:
  description: Architecture.
  type: str
  returned: success
  sample: x86_64
libc:
  description: Version of the GNU C library; empty without one.
  type: str
  returned: success
  sample: "2.36"
free_bytes:
  description: Bytes free where the product directory is or will be.
  type: int
  returned: success
environments:
  description: Digest to marker of every complete, unchanged environment.
  type: dict
  returned: success
unusable:
  description: Digest to reason of every other environment.
  type: dict
  returned: success
"""

import os
import shutil
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)


def product_directory(home):
    """Return the absolute product directory: relative names start from the user's home."""
    return os.path.normpath(os.path.join(os.path.expanduser("~"), os.path.expanduser(home)))


def existing_parent(path):
    """Return path, or its nearest parent that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def look(home, interpreter, verify="cached"):
    """Return what the module returns, without Ansible."""
    directory = os.path.join(home, "env")
    names = [
        name
        for name in (os.listdir(directory) if os.path.isdir(directory) else [])
        if core.DIGEST.fullmatch(name)
    ]
    found = {name: core.inspect_environment(home, name, verify) for name in sorted(names)}
    return {
        "home": home,
        "free_bytes": shutil.disk_usage(existing_parent(home)).free,
        "environments": {
            name: each["marker"] for name, each in found.items() if each["state"] == "ready"
        },
        "unusable": {
            name: f"{each['state']}: {each['why']}"
            for name, each in found.items()
            if each["state"] != "ready"
        },
        **core.node_python(interpreter),
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "str", "required": True},
            "interpreter": {"type": "str", "default": "/usr/bin/python3"},
            "verify": {"type": "str", "choices": ["cached", "sample", "full"], "default": "cached"},
        },
        supports_check_mode=True,
    )
    interpreter = module.params["interpreter"]
    try:
        module.exit_json(
            changed=False,
            **look(product_directory(module.params["home"]), interpreter, module.params["verify"]),
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        module.fail_json(
            msg=(
                f"{interpreter} cannot be run here ({error}); install it, or set"
                " runtime_interpreter for this node"
            )
        )


if __name__ == "__main__":
    main()
