#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The nodes of a run's next attempt."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_replacement
short_description: Choose the nodes with which a run goes on, and remember which nodes failed
description:
  - Runs on the controller. C(noted) remembers the nodes that a verdict names for a fault of their
    own, below the site's state directory, for all runs of the site. C(chosen) returns the nodes of
    the next attempt of a run, in the order of the ranks. It fails with the reason where the run
    cannot go on.
  - See C(plugins/plugin_utils/recovery/node_replacement.py) for the rules and C(failed_nodes.py)
    for the memory.
options:
  state:
    description: The action to take.
    type: str
    choices: [noted, chosen]
    required: true
  run_id:
    description: The run.
    type: str
    default: ""
  state_dir:
    description: The site's directory on the controller.
    type: path
    required: true
  verdict:
    description: The verdict about the attempt (C(noted)).
    type: dict
    default: {}
  ended:
    description: When the attempt ended, in unix seconds; 0 means now (C(noted)).
    type: float
    default: 0
  nodes:
    description: The attempt's nodes (C(noted)); those of the newest attempt (C(chosen)).
    type: list
    elements: str
    default: []
  places:
    description: The nodes of the run's first attempt, in the order of the ranks (C(chosen)); empty
      means O(nodes).
    type: list
    elements: str
    default: []
  site:
    description: As job_config gives it (C(chosen)).
    type: dict
  job:
    description: As job_config gives it; devices and min_nodes count (C(chosen)).
    type: dict
  looks:
    description: What node_owner_info returned on every trainer and spare, or how it failed, by name
      (C(chosen)).
    type: dict
    default: {}
  cooldown_minutes:
    description: A node that failed is not chosen again for so long (C(chosen)).
    type: float
    default: 30
attributes:
  check_mode:
    support: full
    description: Notes nothing.
author: Trainyard
"""

EXAMPLES = r"""
- name: Choose the nodes with which the run goes on
  node_replacement:
    state: chosen
    run_id: 20261120-103501-ppyoloe-1f2e
    nodes: [node1, node2]
    site: "{{ read.site }}"
    job: "{{ read.job }}"
    looks: "{{ looks }}"
    state_dir: "{{ trainyard_state_dir }}"
  register: chosen
"""

RETURN = r"""
noted:
  description: The nodes that were noted, each with its cause.
  type: dict
  returned: noted and chosen
nodes:
  description: The nodes of the next attempt in the order of the ranks.
  type: list
  elements: str
  returned: chosen
replaced:
  description: Node of the newest attempt to the one that takes its place.
  type: dict
  returned: chosen
dropped:
  description: Nodes of the newest attempt whose places stay empty.
  type: list
  elements: str
  returned: chosen
again:
  description: Nodes that are taken although they failed lately.
  type: list
  elements: str
  returned: chosen
places:
  description: The nodes of the run's first attempt.
  type: list
  elements: str
  returned: chosen
new:
  description: Nodes of the next attempt that had no part in the newest one.
  type: list
  elements: str
  returned: chosen
run:
  description: The run.
  type: str
  returned: chosen
state_dir:
  description: Where the failed nodes are remembered.
  type: str
  returned: chosen
lines:
  description: The choice for people; none where all goes on as it was.
  type: list
  elements: str
  returned: chosen
"""
