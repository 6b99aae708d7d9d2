#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Write a run's last figures as a text file for Prometheus."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_metrics
short_description: Write a run's figures for the node exporter of Prometheus
description:
  - Writes C(metrics.prom) into the run's directory from its C(run.json) and C(plan.json), in the
    exposition format that the textfile collector of the node exporter reads. No log is read.
  - With O(directory), the same text goes there as C(trainyard-<site>-<job>.prom), readable by all,
    so that the newest run of a job takes the place of the one before. The file of a run that was
    started later is left alone.
  - Files appear whole or not at all. A directory that cannot be written is a warning, since a
    training's end does not hang on it.
options:
  runs_dir:
    description: Where the controller keeps its runs.
    type: path
    required: true
  run_id:
    description: The run.
    type: str
    required: true
  directory:
    description: The collector's directory on this machine; none where it is empty.
    type: path
attributes:
  check_mode:
    support: full
    description: Writes nothing and returns what would change.
author: Trainyard
"""

EXAMPLES = r"""
- name: Write the run's figures for the node exporter
  run_metrics:
    runs_dir: runs
    run_id: 20261120-103501-ppyoloe-1f2e
    directory: /var/lib/prometheus/node-exporter
"""

RETURN = r"""
path:
  description: The file in the run's directory.
  type: str
  returned: success
copy:
  description: The file in O(directory); null without one.
  type: str
  returned: success
"""
