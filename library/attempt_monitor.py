#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""State of an attempt on one node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: attempt_monitor
short_description: Return the state of an attempt on a node, and stop it with its gang
description:
  - Reads the state of the attempt's unit, the state of each rank, and the latest step from the end
    of each rank's log.
  - Without O(gang) and O(logs_dir) it changes nothing.
options:
  run_id:
    description: The run; empty means the one that holds the node now, else the newest.
    type: str
    default: ""
  number:
    description: The attempt's number; 0 means the newest.
    type: int
    default: 0
  node:
    description: The node's name in the plan.
    type: str
    required: true
  gang:
    description:
      - Stop the attempt here where another node of it failed some seconds ago and the mesh has not
        delivered the stop. Done by the action plugin on the controller; only while a run is
        followed. Needs O(run_id) and O(number). An answer about another attempt fails the node.
    type: bool
    default: false
  logs_dir:
    description:
      - Directory of the runs on the controller, to which the node's logs are copied while the
        attempt runs, as C(<run>/attempt-N/<log>); empty means that they stay on the node until they
        are collected. Done by the action plugin with O(gang=true), over connections of type ssh.
    type: str
    default: ""
  wait:
    description:
      - Seconds that the node waits for the attempt's end before it answers, so that an end is known
        at once. Needs O(run_id) and O(number).
    type: float
    default: 0
  base:
    description: The product's directory on the node; relative paths start at the user's home.
    type: str
    default: .trainyard
attributes:
  check_mode:
    support: full
    description: With O(gang) it is used only while a run is followed, which a check never does.
author: Trainyard
"""

EXAMPLES = r"""
- name: Follow the attempt until it ends
  attempt_monitor:
    run_id: 20261120-103501-ppyoloe-1f2e
    number: 1
    node: "{{ inventory_hostname }}"
    wait: 2
  register: status
  until: status.status.ended
  retries: 100
  delay: 1
"""

RETURN = r"""
status:
  description: found, run, attempt, attempts (all numbers of the run here), begun (those that were
    started here), noted (those that a person stopped before they began here), by (user@controller of the start), plan_sha256 (of
    plan.json as it lies here), job, unit, state (running, stopping, completed, failed, stopped,
    lost, none), lost (why a unit that is gone wrote no end), ended, started and now (unix seconds),
    exit (exit.json), ranks ([{rank, local_rank, pid, state, exit_code, signal, step, evaluation,
    fraction}]), endpoints_as_planned, supervised (null, or for a run whose nodes restart it
    themselves is_open, whether they still do, and teams, the nodes of each attempt in rank order);
    where nothing is found of a run that was asked for, processes
    (pids that carry its mark all the same) and stopped (whether it was stopped here nevertheless);
    with O(gang=true) stream, null or the state of the log stream (bytes that came, restarts,
    problem, events of truncated, replaced and gone logs).
  type: dict
  returned: success
logs:
  description: C(answer), what M(trainyard.cluster.rank_logs_info) returns for this node, and C(received), the
    controller's time of it (unix seconds).
  type: dict
  returned: with O(gang=true), for an attempt that completed while a connection for its looks was open, and whose logs are
    not larger than 50 MB
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import priority
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import command_runner
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import status_reader


def main():
    module = AnsibleModule(
        argument_spec={
            "run_id": {"type": "str", "default": ""},
            "number": {"type": "int", "default": 0},
            "node": {"type": "str", "required": True},
            "gang": {"type": "bool", "default": False},
            "logs_dir": {"type": "str", "default": ""},
            "wait": {"type": "float", "default": 0},
            "base": {"type": "str", "default": ".trainyard"},
        },
        supports_check_mode=True,
    )
    params = module.params

    priority.lower()  # a training goes on beside it
    which = (params["base"], params["run_id"], params["number"], params["node"])
    try:
        found = status_reader.look(command_runner(module), *which, params["wait"])
        module.exit_json(changed=False, status=found)
    except (attempt_dir.AttemptError, OSError) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
