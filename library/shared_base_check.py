#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Refuse nodes that share one product directory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_base_check
short_description: Refuse nodes that share one product directory
description:
  - Fails where two nodes have one product directory, since each would write over the other's runs, environments and trees.
  - Runs on the controller and changes nothing.
options:
  facts: {description: "{node: what M(placement) returned there with C(state=base)}.", type: dict, required: true}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Stop where two nodes have one product directory
  shared_base_check:
    facts: {node1: "{{ hostvars.node1.preflight_base.found }}"}
"""

RETURN = "{}"

from ansible.module_utils.basic import AnsibleModule


def main():
    AnsibleModule(
        argument_spec={
            "facts": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    ).fail_json(
        msg=(
            "shared_base_check is an action plugin; plugins/action is missing from action_plugins in"
            " ansible.cfg"
        )
    )


if __name__ == "__main__":
    main()
