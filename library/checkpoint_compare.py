#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Compare a checkpoint's copy on the controller with the node's files."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_compare
short_description: Compare a checkpoint's copy on the controller with the node's files
description:
  - Reads the copy in C(checkpoint) below O(path) and names each file that is missing or differs.
  - Further files are no difference, since another checkpoint may have been copied before.
  - Runs on the controller and changes nothing.
options:
  path: {description: "The attempt's directory on the controller.", type: path, required: true}
  files: {description: "{path: [kind, size, sha256]}, as M(checkpoint_info) or M(checkpoint_candidates_info) returned them.", type: dict, required: true}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Compare the copy on the controller
  checkpoint_compare:
    path: runs/20261120-103501-ppyoloe-1f2e/attempt-1
    files: "{{ found.saved.files }}"
  register: kept
"""

RETURN = r"""
sizes: {description: "The size of each file in bytes, for M(fetch_files).", type: dict, returned: success}
lacking: {description: "What the controller lacks yet, one sentence per file.", type: list, elements: str, returned: success}
"""
