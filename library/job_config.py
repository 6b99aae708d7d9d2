#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin job_config."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_config
short_description: Read job, site and command line as data, before any node is contacted
description:
  - Runs on the controller as an action plugin, since a module can see neither the command line's
    variables nor the inventory.
  - Nothing in a job file is templated or executed. Every problem is reported at once, each as
    C(file:line key; problem; got; allowed; did you mean). Misspelt variables of the command line
    and of the site are refused, which Ansible itself passes over in silence.
options:
  config:
    description:
      - Name of a job in C(playbooks/configs/), or a path that ends in C(.yml).
      - A verb that reads no job leaves it out; then only the command line and the site are read.
    type: str
  resumed:
    description:
      - "A run that is resumed: run, number (of the new attempt) and job, as the module resume_decision
        gives them; instead of O(config). The command line may override the job as at the first
        start."
    type: dict
  members:
    description: Names of the trainers and spares that take part, in rank order
      (node_replacement.py);
      without it the job's first nodes of the site.
    type: list
    elements: str
  ignored:
    description: Variables that may stand on the command line and are not looked at; a restart keeps
      the files of them that the first command had.
    type: list
    elements: str
    default: []
  extra:
    description: Further variables that this verb takes on the command line.
    type: list
    elements: str
    default: []
  administrator:
    description: Whether this verb logs in as the site's administrator (C(trainyard_admin_user)),
      too; only then that login's key is looked at.
    type: bool
    default: false
  whole:
    description: Whether the verb runs on all nodes of the job. Then a C(--limit) that cuts the
      controller off is refused.
    type: bool
    default: false
  logins:
    description: Whether it is judged how the nodes are logged in to; the verbs that make nodes do
      without. Becoming another user is refused all the same.
    type: bool
    default: true
attributes:
  check_mode:
    support: full
    description: Reads only.
  action:
    support: full
    description: Runs on the controller.
author: Trainyard
"""

EXAMPLES = r"""
- name: Read the job and the site
  job_config:
    config: "{{ config | default('') }}"
    extra: [nodes, devices, start_port]
  register: read
"""

RETURN = r"""
job:
  description: The job with its defaults, name, file and, as lines, the line of every key in it.
  type: dict
  returned: success
site:
  description: name, nodes (all, in rank order), suites, env, start_port.
  type: dict
  returned: success
nodes:
  description: The nodes and devices this job takes.
  type: list
  elements: dict
  returned: success
names:
  description: The names of these nodes, in rank order.
  type: list
  elements: str
  returned: success
spares:
  description: The nodes of the site that may stand by for this job. Only a detached job has any.
  type: list
  elements: dict
  returned: success
suite:
  description: The suite's table.
  type: dict
  returned: success
source:
  description: What the site says of this suite.
  type: dict
  returned: success
ports:
  description: The ports that the ranks take on every node.
  type: list
  elements: int
  returned: success
hidden:
  description: Directories of a code tree that the training never sees.
  type: list
  elements: str
  returned: success
run:
  description: A new run id, or the resumed run's.
  type: str
  returned: success
number:
  description: The attempt's number.
  type: int
  returned: success
token:
  description: The token of this command among others for the same run.
  type: str
  returned: success
programs:
  description: What the launcher needs of the nodes' systems, program to package.
  type: dict
  returned: success
"""
