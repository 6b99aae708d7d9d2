#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Make or check a rank table."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hccl_rank_table
short_description: Make or check the rank table of a training on Ascend
description:
  - Makes the table from what the nodes say of their devices, merged in the order in which they are
    given, or checks one that a user brings. With both, the user's table must also be that of the
    nodes.
  - Fails with every problem at once. Writes nothing unless O(dest) is given.
  - The rules are those of upstream's tools; none of this has run on Ascend hardware.
options:
  nodes:
    description: The nodes in the order of the ranks.
    type: list
    elements: dict
    options:
      name:
        description: What the messages call it.
        type: str
        required: true
      server_id:
        description: The node's address on the fabric.
        type: str
        required: true
      devices:
        description: Ids of the devices that take part, 0 to 7, in rising order.
        type: list
        elements: str
        required: true
      device_ips:
        description: Address of each device, by id, as RV(node_info#module:facts) holds it.
        type: dict
        required: true
  path:
    description: A user's rank table to check.
    type: path
  dest:
    description: Where to write the table, mode 0600; in a directory it gets the name that
      upstream's tools give it.
    type: path
attributes:
  check_mode:
    support: full
    description: Says what would be written.
  diff_mode:
    support: full
    description: Shows the file before and after.
author: Trainyard
"""

EXAMPLES = r"""
- name: Merge the tables of two nodes
  hccl_rank_table:
    nodes:
      - name: node1
        server_id: "10.0.0.1"
        devices: ["0", "1"]
        device_ips: {"0": "192.168.100.101", "1": "192.168.101.101"}
      - name: node2
        server_id: "10.0.0.2"
        devices: ["0", "1"]
        device_ips: {"0": "192.168.100.102", "1": "192.168.101.102"}
    dest: .

- name: Check a table that was made by hand
  hccl_rank_table:
    path: hccl_8p_01234567_127.0.0.1.json
"""

RETURN = r"""
table:
  description: The table.
  type: dict
  returned: success
text:
  description: The table as its file holds it, as upstream's tools write it.
  type: str
  returned: success
file_name:
  description: The name that upstream's tools give it.
  type: str
  returned: success
advice:
  description: What to know of this table though nothing is wrong with it.
  type: list
  elements: str
  returned: success
dest:
  description: The file that was written.
  type: str
  returned: when O(dest) is given
"""

import os
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import replace_file
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import rank_table

NODE = {
    "name": {"type": "str", "required": True},
    "server_id": {"type": "str", "required": True},
    "devices": {"type": "list", "elements": "str", "required": True},
    "device_ips": {"type": "dict", "required": True},
}
MAX_BYTES = 1 << 24  # 4096 ranks, as many as HCCL takes, are half a megabyte


def read_text(path):
    """Return a file's text, '' without the file."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as handle:
        return handle.read(MAX_BYTES)


def checked(path, expected):
    """Return the table of a user's file.

    Raises RankTableError. expected: the nodes' own table, or None.
    """
    with open(path, encoding="utf-8") as handle:
        table = rank_table.parse(handle.read(MAX_BYTES))
    problems = rank_table.validate(table) or (
        rank_table.differences(table, expected) if expected else []
    )
    if problems:
        raise rank_table.RankTableError([f"{path}: {problem}" for problem in problems])
    return table


def place(table, dest):
    """Return the file that dest means."""
    return os.path.join(dest, rank_table.file_name(table)) if os.path.isdir(dest) else dest


def write(path, content, check):
    """Bring a file to content and mode 0600, whole or not at all. Return (changed, diff)."""
    before = read_text(path)
    if before == content and stat.S_IMODE(os.stat(path).st_mode) == 0o600:
        return False, {}
    if not check:
        replace_file(path, content)
    return True, {"before": before, "after": content, "before_header": path, "after_header": path}


def main():
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "dict", "options": NODE},
            "path": {"type": "path"},
            "dest": {"type": "path"},
        },
        required_one_of=[["nodes", "path"]],
        supports_check_mode=True,
    )
    given, result = plain(module.params), {"changed": False}
    try:
        table = rank_table.compile_table(given["nodes"]) if given["nodes"] is not None else None
        table = checked(given["path"], table) if given["path"] else table
        content = rank_table.text(table)
        if given["dest"]:
            result["dest"] = place(table, given["dest"])
            result["changed"], result["diff"] = write(result["dest"], content, module.check_mode)
    except rank_table.RankTableError as error:
        module.fail_json(
            msg="This is no rank table:\n{}".format(
                "\n".join("  " + problem for problem in error.problems)
            )
        )
    except (OSError, UnicodeDecodeError) as error:
        module.fail_json(msg=str(error))
    advice = rank_table.advice(table)
    for sentence in advice:
        module.warn(sentence)
    module.exit_json(
        table=table, text=content, file_name=rank_table.file_name(table), advice=advice, **result
    )


if __name__ == "__main__":
    main()
