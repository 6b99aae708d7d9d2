#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin conformance."""

from __future__ import annotations

DOCUMENTATION = r"""
module: conformance
short_description: Compare the product with the promises of the upstream documentation
description:
  - Runs on the controller as an action plugin, since the tables that a job is read with lie beside
    the core.
  - Every line of C(plugins/plugin_utils/conformance/contract.yml) is executed or compared at that
    moment. Jobs are compiled for the machines of that documentation by the product's own functions
    and compared with its commands word for word. Lines about real machines rest on what the
    site's nodes answered just now, and on the newest run of each suite that completed on two
    nodes or more.
  - Writes C(conform.json) where the controller keeps its runs, with everything that was rendered
    and compared. A line that does not hold does not fail the task.
options:
  state:
    description: V(witnesses) only names the runs that the lines about real machines would stand on;
      V(checked) checks every line.
    type: str
    choices: [witnesses, checked]
    required: true
  ask:
    description: Whether the nodes were asked. If not, the lines about real machines are neither
      proven nor failed.
    type: bool
    default: true
  proof:
    description: Name of the variable in which every node's ssh_mesh_check was registered.
    type: str
  facts:
    description: Name of the variable in which every node's node_info was registered.
    type: str
  plans:
    description: Name of the variable in which every node's stat of the runs' plan.json was
      registered.
    type: str
attributes:
  check_mode:
    support: full
    description: Writes no report.
  action:
    support: full
    description: Runs on the controller.
author: Trainyard
"""

EXAMPLES = r"""
- name: Check every line without asking a machine
  conformance:
    state: checked
    ask: false
  register: conformity
"""

RETURN = r"""
runs:
  description: run, number, suite, job, plan_sha256 and trees of each run.
  type: list
  elements: dict
  returned: witnesses
lines:
  description: "id, document, promise, holds (null: not asked), evidence, rendered (commands),
    compared (what, expected, got, same)."
  type: list
  elements: dict
  returned: checked
verdict:
  description: outcome and text of all lines together.
  type: dict
  returned: checked
summary:
  description: The table, one line a promise, and the verdict.
  type: list
  elements: str
  returned: checked
details:
  description: Everything that was rendered and compared.
  type: list
  elements: str
  returned: checked
"""
