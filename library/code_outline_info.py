#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe a code tree that lies on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: code_outline_info
short_description: Describe a code tree that lies on a node
description:
  - Returns the digest and the names of its files, and the texts of a suite's config and of the files
    that this config builds on. M(job_inputs) takes it in place of a copy on the controller.
options:
  base:
    description: The product's directory on the node. A relative path starts at the user's home.
    type: str
    default: .trainyard
  path:
    description: The code's directory on the node.
    type: str
    required: true
  config:
    description: The suite's config in it, a relative path.
    type: str
    required: true
  exclude:
    description: Directories in it that the training never sees, as relative paths.
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Describe the code
  code_outline_info:
    path: /opt/PaddleDetection
    config: configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml
  register: outline
"""

RETURN = r"""
outline:
  description: "digest (sha256 of the manifest), files (count), bytes, names, texts ({path: text}),
    commit (or null), dirty (null if git cannot say)."
  type: dict
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    remote_outline,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "base": {"type": "str", "default": ".trainyard"},
            "path": {"type": "str", "required": True},
            "config": {"type": "str", "required": True},
            "exclude": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    base = os.path.join(os.path.expanduser("~"), given["base"])
    try:
        outline = remote_outline.describe_tree(
            base, given["path"], given["config"], given["exclude"]
        )
    except (manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))
    module.exit_json(changed=False, outline=outline)


if __name__ == "__main__":
    main()
