#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Install a checkpoint that was copied to the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_install
short_description: Install a checkpoint that was copied to the controller
description:
  - Compares what was copied to C(.checkpoint.part) below O(path) with the digests, and moves it into C(checkpoint), all files or none.
  - Another checkpoint that is there already stays.
  - Fails with every difference, and removes each file that differs, so that the next copy fetches
    it again.
  - Runs on the controller.
options:
  path: {description: "The attempt's directory on the controller.", type: path, required: true}
  files: {description: "{path: [kind, size, sha256]}, as M(checkpoint_info) or M(checkpoint_candidates_info) returned them.", type: dict, required: true}
attributes:
  check_mode: {support: full, description: Writes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Install the copy
  checkpoint_install:
    path: runs/20261120-103501-ppyoloe-1f2e/attempt-1
    files: "{{ found.saved.files }}"
"""

RETURN = "{}"
