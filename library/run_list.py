#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""List all runs of a site."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_list
short_description: List all runs of a site
description:
  - Merges what the nodes say of their runs (M(run_states_info)) with the records of this controller.
  - Writes C(index.html) beside the runs, a page with the same table and small curves.
  - Runs on the controller.
options:
  runs_dir: {description: Where the controller keeps its runs., type: path, required: true}
  answers:
    description: The result of M(run_states_info) by the node's name.
    type: dict
    default: {}
  silent: {description: Nodes that gave no answer., type: list, elements: str, default: []}
  most: {description: Number of ended runs in the table., type: int, default: 20}
  site: {description: The site's name., type: str, default: site}
  assets: {description: Directory of the role C(report)., type: path, required: true}
attributes:
  check_mode: {support: full, description: Writes no page.}
author: Trainyard
"""

EXAMPLES = r"""
- name: List the runs
  run_list:
    runs_dir: runs
    answers: "{{ groups.trainers | trainyard.cluster.results_of(hostvars, 'states') }}"
    assets: roles/report
"""

RETURN = r"""
runs: {description: The runs, see plugins/plugin_utils/runs/run_table.py., type: list, elements: dict, returned: success}
index: {description: Path of the page., type: str, returned: success}
lines: {description: The same as a table for people., type: list, elements: str, returned: success}
"""
