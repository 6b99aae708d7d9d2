#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: training_account
short_description: Give a training account its own systemd with its limits, or take that back
description:
  - Runs as root. It writes two drop-ins for the account's user manager, whose paths follow from the
    uid alone, and switches lingering on.
  - The uid comes from the system's database of accounts. Nothing that the account itself can write
    is read, followed or obeyed.
  - What was changed stands in C(/var/lib/trainyard/<site>/accounts.json), which only root can
    write. The undo obeys that record.
version_added: "0.1.0"
author: Trainyard
options:
  name:
    description: Name of the account, from the inventory.
    type: str
    required: true
  site:
    description: Name of the site; the record carries it.
    type: str
    required: true
  state:
    description: The wanted state of the account's drop-ins and lingering.
    type: str
    choices: [present, absent]
    default: present
  memlock:
    description: Wanted locked memory in bytes, or V(infinity).
    type: str
    default: infinity
  nofile:
    description: Wanted number of open files, or V(infinity).
    type: str
    default: "1048576"
  lowest_uid:
    description: The lowest uid that a training account may have.
    type: int
    default: 1000
  lingering_was_off:
    description: Whether an earlier version noted in the account's home that lingering was off
      before (O(state=absent) only).
    type: bool
    default: false
notes:
  - Supports check mode.
"""

EXAMPLES = r"""
- name: Give the training account its own systemd
  training_account:
    name: trainer
    site: mysite
  become: true
"""

RETURN = r"""
uid:
  description: Number of the account; V(null) where an undo finds no such account.
  type: int
  returned: success
changes:
  description: What was changed. Paths of drop-ins, V(record), V(lingering).
  type: list
  elements: str
  returned: success
may_sudo:
  description: Whether the account may use sudo; V(null) where that is unknown.
  type: bool
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    root_records,
    training_account,
    user_manager,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "site": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "memlock": {"type": "str", "default": "infinity"},
            "nofile": {"type": "str", "default": "1048576"},
            "lowest_uid": {"type": "int", "default": user_manager.LOWEST_UID},
            "lingering_was_off": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    for name in user_manager.LIMITS:
        if not user_manager.LIMIT.match(given[name]):
            module.fail_json(msg=f"{name}: want a number or infinity; got {given[name]!r}")
    if os.geteuid() != 0:
        module.fail_json(msg="this part needs root")
    absent = given["state"] == "absent"
    try:
        records = root_records.Records(given["site"])
        try:
            uid = training_account.look_up(given["name"], given["lowest_uid"])
        except training_account.AccountError:
            if not absent or not user_manager.ACCOUNT.match(given["name"]):
                raise
            uid = None  # the account is gone, and the record says what it had
        account = training_account.Account(given["name"], uid, records, module.check_mode)
        if absent:
            account.absent(given["lingering_was_off"])
        else:
            account.present({name: given[name] for name in user_manager.LIMITS})
        may_sudo = None if absent else account.may_sudo()
    except (training_account.AccountError, root_records.RecordError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(account.changes), uid=uid, changes=account.changes, may_sudo=may_sudo
    )


if __name__ == "__main__":
    main()
