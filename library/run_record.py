#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Write the controller's record of a run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_record
short_description: Write the controller's record of a run
description:
  - Runs on the controller. C(started) makes C(runs/<run id>/) with plan.json, job.json and code.diff. C(ended) adds the verdict and every
    rank's figures to C(run.json), whose schema is versioned (version 1).
options:
  state: {description: What happened., type: str, choices: [started, ended], required: true}
  runs_dir: {description: Where the controller keeps its runs., type: path, required: true}
  run_id: {description: The run., type: str, required: true}
  number: {description: The attempt's number., type: int, default: 1}
  job: {description: The job (C(started) only)., type: dict}
  plan: {description: The plan's bytes (C(started) only)., type: str}
  plan_sha256: {description: Their digest (C(started) only)., type: str}
  code: {description: "The code's digest, commit and whether it has local changes (C(started) only).", type: dict, default: {}}
  code_diff: {description: The code's local changes against its commit (C(started) only)., type: str, default: ""}
  nodes:
    description: "What rank_logs returned on every node: {node, ranks, files, endpoints, exit, missing} (C(ended) only)."
    type: list
    elements: dict
    default: []
  checkpoint: {description: "What the module checkpoint found on the first node (C(ended) only).", type: dict, default: {}}
attributes:
  check_mode: {support: full, description: Writes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Write how it ended
  run_record:
    state: ended
    runs_dir: runs
    run_id: 20261120-103501-ppyoloe-1f2e
    nodes: "{{ collected }}"
  register: record
"""

RETURN = r"""
run_dir: {description: The run's directory on the controller., type: str, returned: success}
verdict: {description: "Why the attempt ended; see plugins/module_utils/trainyard/verdict.py.", type: dict, returned: ended}
summary: {description: The end of the run in lines for people., type: list, elements: str, returned: ended}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard import record
from ansible.module_utils.trainyard.display import printable


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "ended"], "required": True},
            "runs_dir": {"type": "path", "required": True},
            "run_id": {"type": "str", "required": True},
            "number": {"type": "int", "default": 1},
            "job": {"type": "dict"},
            "plan": {"type": "str"},
            "plan_sha256": {"type": "str"},
            "code": {"type": "dict", "default": {}},
            "code_diff": {"type": "str", "default": ""},
            "nodes": {"type": "list", "elements": "dict", "default": []},
            "checkpoint": {"type": "dict", "default": {}},
        },
        required_if=[("state", "started", ("job", "plan", "plan_sha256"))],
        supports_check_mode=True,
    )
    write = record.started if module.params["state"] == "started" else record.ended
    try:
        module.exit_json(changed=True, **write(module.params, module.check_mode))
    except (OSError, ValueError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
