#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin benchmark."""

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark
short_description: Train a job on several numbers of nodes and compare its speed
description:
  - Runs on the controller as an action plugin, since it starts the product's own playbooks as a
    user would.
  - Each training is a run of its own. It is not restarted after a fault.
options:
  state:
    description:
      - V(chosen) reads the numbers of nodes and has C(check.yml) check the job on the largest one.
        V(trained) trains on one number of nodes. V(alone) trains on each node alone, all at the
        same time. V(compared) writes the table and the page.
    type: str
    choices: [chosen, trained, alone, compared]
    required: true
  config:
    description: The job (V(chosen), V(trained) and V(alone)).
    type: str
    default: ""
  nodes:
    description:
      - Numbers of nodes, with commas between them. Empty means 1, 2, 4 and so on up to all trainers.
    type: str
    default: ""
  minutes:
    description: Minutes of training after which a run is stopped; 0 means that each runs to its end.
    type: float
    default: 0
  folder:
    description: Directory of this benchmark, as V(chosen) returned it.
    type: path
  names:
    description: The nodes that train alone, as V(chosen) returned them (V(alone) only).
    type: list
    elements: str
  trainings:
    description: What V(trained) returned for each number of nodes (V(compared) only).
    type: list
    elements: dict
  alone:
    description: C(trainings) as V(alone) returned them (V(compared) only).
    type: list
    elements: dict
    default: []
attributes:
  check_mode:
    support: full
    description: The numbers of nodes are read. Nothing is checked or trained.
  action:
    support: full
    description: Runs on the controller.
author: Trainyard
"""

EXAMPLES = r"""
- name: Choose the numbers of nodes
  benchmark:
    state: chosen
    config: ppyoloe.yml
    nodes: 1,2,4
"""

RETURN = r"""
counts:
  description: Numbers of nodes, in the order of the trainings (V(chosen) only; none in check mode).
  returned: success
  type: list
  elements: int
alone:
  description: The nodes that train alone at the end. With C(minutes) and up to 16 nodes these are
    the nodes of the largest number, else none (V(chosen) only).
  returned: success
  type: list
  elements: str
folder:
  description: Directory of this benchmark (V(chosen) only).
  returned: success
  type: path
training:
  description: Run, label, outcome and output of a training (V(trained) only).
  returned: success
  type: dict
trainings:
  description: The same for each node (V(alone) only).
  returned: success
  type: list
  elements: dict
summary:
  description: The table, for people (V(compared) only).
  returned: success
  type: list
  elements: str
verdict:
  description: C(outcome) and C(text) of the benchmark (V(compared) only).
  returned: success
  type: dict
"""
