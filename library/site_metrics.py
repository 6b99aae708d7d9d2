#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Write the metrics of a look at a site."""

from __future__ import annotations

DOCUMENTATION = r"""
module: site_metrics
short_description: Write metrics of a site's nodes, and of the runs that they know
description:
  - Writes C(trainyard-<site>.site.prom), and C(trainyard-<site>-<run>.prom) for each run that a
    node named, in the exposition format that the textfile collector of the node exporter reads.
  - The file of a run that a command follows, or whose end a command has written, is left alone.
options:
  site:
    description: The site's name.
    type: str
    required: true
  nodes:
    description: The nodes that were asked.
    type: list
    elements: str
    required: true
  results:
    description: The result of M(attempt_monitor) by node. A node without one has not answered.
    type: dict
    required: true
  runs_dir:
    description: Where the controller keeps its runs.
    type: path
    required: true
  directory:
    description: The collector's directory on this machine. It must exist.
    type: path
author: Trainyard
"""

EXAMPLES = r"""
- name: Write the metrics of the site
  site_metrics:
    site: lab
    nodes: [node1, node2]
    results: {node1: {status: {found: false, ended: true, state: none}}}
    runs_dir: runs
    directory: /var/lib/prometheus/node-exporter
"""

RETURN = r"""
path:
  description: The site's file.
  type: str
  returned: success
up:
  description: The nodes that answered.
  type: list
  elements: str
  returned: success
down:
  description: The nodes that did not answer.
  type: list
  elements: str
  returned: success
runs:
  description: The runs that the nodes named.
  type: list
  elements: str
  returned: success
active:
  description: Those of them that go on.
  type: list
  elements: str
  returned: success
"""
