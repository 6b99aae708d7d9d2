#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe what was removed, or what would be."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prune_summary
short_description: Describe what was removed, or what would be
description:
  - Writes lines about the rule, the runs and the places, and a last line with the verdict. A place that was asked and did not answer is a problem.
  - Runs on the controller and changes nothing.
options:
  keep: {description: "So many of each job's newest runs stay; empty for no such rule.", type: str, default: ""}
  older_than: {description: "Only runs that began longer ago are removed: V(12h), V(30d), V(8w).", type: str, default: ""}
  run: {description: The one run that is removed., type: str, default: ""}
  looks: {description: "{place: what M(runs_info) returned there, if anything}.", type: dict, required: true}
  asked: {description: Places that were asked; some may not have answered., type: list, elements: str, required: true}
  decided: {description: What M(prune_choice) returned., type: dict, required: true}
  done: {description: "{place: what M(run_prune) returned there, if anything}.", type: dict, default: {}}
  confirmed: {description: Whether the runs were to be removed., type: bool, default: false}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Summarize what was removed
  prune_summary:
    keep: "5"
    looks: {node1: "{{ hostvars.node1.launch_runs }}"}
    asked: [node1]
    decided: "{{ launch_prune }}"
    done: {node1: "{{ hostvars.node1.launch_removal }}"}
    confirmed: true
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
summary: {description: The end in lines for people., type: list, elements: str, returned: success}
verdict: {description: "outcome (pruned, shown, problems) and text, the last line.", type: dict, returned: success}
"""
