#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Compile the plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Compile the plan of a job from site and probed facts
description:
  - Runs on the controller; a call into the pure C(plugins/module_utils/plan/compiler.py), and into
    C(checks.py), which judges the nodes' answers. Fails with every reason why nothing may start,
    all at once, unless they are only to be reported.
options:
  job:
    description: As job_config gives it.
    type: dict
    required: true
  site:
    description: As job_config gives it.
    type: dict
    required: true
  nodes:
    description: The chosen nodes in rank order.
    type: list
    elements: dict
    required: true
  facts:
    description: Node name to what node_info returned.
    type: dict
    required: true
  spares:
    description: Nodes of the site that may stand by for a detached job, as job_config gives them.
    type: list
    elements: dict
    default: []
  spare_facts:
    description: Name of a spare to what node_info returned.
    type: dict
    default: {}
  spare_silent:
    description: Name of a spare to the connection's error, where it did not answer.
    type: dict
    default: {}
  inputs:
    description: As job_inputs gives it.
    type: dict
    required: true
  resume:
    description: The checkpoint that the run is resumed from, as M(resume_point_choice) returned it.
    type: dict
    default: {}
  attempted:
    description: The code of the run's earlier attempts, as M(resume_decision) returned it.
    type: list
    elements: dict
    default: []
  suite:
    description: The suite's table.
    type: dict
    required: true
  source:
    description: What the site says of the suite.
    type: dict
    required: true
  project:
    description: The project's directory on the controller.
    type: path
    required: true
  silent:
    description: Node name to the connection's error, for a node that did not answer.
    type: dict
    default: {}
  allowed:
    description: What the site asks of its nodes (roles/preflight/defaults/main.yml).
    type: dict
    default: {}
  report:
    description: Return the findings instead of failing with them (check.yml).
    type: bool
    default: false
  state_dir:
    description: What the controller keeps of the site; proofs lie there.
    type: path
  runs_dir:
    description: Where the controller keeps its runs. An earlier run of the job says how long its
      steps and saves take.
    type: path
    required: true
  rehearse:
    description: Whether the plan is to be rehearsed.
    type: bool
    default: true
  repair:
    description: "For sync.yml: trees that differ are replaced, what keeps only a start is warned
      of."
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Computes only.
author: Trainyard
"""

EXAMPLES = r"""
- name: Compile the plan
  plan:
    job: "{{ read.job }}"
    site: "{{ read.site }}"
    nodes: "{{ read.nodes }}"
    suite: "{{ read.suite }}"
    source: "{{ read.source }}"
    inputs: "{{ inputs }}"
    facts: "{{ facts }}"
    project: "{{ read.project }}"
    runs_dir: runs
  register: planned
"""

RETURN = r"""
plan:
  description: The plan.
  type: dict
  returned: where there is one
text:
  description: "The plan's bytes: one line of canonical JSON (ASCII)."
  type: str
  returned: where there is a plan
sha256:
  description: Digest of these bytes.
  type: str
  returned: where there is a plan
todo:
  description: What is not ready yet and on which nodes; besides network (the nodes between which it
    is to be proven), depth (quick or full), rehearsal (the nodes that rehearse), standby (the
    spares that stand by) and standby_inputs (those of them that lack code, data or weights).
  type: dict
  returned: success
node_groups:
  description: Node name to the inventory groups for what it lacks and for the checks that are due.
  type: dict
  returned: success
findings:
  description: What was found, see findings.py.
  type: list
  elements: dict
  returned: success
refused:
  description: Nothing is left to train, and no further try will find any.
  type: bool
  returned: where it failed
stops:
  description: "Of what is in the way of a start: check and nodes."
  type: list
  elements: dict
  returned: where it failed for that reason
lines:
  description: The same as a table for people.
  type: list
  elements: str
  returned: success
remarks:
  description: "Lines on the inputs that are no part of the plan: what was left out of the code, what
    links of the data brought, which code earlier attempts ran with."
  type: list
  elements: str
  returned: where there is a plan
listen:
  description: Ports on which the network's proof listens.
  type: list
  elements: int
  returned: where there is a plan
keys:
  description: Name of each node and spare to its public key of this attempt, checked.
  type: dict
  returned: where there is a plan
rehearsal:
  description: "The rehearsal's plan: text, sha256."
  type: dict
  returned: where there is a plan
summary:
  description: "The plan in lines for people: commands, rank map, digests."
  type: list
  elements: str
  returned: success
"""
