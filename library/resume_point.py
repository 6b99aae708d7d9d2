#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Find what a run can be resumed from, choose it, and bring it from a node that holds it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: resume_point
short_description: Find the newest complete checkpoint of a run, choose among the places that hold one, bring it to a node
description:
  - C(found) looks at all attempts of a run in one place, on a node or at home (O(runs_dir)). It reads the files of a checkpoint to their end, executes
    nothing of them, and names what is newer but not complete. Nothing is deleted.
  - C(chosen) takes the best of what every place has found, and says whether a restart should wait for a node that has said nothing. It changes nothing.
  - C(brought) runs on a node that lacks the chosen checkpoint. It is copied from the node's own attempt, else from another node over the mesh, held
    against its digest, and becomes C(checkpoints/<digest>), read-only. Where no node can give it, RV(brought) is false and nothing is changed.
    Copies of other checkpoints that no start has asked for within the hour are removed there, unless an attempt holds the node.
options:
  state: {description: What is done., type: str, choices: [found, chosen, brought], required: true}
  run_id: {description: "The run (not C(brought)).", type: str, default: ""}
  runs_dir: {description: "Where the controller keeps its runs; C(found) looks there if it is given (not C(brought)).", type: path}
  base: {description: "The product's directory on the node; relative paths start at the user's home.", type: str, default: .trainyard}
  rule: {description: "The suite table's C(resume) (C(found) only).", type: dict, default: {}}
  found: {description: "Node's name, or C(home), to what C(found) returned (C(chosen) only).", type: dict, default: {}}
  silent: {description: "Nodes that gave no answer (C(chosen) only).", type: list, elements: str, default: []}
  tries: {description: "Which try of a restart this is; 0 where a person asks (C(chosen) only).", type: int, default: 0}
  node: {description: "This node's name (C(brought) only).", type: str, default: ""}
  point: {description: "As C(chosen) returned it (C(brought) only).", type: dict, default: {}}
attributes:
  check_mode: {support: full, description: Brings nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Look for complete checkpoints on the node
  resume_point:
    state: found
    run_id: 20261120-103501-ppyoloe-1f2e
    rule: "{{ hostvars.localhost.preflight_read.suite.resume }}"
  register: looked

- name: Choose the newest
  resume_point:
    state: chosen
    run_id: 20261120-103501-ppyoloe-1f2e
    runs_dir: runs
    found: {node1: "{{ hostvars.node1.looked.found }}"}
  delegate_to: localhost
  register: chosen

- name: Bring it from a node that holds it
  resume_point:
    state: brought
    node: "{{ inventory_hostname }}"
    point: "{{ chosen.point }}"
"""

RETURN = r"""
found:
  description: >-
    point (attempt, name, stem, path, files {path: [kind, size, sha256]}, bytes, digest, epoch and step that are done, lr, saved, or null), skipped
    ([{attempt, name, why}] of what is newer and not complete).
  type: dict
  returned: found
point:
  description: >-
    The best of all, with source, sources ([{source, path}] that hold it), home (where its copy at home lies or will lie) and note; {} where there is
    none.
  type: dict
  returned: chosen
incomplete: {description: "[{attempt, name, node, why}] of what is not complete.", type: list, elements: dict, returned: chosen}
waits: {description: "Why a restart should wait for the silent nodes, else empty.", type: str, returned: chosen}
lines: {description: The choice in words., type: list, elements: str, returned: chosen}
brought: {description: Whether the node holds the checkpoint now., type: bool, returned: brought}
said: {description: "Why a source could not give it, one line each.", type: list, elements: str, returned: brought}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    mesh_credential,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    finder,
    model_collector,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    checkpoint_transfer,
    unseen_checkpoints,
)


def find(given):
    """Return what the run has in this place."""
    if not attempt_dir.RUN_ID.match(given["run_id"]):
        raise attempt_dir.AttemptError("{!r} is no run id".format(given["run_id"]))
    at_home = bool(given["runs_dir"])
    if not at_home:
        mesh_credential.register(
            os.path.expanduser("~"), os.path.join(os.path.expanduser("~"), given["base"])
        )
    runs = (
        given["runs_dir"]
        if at_home
        else os.path.join(os.path.expanduser("~"), given["base"], "runs")
    )
    return {
        "changed": False,
        "found": printable_data(
            finder.of_run(os.path.join(runs, given["run_id"]), given["rule"], at_home)
        ),
    }


def choose(given):
    """Return the best of what all places have found."""
    point, skipped = finder.choose(given["found"])
    if point:
        attempt = os.path.join(
            given["runs_dir"] or "runs", given["run_id"], "attempt-%d" % point["attempt"]
        )
        point = dict(point, home=os.path.join(attempt, model_collector.PLACE))
    found = unseen_checkpoints.holders(
        os.path.join(given["runs_dir"] or "runs", given["run_id"]), given["silent"], point
    )
    return {
        "changed": False,
        "point": point or {},
        "waits": printable(unseen_checkpoints.waits(found, given["tries"])),
        "incomplete": skipped,  # (`skipped` would mean to Ansible that the task was left out)
        "lines": [printable(line) for line in finder.lines(point, skipped)],
    }


def result(given, run, write):
    """Return the module's result; see RETURN."""
    if given["state"] == "found":
        return find(given)
    if given["state"] == "chosen":
        return choose(given)
    home = os.path.expanduser("~")
    changed, brought, said = checkpoint_transfer.bring(
        run, home, os.path.join(home, given["base"]), given["node"], given["point"], write
    )
    return {"changed": changed, "brought": brought, "said": [printable(line) for line in said]}


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["found", "chosen", "brought"], "required": True},
            "run_id": {"type": "str", "default": ""},
            "runs_dir": {"type": "path"},
            "base": {"type": "str", "default": ".trainyard"},
            "rule": {"type": "dict", "default": {}},
            "found": {"type": "dict", "default": {}},
            "silent": {"type": "list", "elements": "str", "default": []},
            "tries": {"type": "int", "default": 0},
            "node": {"type": "str", "default": ""},
            "point": {"type": "dict", "default": {}},
        },
        required_if=[("state", "brought", ("node", "point"))],
        supports_check_mode=True,
    )

    environ = dict(attempt_dir.user_environment(os.getuid()), LC_ALL="C")

    def run(argv, data):
        return module.run_command(argv, data=data, environ_update=environ, handle_exceptions=False)

    try:
        module.exit_json(**result(module.params, run, not module.check_mode))
    except (
        attempt_dir.AttemptError,
        model_collector.CheckpointError,
        OSError,
        ValueError,
    ) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
