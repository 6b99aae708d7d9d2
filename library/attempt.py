#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Start or stop one attempt on one node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: attempt
short_description: Start or stop an attempt on a node
description:
  - An attempt is a transient unit of the training user's own systemd (C(KillMode=control-group)); it outlives the connection, has a real exit
    code, and stopping it leaves nothing behind. One attempt at a time holds a node.
  - Starting writes the plan's bytes to the attempt's directory and answers with their digest as read back from the disk.
  - Stopping also ends processes that carry the mark of the run and stand outside its unit, of all its attempts where a person stops it; TERM first,
    KILL after some seconds.
options:
  state: {description: What to do., type: str, choices: [started, stopped], required: true}
  run_id: {description: "The run; for C(stopped), empty means the run that holds the node now.", type: str, default: ""}
  number: {description: The attempt's number., type: int, default: 1}
  node: {description: The node's name in the plan., type: str, required: true}
  base: {description: "The product's directory on the node; relative paths start at the user's home.", type: str, default: .trainyard}
  plan: {description: The plan's bytes (C(started) only)., type: str}
  plan_sha256: {description: Their digest (C(started) only)., type: str}
  programs:
    description: "What the unit executes, {file name: source}: plugins/module_utils/trainyard/agent.py and openmpi.py (C(started) only)."
    type: dict
  reason:
    description: Whether a person stops the run, or the failure of another node does.
    type: str
    choices: [user, peer]
    default: user
  by: {description: Who stops it, for the record., type: str, default: the user}
attributes:
  check_mode: {support: full, description: Tells whether it would change anything.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Start the attempt
  attempt:
    state: started
    run_id: 20261120-103501-ppyoloe-1f2e
    node: "{{ inventory_hostname }}"
    plan: "{{ planned.text }}"
    plan_sha256: "{{ planned.sha256 }}"
    programs:
      agent.py: "{{ lookup('ansible.builtin.file', core ~ '/agent.py') }}"
      openmpi.py: "{{ lookup('ansible.builtin.file', core ~ '/openmpi.py') }}"

- name: Stop whatever holds the node
  attempt:
    state: stopped
    node: "{{ inventory_hostname }}"
"""

RETURN = r"""
unit: {description: The unit's name., type: str, returned: success}
attempt_dir: {description: The attempt's directory on the node., type: str, returned: success}
plan_sha256: {description: Digest of plan.json as it lies on the node's disk., type: str, returned: started}
stopped: {description: Runs that were stopped., type: list, elements: str, returned: stopped}
ended:
  description: "Processes that were ended outside the unit: pid, attempt, command, signal (TERM or KILL)."
  type: list
  elements: dict
  returned: stopped
left: {description: Processes of the run that are still there (none is expected)., type: list, elements: int, returned: stopped}
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard import attempts, processes
from ansible.module_utils.trainyard.display import printable


def started(module, run, base, params):
    """Start the attempt; return the module's result."""
    place = attempts.attempt_dir(base, params["run_id"], params["number"])
    unit = attempts.unit_name(params["run_id"], params["number"])
    with attempts.hold(base):
        held = [item for item in attempts.active_units(run) if item["unit"] != unit]
        if held:
            raise attempts.AttemptError(
                "%s is held by %s" % (params["node"], "; ".join("%(description)s (%(unit)s, %(state)s)" % item for item in held))
            )
        if not held and any(item["unit"] == unit for item in attempts.active_units(run)):
            return {"changed": False, "unit": unit, "attempt_dir": place, "plan_sha256": params["plan_sha256"]}
        if module.check_mode:
            return {"changed": True, "unit": unit, "attempt_dir": place}
        found = attempts.prepare(
            place, params["plan"], params["plan_sha256"], params["node"], params["run_id"], params["number"], params["programs"]
        )
        attempts.start(
            run,
            place,
            json.loads(params["plan"]),
            params["node"],
            unit,
            "Trainyard run %s attempt %d" % (params["run_id"], params["number"])
            if params["number"]
            else "a rehearsal of " + params["run_id"],
        )
    return {"changed": True, "unit": unit, "attempt_dir": place, "plan_sha256": found}


def stopped(module, run, base, params):
    """Stop one attempt, or whatever holds the node, and what it has left outside its unit; return the module's result."""
    try:
        units = [item["unit"] for item in attempts.active_units(run)]
    except attempts.AttemptError:
        if not params["run_id"]:
            raise
        units = []  # what is named is ended all the same
    held = [attempts.parse_unit(unit) for unit in units]
    wanted = [(params["run_id"], params["number"])] if params["run_id"] else held
    if params["reason"] == "user":  # a person ends a run; a peer, the attempt that both are in
        wanted += [item for item in held if item[0] == params["run_id"] and item not in wanted]
    changed, ended, left = [], [], []
    for run_id, number in wanted:
        unit, place = attempts.unit_name(run_id, number), attempts.attempt_dir(base, run_id, number)
        marked = None if params["reason"] == "user" else number
        if module.check_mode:
            changed += [run_id] if unit in units or processes.of_run(run_id, marked) else []
            continue
        # A start that is under way waits for the lock or finds the note that stop leaves.
        was_running = attempts.stop(run, place, unit, params["reason"], params["by"])
        found = processes.end(run_id, marked)
        changed += [run_id] if was_running or found else []
        ended += found
        left += processes.of_run(run_id, marked)
    return {
        "changed": bool(changed),
        "stopped": changed,
        "ended": ended,
        "left": left,
        "unit": "",
        "attempt_dir": os.path.join(base, "runs"),
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "stopped"], "required": True},
            "run_id": {"type": "str", "default": ""},
            "number": {"type": "int", "default": 1},
            "node": {"type": "str", "required": True},
            "base": {"type": "str", "default": ".trainyard"},
            "plan": {"type": "str", "no_log": True},  # -vvv prints what a module says of its arguments, and this holds the environment
            "plan_sha256": {"type": "str"},
            "programs": {"type": "dict"},
            "reason": {"type": "str", "choices": ["user", "peer"], "default": "user"},
            "by": {"type": "str", "default": "the user"},
        },
        required_if=[("state", "started", ("run_id", "plan", "plan_sha256", "programs"))],
        supports_check_mode=True,
    )
    params = module.params
    base = os.path.join(os.path.expanduser("~"), params["base"])

    def run(argv):
        return module.run_command(argv, environ_update=dict(attempts.user_environment(os.getuid()), LANG="C", LC_ALL="C"))

    try:
        module.exit_json(**(started if params["state"] == "started" else stopped)(module, run, base, params))
    except (attempts.AttemptError, OSError, ValueError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
