#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin drill."""

from __future__ import annotations

DOCUMENTATION = r"""
module: drill
short_description: Inject faults into a real training and check the promises
description:
  - Runs on the controller as an action plugin, since it starts the product's own playbooks as a
    user would and watches the nodes while they run.
  - The faults are data, C(plugins/plugin_utils/drills/faults.yml). Each is injected into a training
    of its own and undone whatever happens.
  - A fault of containers is left out, with its reason, where the site's nodes are not the embedded
    site's on this machine.
options:
  state:
    description:
      - V(chosen) names the faults that are asked for and refuses without the site's name; V(way)
        says how a node is reached and refuses where a run holds it; V(done) does one fault; V(told)
        proves that the site still trains, and writes the table.
    type: str
    choices: [chosen, way, done, told]
    required: true
  only:
    description: Names or groups of faults with commas (C(chosen) only); empty means all.
    type: str
    default: ""
  list:
    description: Only name the faults (C(chosen) only).
    type: bool
    default: false
  confirm:
    description: The site's name (C(chosen) only).
    type: str
    default: ""
  config:
    description: A job that is trained instead of the examples' (C(chosen) only).
    type: str
    default: ""
  fault:
    description: The fault to inject (C(done) only).
    type: str
  job:
    description: The job that the faults change, as V(chosen) returned it.
    type: dict
  example:
    description: Whether that job is the examples'.
    type: bool
    default: true
  results:
    description: Results of all faults (C(told) only).
    type: list
    elements: dict
attributes:
  check_mode:
    support: full
    description: No fault is done.
  action:
    support: full
    description: Runs on the controller.
author: Trainyard
"""

EXAMPLES = r"""
- name: Name the faults of one group
  drill:
    state: chosen
    only: process
    list: true
"""

RETURN = r"""
faults:
  description: Names of the faults.
  type: list
  elements: str
  returned: chosen
job:
  description: The job that the faults change.
  type: dict
  returned: chosen
example:
  description: Whether it is the examples'.
  type: bool
  returned: chosen
way:
  description: argv of ssh, address and user of the node.
  type: dict
  returned: way
drilled:
  description: "name, injected, detected, stopped, resumed (seconds), verdict (right, wrong,
    unknown), promises, problems; or skipped: why."
  type: dict
  returned: done
results:
  description: All of them with N8.
  type: list
  elements: dict
  returned: told
summary:
  description: The table's lines and the sum.
  type: list
  elements: str
  returned: told
verdict:
  description: outcome and text of all faults together.
  type: dict
  returned: told
"""
