#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take the plan and the job of a run that this controller did not start."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_plan
short_description: Keep this controller's plan and job of a run, or take another controller's from the nodes
description:
  - Runs on the controller. A plan and a job that are here stay, whatever a node has.
  - A plan that is not here is taken where more than half of the run's nodes hold the same one (by sha256), and where it is what a plan can be.
    Its nodes have to be in the inventory. The patterns of log lines are those that ship with the suite, never the node's.
  - A job that is not here is taken where it passes the job's schema.
options:
  state:
    description: V(looked) says what is not here. V(taken) takes it from what was brought to C(.incoming/<node>/).
    type: str
    choices: [looked, taken]
    required: true
  attempt_dir: {description: "The attempt's directory on the controller, C(runs/<run id>/attempt-1).", type: path, required: true}
  digests: {description: "By node, the sha256 of the plan that M(attempt_status) gave, or '' (V(taken) only).", type: dict, default: {}}
  site: {description: Names of the inventory's trainers and spares (V(taken) only)., type: list, elements: str, default: []}
attributes:
  check_mode: {support: full, description: Writes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: See whether plan and job are here
  run_plan:
    state: looked
    attempt_dir: runs/20261120-103501-ppyoloe-1f2e/attempt-1
  delegate_to: localhost
"""

RETURN = r"""
lacking: {description: "Those of plan.json and job.json that are not here, with the most bytes that each may have.", type: dict, returned: always}
"""

import contextlib
import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard import below, homecoming, plan_home, safe_names
from ansible.module_utils.trainyard.display import printable

LIMITS = {"plan.json": plan_home.PLAN_BYTES, "job.json": plan_home.JOB_BYTES}


def lacking(attempt):
    """Return {file: most bytes} of what is not here. A run of version 1 has its plan in the run's directory alone."""
    run = os.path.dirname(os.path.abspath(attempt))
    here = {"plan.json": [os.path.join(attempt, "plan.json")], "job.json": [os.path.join(run, "job.json")]}
    here["plan.json"] += [os.path.join(run, "plan.json")] if attempt.rstrip("/").endswith("/attempt-1") else []
    return {name: LIMITS[name] for name, paths in here.items() if not any(map(os.path.isfile, paths))}


def brought(attempt, nodes, name):
    """Yield (node, bytes) of a file that came from the nodes; the copy is removed."""
    root = below.open_root(attempt)
    try:
        for node in nodes:
            path = "%s/%s/%s" % (homecoming.INCOMING, node, name)
            if safe_names.problem(path):
                continue
            try:
                with os.fdopen(below.open_below(root, path), "rb") as handle:
                    data = handle.read(LIMITS[name] + 1)
            except OSError:
                continue
            with contextlib.suppress(OSError), below.parent_of(root, path) as (folder, last):
                os.unlink(last, dir_fd=folder)
            yield node, data
    finally:
        os.close(root)


def take(module, attempt, name):
    """Take a file from the first node whose bytes can be it; return whether one did."""
    params, problems = module.params, []
    try:
        digest = plan_home.agreed(params["digests"]) if name == "plan.json" else None
    except plan_home.PlanProblem as error:
        module.warn("%s is not taken: %s" % (name, error))
        return False
    for node, data in brought(attempt, params["digests"], name):
        try:
            value = plan_home.plan_of(data, digest, params["site"]) if name == "plan.json" else plan_home.job_of(data)
        except plan_home.PlanProblem as error:
            problems.append("%s: %s" % (node, error))
            continue
        folder = attempt if name == "plan.json" else os.path.dirname(os.path.abspath(attempt))
        homecoming.put(os.path.join(folder, name), json.dumps(value, sort_keys=True, separators=(",", ":")))
        return True
    for text in problems:
        module.warn(printable("%s is not taken from %s" % (name, text)))
    return False


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["looked", "taken"], "required": True},
            "attempt_dir": {"type": "path", "required": True},
            "digests": {"type": "dict", "default": {}},
            "site": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    attempt = module.params["attempt_dir"]
    wanted, changed = lacking(attempt), False
    if module.params["state"] == "taken" and not module.check_mode:
        changed = any([take(module, attempt, name) for name in sorted(wanted)])
        wanted = lacking(attempt)
    module.exit_json(changed=changed, lacking=wanted)


if __name__ == "__main__":
    main()
