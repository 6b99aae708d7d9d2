#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Find a trained model on its node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_info
short_description: Find the trained model on a node
description:
  - Reads every byte of the checkpoint that it takes. It follows no link and takes only regular files with plain names.
  - M(checkpoint_compare) and M(checkpoint_install) do the controller's part.
options:
  path: {description: "The attempt's directory on the node.", type: path, required: true}
  folders: {description: "Folders below it where the suite saves, the likeliest first.", type: list, elements: str, default: []}
  best:
    description: "The suite's best checkpoint: V(best_model) stands for the files best_model.* and
      for the folder best_model."
    type: str
    default: ""
  last: {description: "The suite's last checkpoint; of several that fit a pattern (C(iter_*),
    C(a|b)) the newest is taken.", type: str, default: ""}
  wanted:
    description: The one that is wanted. Where it is missing, the other one is taken, and
      RV(saved.note) says so.
    type: str
    choices: [best, last, none]
    default: best
attributes:
  check_mode: {support: full, description: Writes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Look for the best model
  checkpoint_info:
    path: ~/.trainyard/runs/20261120-103501-ppyoloe-1f2e/attempt-1
    folders: [output/ppyoloe_crn_s_300e_coco, output]
    best: best_model
    last: model_final
  register: found
"""

RETURN = r"""
saved:
  description: >-
    wanted, kind (best, last, or '' where none is taken), name, folder, files ({path below folder: [kind, size, sha256]}), bytes, note (what is to be
    known of the choice), passed_over (links, pipes and odd names).
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import priority
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import (
    describe_failure,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    model_collector,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "folders": {"type": "list", "elements": "str", "default": []},
            "best": {"type": "str", "default": ""},
            "last": {"type": "str", "default": ""},
            "wanted": {"type": "str", "choices": list(model_collector.WANTED), "default": "best"},
        },
        supports_check_mode=True,
    )
    given = module.params
    patterns = {"best": given["best"], "last": given["last"]}
    priority.lower()  # the next attempt of the run may be starting on this node
    try:
        saved = model_collector.find_checkpoint(
            given["path"], given["folders"], patterns, given["wanted"]
        )
    except (model_collector.CheckpointError, manifest.ManifestError, OSError) as error:
        module.fail_json(**describe_failure(error))
    module.exit_json(changed=False, saved=printable_data(saved))


if __name__ == "__main__":
    main()
