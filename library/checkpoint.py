#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Find a trained model on its node, or put its copy in place at home."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint
short_description: Find the trained model on a node; compare it with the copy at home; put a copy in its place
description:
  - C(found) runs on the node and reads every byte of the checkpoint that it takes. It follows no link and takes only regular files with plain names.
  - C(compared) and C(taken) run on the controller. C(taken) holds what was brought to C(.checkpoint.part) against the digests and puts it into
    C(checkpoint), all or none; another checkpoint that is there already stays.
options:
  state: {description: What is done., type: str, choices: [found, compared, taken], required: true}
  path: {description: "The attempt's directory, on the node or at home.", type: path, required: true}
  folders: {description: "Folders below it where the suite saves, the likeliest first (C(found) only).", type: list, elements: str, default: []}
  best:
    description: "What the suite calls the best: V(best_model) stands for the files best_model.* and for the folder best_model (C(found) only)."
    type: str
    default: ""
  last: {description: "What it calls the last; of several that fit a pattern (C(iter_*), C(a|b)) the newest is taken (C(found) only).", type: str, default: ""}
  wanted:
    description: Which one is taken; where it is not there, the other one is, and RV(saved.note) says so (C(found) only).
    type: str
    choices: [best, last, none]
    default: best
  files: {description: "Path to [kind, size, sha256], as C(found) returned them (the others).", type: dict, default: {}}
attributes:
  check_mode: {support: full, description: Writes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Look for the best model
  checkpoint:
    state: found
    path: ~/.trainyard/runs/20261120-103501-ppyoloe-1f2e/attempt-1
    folders: [output/ppyoloe_crn_s_300e_coco, output]
    best: best_model
    last: model_final
  register: found

- name: Put the copy in its place
  checkpoint:
    state: taken
    path: runs/20261120-103501-ppyoloe-1f2e/attempt-1
    files: "{{ found.saved.files }}"
  delegate_to: localhost
"""

RETURN = r"""
saved:
  description: >-
    wanted, kind (best, last, or '' where none is taken), name, folder, files ({path below folder: [kind, size, sha256]}), bytes, note (what is to be
    known of the choice), passed_over (links, pipes and odd names).
  type: dict
  returned: found
lacking: {description: "What is not at home yet, one sentence a file.", type: list, elements: str, returned: compared}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    model_collector,
)


def result(given, write):
    """Return the module's result."""
    path, files = given["path"], given["files"]
    if given["state"] == "found":
        patterns = {"best": given["best"], "last": given["last"]}
        return {
            "changed": False,
            "saved": printable_data(
                model_collector.find(path, given["folders"], patterns, given["wanted"])
            ),
        }
    if given["state"] == "compared":
        return {
            "changed": False,
            "lacking": model_collector.lacking(os.path.join(path, model_collector.PLACE), files),
        }
    return {"changed": model_collector.take(path, files, write)}


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["found", "compared", "taken"], "required": True},
            "path": {"type": "path", "required": True},
            "folders": {"type": "list", "elements": "str", "default": []},
            "best": {"type": "str", "default": ""},
            "last": {"type": "str", "default": ""},
            "wanted": {"type": "str", "choices": list(model_collector.WANTED), "default": "best"},
            "files": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**result(module.params, not module.check_mode))
    except (model_collector.CheckpointError, manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
