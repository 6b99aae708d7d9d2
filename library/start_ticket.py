#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The ticket of a start that waits for a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: start_ticket
short_description: Wait in order for nodes that are held
description:
  - On a node, one look renews or removes the ticket of a start that waits, and returns the attempts
    that hold the node and the living tickets in their order.
  - The action plugin looks at all nodes of the play again and again, until each of them is free and
    no ticket comes before this start's. It names what holds the nodes, and its place. With check mode
    it looks once and says whether it would wait.
options:
  run_id: {description: The run that is to start., type: str, required: true}
  wait:
    description: "The longest wait, as C(90s), C(30m), C(2h) or C(1d); C(yes) for no limit, C(no) for no wait. The action plugin reads it."
    type: raw
    default: "yes"
  nodes: {description: The names of all nodes that the start wants. The action plugin reads it., type: list, elements: str, default: []}
  poll: {description: Seconds between two looks. The action plugin reads it., type: float, default: 5}
  by: {description: "Origin of the start: user@controller.", type: str, default: ""}
  base: {description: "The product's directory on the node; relative paths start at the user's home.", type: str, default: .trainyard}
  state: {description: The action on the ticket. The action plugin sets it., type: str, choices: [present, turn, absent], default: present}
  token: {description: What tells this start from others of the run. The action plugin sets it., type: str, default: ""}
  since: {description: The time of the ticket; 0 draws it by the node's clock. The action plugin sets it., type: float, default: 0}
attributes:
  check_mode: {support: full, description: Looks and changes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Wait until the nodes are free
  start_ticket:
    run_id: 20261120-103501-ppyoloe-1f2e
    nodes: "{{ ansible_play_hosts_all }}"
    wait: 2h
"""

RETURN = r"""
held: {description: "The attempts that hold the node, as M(node_owner_info) returns them.", type: list, elements: dict, returned: success}
tickets:
  description: "The living tickets on the node in their order: id, run, by, since and turn."
  type: list
  elements: dict
  returned: success
since: {description: The time of this start's ticket (unix seconds)., type: float, returned: success}
waited: {description: "Seconds of the wait, from the action plugin.", type: float, returned: success}
end: {description: "The end of the wait: go, check, no_answer or timed_out, from the action plugin.", type: str, returned: success}
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    ownership,
    tickets,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import command_runner


def look(module, run_command, given):
    """Renew or remove the ticket, and return the module's result."""
    base = os.path.join(os.path.expanduser("~"), given["base"])
    folder = tickets.folder_of(base)
    ticket_id = f"{given['run_id']}-{given['token']}"
    since = given["since"] or time.time()
    if given["state"] == "absent":
        if not module.check_mode:
            tickets.remove(folder, ticket_id, tickets.clock())
        return {"changed": False, "held": [], "tickets": [], "since": since}
    # A node whose own systemd does not answer gets no ticket.
    held = ownership.list_owners(run_command, base)
    if not module.check_mode:
        turn = given["state"] == "turn"
        ticket = {"id": ticket_id, "by": given["by"], "since": since, "turn": turn}
        tickets.renew(folder, ticket, tickets.clock())
    living = tickets.list_living(folder, change=not module.check_mode)
    return {"changed": False, "held": held, "tickets": living[: tickets.MOST], "since": since}


def main():
    module = AnsibleModule(
        argument_spec={
            "run_id": {"type": "str", "required": True},
            "wait": {"type": "raw", "default": "yes"},
            "nodes": {"type": "list", "elements": "str", "default": []},
            "poll": {"type": "float", "default": 5},
            "by": {"type": "str", "default": ""},
            "base": {"type": "str", "default": ".trainyard"},
            "state": {
                "type": "str",
                "choices": ["present", "turn", "absent"],
                "default": "present",
            },
            # not a secret
            "token": {"type": "str", "default": "", "no_log": False},
            "since": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**look(module, command_runner(module), module.params))
    except (attempt_dir.AttemptError, OSError) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
