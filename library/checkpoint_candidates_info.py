#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Find the newest complete checkpoint of a run on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_candidates_info
short_description: Find the newest complete checkpoint of a run on a node
description:
  - Searches all attempts of a run on this node, and reads the files of a checkpoint to their end.
    It executes nothing of them, deletes nothing, and names what is newer but not complete.
  - M(resume_point_choice) takes the best of what all machines have.
options:
  run_id:
    description: The run.
    type: str
    required: true
  base:
    description: The product's directory on the node. A relative path starts at the user's home.
    type: str
    default: .trainyard
  rule:
    description: The C(resume) of the suite's table.
    type: dict
    default: {}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Find complete checkpoints on the node
  checkpoint_candidates_info:
    run_id: 20261120-103501-ppyoloe-1f2e
    rule: "{{ suite.resume }}"
  register: candidates
"""

RETURN = r"""
found:
  description: >-
    point (attempt, name, stem, path, files {path: [kind, size in bytes, sha256]}, bytes, digest,
    epoch and step that are done, lr, saved in unix seconds, or null) and skipped ([{attempt, name,
    why, code}] of what is newer and not complete).
  type: dict
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    mesh_credential,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    finder,
    model_collector,
)


def find_candidates(run_id, base, rule):
    """Return what the run has on this node. Raise AttemptError for a bad run id."""
    attempt_dir.check_run_id(run_id)
    home = os.path.expanduser("~")
    path = os.path.join(home, base)
    mesh_credential.register(home, path)
    return finder.find_in_run(os.path.join(path, "runs", run_id), rule)


def main():
    module = AnsibleModule(
        argument_spec={
            "run_id": {"type": "str", "required": True},
            "base": {"type": "str", "default": ".trainyard"},
            "rule": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        found = find_candidates(given["run_id"], given["base"], given["rule"])
    except (
        attempt_dir.AttemptError,
        model_collector.CheckpointError,
        OSError,
        ValueError,
    ) as error:
        module.fail_json(**describe_failure(error))
    module.exit_json(changed=False, found=printable_data(found))


if __name__ == "__main__":
    main()
