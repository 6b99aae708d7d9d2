#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Choose the checkpoint that a run is resumed from."""

from __future__ import annotations

DOCUMENTATION = r"""
module: resume_point_choice
short_description: Choose the checkpoint that a run is resumed from
description:
  - Looks for complete checkpoints in the controller's record of the run, and takes the best of these and of what the nodes have found.
  - Returns whether a restart should wait for a node that has not answered.
  - Runs on the controller and changes nothing.
options:
  runs_dir: {description: Where the controller keeps its runs., type: path, required: true}
  run_id: {description: The run., type: str, required: true}
  rule: {description: The suite table's C(resume)., type: dict, required: true}
  found: {description: "{node: the C(found) that M(checkpoint_candidates_info) returned there}.", type: dict, required: true}
  silent: {description: Nodes that gave no answer., type: list, elements: str, default: []}
  tries: {description: The number of this try of a restart; 0 where a person asks., type: int,
    default: 0}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Choose the newest complete checkpoint
  resume_point_choice:
    runs_dir: runs
    run_id: 20261120-103501-ppyoloe-1f2e
    rule: "{{ preflight_read.suite.resume }}"
    found: {node1: "{{ hostvars.node1.looked.found }}"}
  register: chosen
"""

RETURN = r"""
point:
  description: >-
    The best of all, with source, sources ([{source, path}] that hold it), home (where its copy on
    the controller lies or will lie) and note; {} without one.
  type: dict
  returned: success
incomplete: {description: "[{attempt, name, node, why}] of what is not complete.", type: list, elements: dict, returned: success}
waits: {description: "Why a restart should wait for the silent nodes, else empty.", type: str, returned: success}
lines: {description: The choice in words., type: list, elements: str, returned: success}
"""
