#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_mesh_check
short_description: Log in from a node to all its peers and check that the right one answers
description:
  - Logs in over the mesh (C(ssh -F)) to every other node, several at a time, and runs a command
    there. The answer, machine id and host name, must be that of the machine which the controller
    knows under this name, so a login that ends on another machine is a failure too.
  - Needs no root. A node with a login that fails loses its recorded proof, so that the next run
    proves anew; nothing else is written.
version_added: "0.1.0"
author: Trainyard
options:
  node:
    description: Inventory name of the node it runs on.
    type: str
    required: true
  identities:
    description: RV(ssh_mesh_config#module:identities), every node's name and what its answer is
      compared with.
    type: dict
    required: true
  nodes:
    description: Inventory names of all nodes in the order of the ranks. Each node starts with its
      successor, so that they spread.
    type: list
    elements: str
    required: true
  directory:
    description: The mesh's directory, relative to the user's home directory or absolute.
    type: str
    default: .trainyard/mesh
  timeout:
    description: Seconds that one login with its command may take.
    type: int
    default: 15
  parallel:
    description: The number of logins at once.
    type: int
    default: 8
notes:
  - A failed login does not fail the module. All nodes' failures are shown together by the role.
  - Causes are read from what OpenSSH's client prints (tried with 9.2); where that is the same for
    several causes, as with a certificate that is refused, the node's own key and certificate are
    looked at.
"""

EXAMPLES = r"""
- name: Log in from every node to every other node
  ssh_mesh_check:
    node: "{{ inventory_hostname }}"
    nodes: "{{ mesh.nodes }}"
    identities: "{{ mesh.identities }}"
  register: proof
"""

RETURN = r"""
failures:
  description: One entry for each peer that could not be reached as itself; empty when all could.
  returned: success
  type: list
  elements: dict
  contains:
    from:
      description: The node that tried.
      type: str
    to:
      description: The node it tried to reach.
      type: str
    cause:
      description: Why it failed.
      type: str
    remedy:
      description: What to do.
      type: str
  sample:
    - from: node1
      to: node2
      cause: nothing listens on its SSH port
      remedy: start sshd there, open the port in its firewall, or set ssh_trust_port
texts:
  description: The same as text, one line a pair.
  returned: success
  type: list
  elements: str
logins:
  description: How many peers were tried.
  returned: success
  type: int
seconds:
  description: How long it took.
  returned: success
  type: float
"""

import os
import pwd
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import (
    login_check,
    primitives,
    store,
)

SPEC = {
    "node": {"type": "str", "required": True},
    "nodes": {"type": "list", "elements": "str", "required": True},
    "identities": {"type": "dict", "required": True},
    "directory": {"type": "str", "default": primitives.DIRECTORY},
    "timeout": {"type": "int", "default": 15},
    "parallel": {"type": "int", "default": 8},
}


def main():
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    given = module.params
    home = pwd.getpwuid(os.geteuid()).pw_dir
    place = os.path.join(home, given["directory"])
    peers = [{"name": name, "identity": given["identities"].get(name)} for name in given["nodes"]]
    started = time.time()
    failures = login_check.log_in_everywhere(
        given["node"],
        peers,
        lambda peer: commands.run_program(
            login_check.login_argv(os.path.join(place, "config"), peer), given["timeout"]
        ),
        given["parallel"],
        login_check.own_fault(place, started),
    )
    module.exit_json(
        changed=bool(failures)
        and not module.check_mode
        and store.withdraw(home, given["directory"]),
        failures=failures,
        texts=[
            "{from} -> {to}: {cause}; remedy: {remedy}".format(**failure) for failure in failures
        ],
        logins=sum(name != given["node"] for name in given["nodes"]),
        seconds=round(time.time() - started, 3),
    )


if __name__ == "__main__":
    main()
