#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_mesh_node
short_description: Describe a node to the mesh, and record that the mesh was proven
description:
  - Reads, as the training user and without root, what its peers must know of a node. That is its
    user, host public keys, machine id and address, whether its home directory lies on a network
    file system, and the state of the mesh that lies there.
  - With O(record) it also writes C(mesh.json), the node's record of a mesh that was proven. It
    writes nothing else.
version_added: "0.1.0"
author: Trainyard
options:
  name:
    description: The node's inventory name.
    type: str
    required: true
  host:
    description: The node's C(ansible_host). Empty means O(name).
    type: str
    default: ""
  port:
    description: The node's C(ansible_port).
    type: int
    default: 22
  address:
    description:
      - IP address at which the peers reach the node, or a network of which it holds exactly one
        address.
      - Empty means the address at which the controller's own connection arrived, as the node sees
        it. That holds behind a jump host too.
    type: str
    default: ""
  ssh_port:
    description: Port at which the peers reach the node's sshd. 0 means the one at which the
      controller's own connection arrived.
    type: int
    default: 0
  directory:
    description: The mesh's directory, relative to the user's home directory or absolute.
    type: str
    default: .trainyard/mesh
  host_keys:
    description: Patterns of the files that hold the host public keys of sshd.
    type: list
    elements: str
    default: [/etc/ssh/ssh_host_*_key.pub]
  network_filesystems:
    description: Types of file systems that several nodes may have mounted at once, as in
      C(/proc/self/mountinfo).
    type: list
    elements: str
    default: []
  site:
    description: Name of the site whose lines in authorized_keys are described in RV(held). Empty
      for none.
    type: str
    default: ""
  record:
    description:
      - What M(ssh_mesh_config) returned, for a mesh whose every ordered pair of nodes was proven
        since. Written with the present time, by which alone the node does not count as changed.
    type: dict
    suboptions:
      site:
        description: Name of the site.
        type: str
        required: true
      nodes:
        description: Inventory names in the order of the ranks.
        type: list
        elements: str
        required: true
      digest:
        description: Digest of the mesh.
        type: str
        required: true
      inventory:
        description: Digest of the inventory's lines.
        type: str
        required: true
      authority:
        description: C(fingerprint), C(by) and C(since) of the authority, as M(mesh_authority)
          returned them.
        type: dict
        required: true
      carried:
        description: Whether an earlier line of the site stays until nothing runs on the node.
        type: bool
        default: false
notes:
  - Nothing here fails because a node is unfit. What is wrong comes back in RV(node.problems), so
    that it is shown for all nodes at once.
"""

EXAMPLES = r"""
- name: Ask every node what its peers must know of it
  ssh_mesh_node:
    name: "{{ inventory_hostname }}"
    host: "{{ ansible_host }}"
  register: ssh_mesh_node

- name: Show when the mesh of a node was last proven
  ansible.builtin.debug:
    msg: "{{ ssh_mesh_node.state.proven }}"
"""

RETURN = r"""
node:
  description: What the peers must know of this node.
  returned: success
  type: dict
  contains:
    name:
      description: Inventory name.
      type: str
    user:
      description: The training user.
      type: str
    address:
      description: Address at which the peers reach it.
      type: str
    port:
      description: Port of its sshd for the peers.
      type: int
    host:
      description: The inventory's C(ansible_host).
      type: str
    addresses:
      description: Its management address as the node itself sees it.
      type: list
      elements: str
    host_keys:
      description: Its host public keys, type and base64, sorted.
      type: list
      elements: str
    identity:
      description: SHA-256 of its machine id and host name; empty where it has no machine id.
      type: str
    home:
      description: An id that is equal on all nodes that share this home directory; empty for a
        local one.
      type: str
    site:
      description: Name of the site whose mesh lies here, empty if none.
      type: str
    inventory:
      description: Name, host, port and address as the inventory has them.
      type: list
      elements: raw
    problems:
      description: Why this node cannot take part, in words with the remedy.
      type: list
      elements: str
state:
  description:
    - The mesh that lies here. C(present), C(site), C(digest), C(inventory), C(nodes),
      C(valid_until) and C(proven) in unix seconds, and C(stale), the names of what differs from
      what was proven. C(proven) is null where anything is stale. C(authority) has C(fingerprint),
      C(by) and C(since). C(carried) is true while an earlier line stays.
  returned: success
  type: dict
held:
  description:
    - The lines of O(site) in authorized_keys. C(count), C(authorities) (fingerprints), C(open) (one
      of them gives a shell) and C(busy) (an attempt runs on the node, or its systemd does not
      answer).
  returned: with O(site)
  type: dict
found:
  description: What an installation has to know of the user's home directory.
  returned: success
  type: dict
  contains:
    ssh_directory:
      description: Whether the user has a C(.ssh) directory.
      type: bool
    mesh_directory:
      description: Whether the mesh's directory exists and only its owner can enter it.
      type: bool
    replace_key:
      description: Whether the node's key must be made anew, because others may have read it or
        because it was made on another node.
      type: bool
    authorized_keys_mode:
      description: Mode of the user's authorized_keys, V(0600) where the file is missing yet.
      type: str
"""

import os
import pwd
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import (
    node_description,
    primitives,
    store,
)

SPEC = {
    "name": {"type": "str", "required": True},
    "host": {"type": "str", "default": ""},
    "port": {"type": "int", "default": 22},
    "address": {"type": "str", "default": ""},
    "ssh_port": {"type": "int", "default": 0},
    "directory": {"type": "str", "default": primitives.DIRECTORY},
    "host_keys": {
        "type": "list",
        "elements": "str",
        "default": list(primitives.HOST_KEYS),
        "no_log": False,
    },
    "network_filesystems": {"type": "list", "elements": "str", "default": []},
    "site": {"type": "str", "default": ""},
    "record": {
        "type": "dict",
        "options": {
            "site": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "inventory": {"type": "str", "required": True},
            "authority": {"type": "dict", "required": True},
            "carried": {"type": "bool", "default": False},
        },
    },
}


def mode_of(path):
    """Return the mode of a file in octal digits, 0600 where it does not exist."""
    return "%04o" % (os.stat(path).st_mode & 0o7777) if os.path.exists(path) else "0600"


def is_private(path):
    """Return whether a directory exists that only its owner can enter."""
    return os.path.isdir(path) and os.stat(path).st_mode & 0o077 == 0


def lines_of(home, site, run_command):
    """Return the site's lines in authorized_keys, {} where no site is named."""
    if not site:
        return {}
    return store.held_lines(home, site, lambda: store.is_busy(run_command))


def files_of(home, place, name):
    """Return what is known of the mesh's files on this node."""
    return {
        "ssh_directory": os.path.isdir(os.path.join(home, ".ssh")),
        "mesh_directory": is_private(place),
        "replace_key": store.key_to_replace(place, name),
        "authorized_keys_mode": mode_of(os.path.join(home, ".ssh", "authorized_keys")),
    }


def main():
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    given = module.params
    home = pwd.getpwuid(os.geteuid()).pw_dir
    place = os.path.join(home, given["directory"])
    node = node_description.describe_node(
        given["name"],
        given["host"],
        given["port"],
        given["address"],
        given["ssh_port"],
        given["directory"],
        given["host_keys"],
        given["network_filesystems"],
        commands.run_program,
        os.environ,
    )
    node["problems"] += store.earlier_attempts(
        home, node["site"], given["directory"], commands.run_program
    )
    changed = False
    if given["record"]:
        writer = "" if node["home"] else node["identity"]
        record = store.new_record(
            home, given["record"], time.time(), given["directory"], given["host_keys"], writer
        )
        changed = store.differs(store.read_record(home, given["directory"]), record)
        if not module.check_mode:
            store.write_record(place, record)
    module.exit_json(
        changed=changed,
        node=node,
        state=store.mesh_state(home, time.time(), given["directory"]),
        held=lines_of(home, given["site"], module.run_command),
        found=files_of(home, place, given["name"]),
    )


if __name__ == "__main__":
    main()
