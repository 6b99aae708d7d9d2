#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe the runs that the controller keeps."""

from __future__ import annotations

DOCUMENTATION = r"""
module: controller_runs_info
short_description: Describe the runs that the controller keeps
description:
  - Runs on the controller. M(runs_info) does the same on a node.
options:
  runs_dir:
    description: The directory of the runs on the controller.
    type: path
    required: true
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Describe the controller's runs
  controller_runs_info:
    runs_dir: runs
  register: runs
"""

RETURN = r"""
look:
  description: "runs, strange, unfinished and bytes; see plugins/module_utils/runs/prune_scan.py."
  type: dict
  returned: success
"""
