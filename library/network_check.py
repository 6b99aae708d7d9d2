#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Prove the network from one node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: network_check
short_description: Listen where the ranks will listen, and connect as they will
description:
  - C(listening) starts a listener as a transient unit of the training user's own systemd
    (C(yardcheck-<id>.service)) on the node's fabric address, on the ports of the plan and on ports
    of the ephemeral range. It ends automatically when all expected peers came, when it is closed,
    and after O(seconds) whatever happens. It waits for another check's listener to end; one that
    had no caller for 15 s is ended, and its check finds C(rival).
  - C(connected) connects from the fabric address to the listeners of the peers and measures what
    the links carry.
  - C(closed) ends the listener.
  - C(tested) does all of it in turn, together with the other nodes of the play. The action plugin
    does it, with a worker for each of them at once. Where Ansible holds a plain SSH connection to
    the node, one program on it answers for all states.
  - Nothing is judged on the node; see the module proof.
options:
  state:
    description: The action to take.
    type: str
    choices: [listening, connected, closed, tested]
    required: true
  id:
    description: "The check's name: letters and digits."
    type: str
    required: true
  node:
    description: This node's name.
    type: str
    required: true
  nodes:
    description: All nodes' names in the order of the ranks.
    type: list
    elements: str
    default: []
  together:
    description: The nodes that are tested in this task (C(tested) only). The action plugin reads it.
    type: list
    elements: str
    default: []
  address:
    description: This node's fabric address.
    type: str
    default: ""
  interface:
    description: The interface that holds it.
    type: str
    default: ""
  ports:
    description: Ports of the plan that are listened on; C(connected) tries no others of them.
    type: list
    elements: int
    default: []
  matrix:
    description: Whether all pairs are tried.
    type: bool
    default: false
  depth:
    description: "quick: whether the ports are reached; full: bandwidth and path MTU, too."
    type: str
    choices: [quick, full]
    default: full
  book:
    description: Node name to what C(listening) returned there (C(connected) only).
    type: dict
    default: {}
  seconds:
    description: The longest life of the listener.
    type: int
    default: 60
  agent:
    description: "The archive agent.pyz with the listener, as base64. The action plugin adds it (C(listening) only)."
    type: str
attributes:
  check_mode:
    support: full
    description: Nothing is opened and nothing tried.
author: Trainyard
"""

EXAMPLES = r"""
- name: Open the ports that the ranks will take
  network_check:
    state: listening
    id: 5f2a9c01
    node: node1
    nodes: [node1, node2]
    address: 198.51.100.11
    interface: eth0
    ports: [17000]
  register: listening
"""

RETURN = r"""
listening:
  description: "What listens: node, address, planned, ephemeral, udp, range, failed (port to
    reason); none with rival."
  type: dict
  returned: listening and connected
interface:
  description: name and mtu.
  type: dict
  returned: listening
hcas:
  description: Name, port, state and rate of RDMA devices.
  type: list
  elements: dict
  returned: listening
reached:
  description: Node name to ports.
  type: dict
  returned: connected
unreached:
  description: to, port, why, text of every connection that failed.
  type: list
  elements: dict
  returned: connected
edges:
  description: Node name to rtt and offset (seconds), path_mtu (bytes), gbits, together (how many
    nodes sent at once).
  type: dict
  returned: connected
rival:
  description: "Another check that was met, or that has ended this one's listener: id, seconds (how
    long it has been there); else none."
  type: dict
  returned: success
ended_by:
  description: The rival that had ended the listener, or none; missing where every connection arrived.
  type: dict
  returned: tested, from the action plugin
closed:
  description: "The listener's answer: came (node to the address it came from), missed; none where
    it had ended."
  type: dict
  returned: closed
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.base.interpreter import (
    InterpreterError,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.network import node_check


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["listening", "connected", "closed", "tested"],
                "required": True,
            },
            "together": {"type": "list", "elements": "str", "default": []},
            "id": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "str", "default": []},
            "address": {"type": "str", "default": ""},
            "interface": {"type": "str", "default": ""},
            "ports": {"type": "list", "elements": "int", "default": []},
            "matrix": {"type": "bool", "default": False},
            "depth": {"type": "str", "choices": ["quick", "full"], "default": "full"},
            "book": {"type": "dict", "default": {}},
            "seconds": {"type": "int", "default": 60},
            # not secret: the answer would repeat it
            "agent": {"type": "str", "no_log": True},
        },
        required_if=[("state", "listening", ("agent",))],
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, skipped=True)
    environment = commands.user_environment(os.getuid())
    run = commands.command_runner(module)
    if module.params["state"] == "tested":
        module.fail_json(msg="only the action plugin of this module does all of its states in turn")
    try:
        result = node_check.STATES[module.params["state"]](
            run, environment["XDG_RUNTIME_DIR"], module.params
        )
    except (node_check.ProofError, InterpreterError, OSError, ValueError) as error:
        module.fail_json(msg=printable(str(error) or type(error).__name__, newlines=True))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
