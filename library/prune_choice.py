#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Choose the runs that are to be removed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prune_choice
short_description: Choose the runs that a rule removes
description:
  - Applies a rule to the runs of all places (the nodes, and C(home) for the controller) and returns what may be removed at each place.
  - A run that runs or is held stays, and so does a job's last good checkpoint and a run that cannot be read.
  - Runs on the controller and removes nothing.
options:
  keep: {description: "So many of each job's newest runs stay; empty for no such rule.", type: str, default: ""}
  older_than: {description: "Only runs that began longer ago are removed: V(12h), V(30d), V(8w).", type: str, default: ""}
  run: {description: The one run that is removed., type: str, default: ""}
  looks: {description: "{place: what M(runs_info) returned there, if anything}.", type: dict, required: true}
  site: {description: The site's name; runs of other sites stay., type: str, required: true}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Choose the runs by the rule
  prune_choice:
    site: lab
    keep: "5"
    looks: {node1: "{{ hostvars.node1.launch_runs }}"}
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
remove: {description: "{place: [run ids]}.", type: dict, returned: success}
stay: {description: "[{run, places, why}]: what the rule would remove and why it stays.", type: list, elements: dict, returned: success}
"""
