#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe the runs that the controller keeps, or remove some of them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prune_controller
short_description: Describe the runs that the controller keeps, or remove some of them
description:
  - Does on the controller what M(prune) does on a node. C(looked) describes the runs. C(removed) looks once more, and removes the runs of O(names).
  - A run whose logs are being collected stays, and so does what is not understood from top to bottom. M(prune_choice) applies the rule.
options:
  state: {description: What is done., type: str, choices: [looked, removed], required: true}
  runs_dir: {description: Where the controller keeps its runs., type: path, required: true}
  names: {description: Runs to remove (C(removed) only)., type: list, elements: str, default: []}
attributes:
  check_mode: {support: full, description: Removes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Look at the controller's runs
  prune_controller: {state: looked, runs_dir: runs}
  register: looked
"""

RETURN = r"""
look: {description: "runs, strange, unfinished, bytes; see plugins/module_utils/runs/prune_scan.py.", type: dict, returned: looked}
removed: {description: Runs that are gone., type: list, elements: str, returned: removed}
freed: {description: Bytes., type: int, returned: removed}
problems: {description: What was left, and why., type: list, elements: str, returned: removed}
"""
