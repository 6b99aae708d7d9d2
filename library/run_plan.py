#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take the plan and the job of a run that this controller did not start."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_plan
short_description: Keep this controller's plan and job of a run, or take another controller's from
  the nodes
description:
  - An action plugin of the same name does it on the controller. A plan and a job that are here
    stay, whatever a node has.
  - A plan that is not here is taken where more than half of the run's nodes hold the same one (by
    sha256), and where it is what a plan can be. Its nodes have to be in the inventory. The patterns
    of log lines are those that ship with the suite, never the node's.
  - A job that is not here is taken where it passes the job's schema.
options:
  state:
    description: V(looked) makes the directories of the attempt and its run private, and says what is
      not here. V(taken) takes it from what was copied to
      C(.incoming/<node>/).
    type: str
    choices: [looked, taken]
    required: true
  attempt_dir:
    description: The attempt's directory on the controller, C(runs/<run id>/attempt-1).
    type: path
    required: true
  answers:
    description: What each query of this command returned, by node, from M(attempt_monitor)
      (V(taken) only). A node without an answer has {}.
    type: list
    elements: dict
    default: []
  site:
    description: Names of the inventory's trainers and spares (V(taken) only).
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Writes nothing.
author: Trainyard
"""

EXAMPLES = r"""
- name: See whether plan and job are here
  run_plan:
    state: looked
    attempt_dir: runs/20261120-103501-ppyoloe-1f2e/attempt-1
  delegate_to: localhost
"""

RETURN = r"""
lacking:
  description: Those of plan.json and job.json that are not here, with the most bytes that each may
    have.
  type: dict
  returned: always
"""
