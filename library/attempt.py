#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Start or stop one attempt on one node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: attempt
short_description: Start or stop an attempt on a node
description:
  - An attempt is a transient unit of the training user's own systemd (C(KillMode=control-group)); it outlives the connection, has a real exit
    code, and stopping it leaves nothing behind. One attempt at a time holds a node, of whatever
    user.
  - Starting writes the plan's bytes to the attempt's directory and answers with their digest as
    read back from the disk. A node that is held is refused. The answer names the attempt that holds
    it, and since when. Of two starts at once on several nodes the one with the older run waits some
    seconds for the other, which fails where they met and is taken back.
  - Stopping also ends processes that carry the mark of the run and stand outside its unit, of all its attempts where a person stops it; TERM first,
    KILL after some seconds. It looks whether the attempt's ports and devices are free again.
options:
  state:
    description:
      - The action to take.
      - C(standby) makes a spare ready for a run whose nodes begin its attempts themselves. It gets the run's credential and supervisor, and
        trains nothing until they choose it.
    type: str
    choices: [started, stopped, standby]
    required: true
  run_id: {description: "The run; for C(stopped), empty means the run that holds the node now.", type: str, default: ""}
  number: {description: The attempt's number., type: int, default: 1}
  node: {description: The node's name in the plan., type: str, required: true}
  base: {description: "The product's directory on the node; relative paths start at the user's home.", type: str, default: .trainyard}
  plan: {description: The plan's bytes (C(started) and C(standby))., type: str}
  plan_sha256: {description: Their digest (C(started) only)., type: str}
  agent:
    description: "The archive agent.pyz, which the units and the peers' calls execute, as base64. The action plugin adds it (C(started) and C(standby))."
    type: str
  replicator:
    description: "The archive replicator.pyz as base64, for a node that keeps a replica of rank 0's checkpoints, now or in a later attempt. The action
      plugin adds it with O(keep_replica) or O(supervise) (C(started) and C(standby))."
    type: str
  keep_replica: {description: Whether the plan has this node keep the replica (C(started) only)., type: bool, default: false}
  supervise:
    description:
      - "Has the nodes begin the attempts after this one themselves: as JSON C(max_restarts), C(point) (the checkpoint that this one begins from),
        C(spares) (names of the nodes that may take a lost node's place) and C(plans) (of each team of nodes that may train a later attempt:
        C(nodes), and as text C(fresh), the plan from the beginning, and C(template), that from a checkpoint). Without it a controller begins
        them (C(started) and C(standby))."
    type: str
  supervisor:
    description: "The archive supervisor.pyz as base64. The action plugin adds it with O(supervise) (C(started) and C(standby))."
    type: str
  job:
    description: "The job as it was read, as JSON; it is kept as job.json, so that a controller without the run's record can resume it (C(started) and C(standby))."
    type: str
  keys:
    description:
      - "{node: public key} of the nodes of this attempt, as M(node_info) made and M(plan) checked them; its peers may then call this node for it, and
        for nothing else (C(started) and C(standby)). More than one node needs them."
    type: dict
    default: {}
  key_of: {description: "The attempt that O(keys) were made for, where it is not O(number), a rehearsal's for instance.", type: int}
  start:
    description:
      - The token of one command's start, the same on all nodes. An attempt that is here already by
        the same start is left as it is.
      - With C(stopped), nothing is touched that another start began; a start that failed takes back what it has begun itself, and no more.
    type: str
    default: ""
  reason:
    description: Whether a person stops the run, or the failure of another node does.
    type: str
    choices: [user, peer]
    default: user
  by: {description: "Origin of the start or stop, for the record: user@controller.", type: str,
    default: the user}
  also:
    description:
      - "[[run, attempt, nodes]]: what holds any node or is on its way; it is stopped on each of C(nodes), and a start there that comes later gives up
        (C(stopped) only)."
    type: list
    elements: list
    default: []
  lost:
    description: Nodes that will not come back, so that the stop of a run which its nodes restart does not wait for them (C(stopped) only).
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full, description: Reports whether it would change anything.}
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
kept: {description: Runs that were left alone because another start began them., type: list, elements: str, returned: stopped}
unconfirmed:
  description: Runs that their nodes restart themselves, and whose stop no majority of them has confirmed yet.
  type: list
  elements: str
  returned: stopped
noted: {description: Runs whose coming start or restart here will give up., type: list, elements: str, returned: stopped}
occupied:
  description: "Ports and devices of the attempt that are still in use: what, own (whether it is
    this run), text."
  type: list
  elements: dict
  returned: stopped
"""

import base64
import contextlib
import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    mesh_credential,
    ownership,
    replica_unit,
    supervisor_installation,
    supervisor_order,
    tickets,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import command_runner
from ansible_collections.trainyard.cluster.plugins.module_utils.base.interpreter import (
    InterpreterError,
    node_python,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import stopping


def supervise(run, base, params, plan, mesh, install=supervisor_installation.begin):
    """Install the run's supervisor on this node. Raises AttemptError where it does not start."""
    given = {
        **json.loads(params["supervise"]),
        "run": params["run_id"],
        "site": plan["site"],
        "node": params["node"],
        "nodes": [item["name"] for item in plan["nodes"]],
        "first": params["number"],
        "mesh": mesh,
        "start": params["start"],
        "job": params["job"] or "{}",
    }
    archives = {
        name: base64.b64decode(params[key])
        for name, key in (
            (supervisor_order.AGENT, "agent"),
            (supervisor_order.REPLICATOR, "replicator"),
            (supervisor_order.PROGRAM, "supervisor"),
        )
    }
    install(run, os.path.expanduser("~"), base, given, archives)


def keys_of(params, plan):
    """Return {node: public key} of the nodes that may call each other for this attempt."""
    names = [item["name"] for item in plan["nodes"]]
    if params["supervise"]:
        names += json.loads(params["supervise"])["spares"]
    return {name: params["keys"].get(name) for name in names}


def stand_by(module, run, base, params):
    """Make a spare ready and return the module's result."""
    home, plan = os.path.expanduser("~"), json.loads(params["plan"])
    mine = home, params["run_id"], params["number"], params["node"]
    supervisor_installation.check_start(home, base, params)
    if not module.check_mode:
        keys, archive = keys_of(params, plan), base64.b64decode(params["agent"])
        given = home, base, plan["site"], *mine[1:], keys, archive, node_python()
        with attempt_dir.lock_node(base):
            config = mesh_credential.grant(*given, attempt=params["number"], supervised=True)
            try:
                supervise(run, base, params, plan, config, supervisor_installation.install)
            except attempt_dir.AttemptError:
                mesh_credential.release(*mine)
                raise
    return {
        "changed": True,
        "unit": attempt_dir.unit_name(params["run_id"], params["number"]),
        "attempt_dir": attempt_dir.attempt_dir(base, params["run_id"], params["number"]),
    }


def files_of(params, archive):
    """Return {name: bytes} of what lies beside the attempt's plan. archive: agent.pyz."""
    files = {attempt_dir.ARCHIVE: archive}
    if params["keep_replica"]:
        files[replica_unit.ARCHIVE] = base64.b64decode(params["replicator"])
    if params["job"]:
        files["job.json"] = params["job"].encode("utf-8")
    return files


def started(module, run, base, params):
    """Start the attempt and return the module's result."""
    place = attempt_dir.attempt_dir(base, params["run_id"], params["number"])
    unit = attempt_dir.unit_name(params["run_id"], params["number"])
    about = f"Trainyard run {params['run_id']} attempt {params['number']:d}"

    def act():
        if module.check_mode:
            return None
        archive = base64.b64decode(params["agent"])
        files = files_of(params, archive)
        begun = {"start": params["start"], "by": params["by"], "boot": ownership.boot_mark()}
        supervised = bool(params["supervise"])
        if supervised:
            begun["supervised"] = True
        plan, home = json.loads(params["plan"]), os.path.expanduser("~")
        number = params["number"] if params["key_of"] is None else params["key_of"]
        if len(plan["nodes"]) > 1:
            begun["mesh"] = mesh_credential.config_of(
                home, params["run_id"], number, params["node"]
            )
        found = attempt_dir.prepare(
            place,
            params["plan"],
            params["plan_sha256"],
            params["node"],
            params["run_id"],
            params["number"],
            files,
            begun,
        )
        mine, mesh, release = (
            (home, params["run_id"], number, params["node"]),
            begun.get("mesh", ""),
            (),
        )
        if mesh:
            keys = keys_of(params, plan)
            given = (
                home,
                base,
                plan["site"],
                params["run_id"],
                number,
                params["node"],
                keys,
                archive,
                node_python(),
            )
            mesh_credential.grant(*given, attempt=params["number"], supervised=supervised)
            if params["number"] and not supervised:
                release = mesh_credential.release_words(*mine, node_python())
        try:
            what = about if params["number"] else "a rehearsal of " + params["run_id"]
            problem = attempt_dir.start(run, place, plan, params["node"], unit, what, mesh, release)
            if problem:
                module.warn(problem)
            if supervised:
                supervise(run, base, params, plan, mesh)
        except attempt_dir.AttemptError:
            if mesh:
                (mesh_credential.release if params["number"] else mesh_credential.close)(*mine)
            raise
        return found

    if params["number"]:
        supervisor_installation.check_start(os.path.expanduser("~"), base, params)
    ours = {
        "changed": False,
        "unit": unit,
        "attempt_dir": place,
        "plan_sha256": params["plan_sha256"],
    }
    acted = ownership.run_when_free(
        run,
        base,
        params["run_id"],
        params["number"],
        params["start"],
        params["node"],
        lambda: (act(),),
    )
    if params["number"] and not module.check_mode:
        # The start no longer waits. A rehearsal comes before its end.
        with contextlib.suppress(OSError):
            tickets.remove_of_run(tickets.folder_of(base), params["run_id"])
    return (
        dict(ours, changed=True, plan_sha256=acted[0] or params["plan_sha256"]) if acted else ours
    )


ARGUMENTS = {
    "state": {
        "type": "str",
        "choices": ["started", "stopped", "standby"],
        "required": True,
    },
    "run_id": {"type": "str", "default": ""},
    "start": {"type": "str", "default": ""},
    "number": {"type": "int", "default": 1},
    "node": {"type": "str", "required": True},
    "base": {"type": "str", "default": ".trainyard"},
    # -vvv prints what a module says of its arguments, and this holds the environment
    "plan": {"type": "str", "no_log": True},
    "plan_sha256": {"type": "str"},
    "agent": {"type": "str", "no_log": True},  # not secret: the answer would repeat it
    "replicator": {"type": "str", "no_log": True},  # the same
    "keep_replica": {"type": "bool", "default": False},
    "supervise": {"type": "str", "no_log": True},  # plans hold the environment
    "supervisor": {"type": "str", "no_log": True},  # not secret: the answer would repeat it
    "job": {"type": "str", "no_log": True},  # the same
    "keys": {"type": "dict", "default": {}, "no_log": False},  # public ones
    "key_of": {"type": "int", "no_log": False},
    "reason": {"type": "str", "choices": ["user", "peer"], "default": "user"},
    "by": {"type": "str", "default": "the user"},
    "also": {"type": "list", "elements": "list", "default": []},
    "lost": {"type": "list", "elements": "str", "default": []},
}


def main():
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[
            ("state", "started", ("run_id", "plan", "plan_sha256", "agent")),
            ("state", "standby", ("run_id", "plan", "agent", "supervise", "supervisor")),
        ],
        supports_check_mode=True,
    )
    given = module.params
    base = os.path.join(os.path.expanduser("~"), given["base"])

    run = command_runner(module)
    states = {
        "started": lambda: started(module, run, base, given),
        "standby": lambda: stand_by(module, run, base, given),
        "stopped": lambda: stopping.stop(run, base, given, not module.check_mode),
    }
    try:
        module.exit_json(**states[given["state"]]())
    except (
        attempt_dir.AttemptError,
        mesh_credential.CredentialError,
        InterpreterError,
        OSError,
        ValueError,
    ) as error:
        module.fail_json(**describe_failure(error))


if __name__ == "__main__":
    main()
