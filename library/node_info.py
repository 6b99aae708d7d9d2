#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe one node, without changing it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_info
short_description: Describe a node and what it holds already
description:
  - One task per node that only reads. What differs from the plan is provisioned or synced
    afterwards, and nothing else (docs/design.md, "How data flows").
  - With O(credential) it makes the key pair of the attempt that is about to start, and removes
    those of attempts that have ended.
  - It keeps small notes about what it has read below O(base) (docs/runbooks/placement.md names
    them), so that a repeat reads less.
  - A tree is compared with its manifest by inode, size and times, and read again only where these
    have changed since it was synced.
options:
  base:
    description: The product's directory on the node; relative paths start at the user's home.
    type: str
    default: .trainyard
  trees:
    description: Trees the job needs, each with kind (code, data, weights, checkpoints) and digest.
    type: list
    elements: dict
    default: []
  peers:
    description: Addresses of the other nodes, to find the address this node's routes to them start
      from.
    type: list
    elements: str
    default: []
  accelerator:
    description: The node's accelerator in the inventory; of V(ascend) the devices' addresses are
      read.
    type: str
    default: cpu
  programs:
    description: Program to package that the job's launcher needs besides.
    type: dict
    default: {}
  python:
    description: The Python of the user's own that the suite's environment names; empty without one.
    type: str
    default: ""
  credential:
    description: The attempt for which a key pair is made on this node, with C(run), C(number) and
      C(node); empty, or a check, makes none.
    type: dict
    default: {}
  asked:
    description:
      - What the subjects of the check want to know beyond what a plan needs; empty asks for nothing
        more.
      - C(ports) (list of int) are tried by binding them, C(verify) (cached, sample or full) says
        how trees are compared with their manifests, C(places) name what lies on the node already
        (docs/design.md, 8), C(environments) the digests whose packages are listed.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Reads only.
author: Trainyard
"""

EXAMPLES = r"""
- name: Probe the node
  node_info:
    trees: [{kind: code, digest: 4f0c...}]
    peers: [198.51.100.12]
  register: probe
"""

RETURN = r"""
facts:
  description: "hostname, home, base, user, uid, python_version, machine, libc, cores, addresses
    ([{interface, address}]), route_source, resolves_to, missing (what provision.yml has to bring),
    units (runs that hold the node), environments ({digest: fingerprint}), trees ({kind/short: {ok,
    differences}}), mesh, run_key (public, for O(credential)), python_words (what a Python of the
    user's own has beside it, or null), device_ips ({device id: address}) and device_problems
    (Ascend), boot (changes with every boot), time and ended (this clock before and after, unix
    seconds), sent and received (the controller's before and after, from the action plugin); with
    asked, one key for each subject of the check (machines, devices, installed, orphans, placement,
    ports), see the module of that name (ports: sockets.py) in plugins/module_utils."
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import command_runner
from ansible_collections.trainyard.cluster.plugins.module_utils.base.interpreter import (
    InterpreterError,
    node_python,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import probe

ARGUMENTS = {
    "base": {"type": "str", "default": ".trainyard"},
    "trees": {"type": "list", "elements": "dict", "default": []},
    "peers": {"type": "list", "elements": "str", "default": []},
    "accelerator": {"type": "str", "default": "cpu"},
    "programs": {"type": "dict", "default": {}},
    "python": {"type": "str", "default": ""},
    "asked": {"type": "dict", "default": {}},
    "credential": {"type": "dict", "default": {}},
}


def main():
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        supports_check_mode=True,
    )

    run_command = command_runner(module, handle_exceptions=False)

    def run(argv):
        try:
            return run_command(argv)
        except OSError as error:
            # A bare node may lack any program. facts.missing names what provision.yml brings.
            return 127, "", str(error)

    given = module.params
    credential = given["credential"]
    if module.check_mode:
        credential = {}
    try:
        node_python()
    except InterpreterError as error:
        module.fail_json(**describe_failure(error))
    facts = probe.look(
        run,
        given["base"],
        given["trees"],
        given["peers"],
        given["accelerator"],
        given["programs"],
        given["python"],
        given["asked"],
        credential,
    )
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
