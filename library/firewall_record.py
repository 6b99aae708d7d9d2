#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: firewall_record
short_description: Read or write the record of peers that a node's firewall lets in
description:
  - Runs as root. The record is C(/var/lib/trainyard/<site>/firewall.json), which only root can
    write, so an undo can obey it.
  - It is refused where others could write to it, or where a value is not one of the three tools, an
    IPv4 address or network, or a zone's name.
version_added: "0.1.0"
author: Trainyard
options:
  site:
    description: Name of the site.
    type: str
    required: true
  state:
    description: V(read) only reads; V(present) writes what is given; V(absent) removes the record.
    type: str
    choices: [read, present, absent]
    default: read
  tool:
    description: The firewall's tool (O(state=present) only).
    type: str
    choices: [firewalld, ufw, iptables]
  peers:
    description: Addresses and networks that are let in (O(state=present) only).
    type: list
    elements: str
    default: []
  zone:
    description: Zone of firewalld, empty for its default (O(state=present) only).
    type: str
    default: ""
notes:
  - Supports check mode.
"""

EXAMPLES = r"""
- name: Read the sources that were let in before
  firewall_record:
    site: mysite
  become: true
  register: record
"""

RETURN = r"""
record:
  description: The record as it was found, with the keys V(tool), V(peers), V(zone); V(null) where
    there was none.
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import root_records


def main():
    module = AnsibleModule(
        argument_spec={
            "site": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["read", "present", "absent"], "default": "read"},
            "tool": {"type": "str", "choices": list(root_records.TOOLS)},
            "peers": {"type": "list", "elements": "str", "default": []},
            "zone": {"type": "str", "default": ""},
        },
        required_if=[("state", "present", ("tool",))],
        supports_check_mode=True,
    )
    given = module.params
    wanted = {name: given[name] for name in ("tool", "peers", "zone")}
    try:
        records = root_records.Records(given["site"])
        found = records.read("firewall")
        changed = {"read": False, "absent": found is not None, "present": found != wanted}[
            given["state"]
        ]
        said = root_records.firewall_problem(wanted) if given["state"] == "present" else None
        if said:
            module.fail_json(msg=said)
        if changed and not module.check_mode:
            if given["state"] == "present":
                records.write("firewall", wanted)
            else:
                records.remove("firewall")
    except (root_records.RecordError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, record=found)


if __name__ == "__main__":
    main()
