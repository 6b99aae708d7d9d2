#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe what a stop did on all nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stop_summary
short_description: Describe what a stop did on all nodes
description:
  - Writes one line per node, and a last line with the verdict. A member that did not answer is a problem, and so is anything that still runs.
  - Runs on the controller and changes nothing.
options:
  results: {description: "{node: what M(attempt) returned there with C(state=stopped), if anything}.", type: dict, required: true}
  found: {description: "{node: what M(attempt_monitor) returned there before}.", type: dict, default: {}}
  run_id: {description: "The run that was named, if any.", type: str, default: ""}
  members: {description: Nodes on which something of the run can be., type: list, elements: str, default: []}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Summarize what was stopped
  stop_summary:
    results: {node1: "{{ hostvars.node1.launch_stop_result }}"}
    members: [node1]
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
summary: {description: The end in lines for people., type: list, elements: str, returned: success}
verdict: {description: "outcome (stopped, nothing, problems) and text, the last line.", type: dict, returned: success}
"""
