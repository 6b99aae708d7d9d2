#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read the controller's record of runs that may not have reached their nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_info
short_description: Read what the controller's record knows of a run
description:
  - With O(run_id), returns the newest attempt and the nodes of this run, which may be on its way to the nodes.
  - Without O(run_id), returns the runs of O(site) whose restart may wait.
  - Runs on the controller and changes nothing.
options:
  runs_dir: {description: Where the controller keeps its runs., type: path, required: true}
  run_id: {description: "The run; empty for all runs of O(site) that wait.", type: str, default: ""}
  site: {description: "The site's name, whose runs count where none is named.", type: str}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Read what this controller knows of the run
  run_info:
    runs_dir: runs
    run_id: 20261120-103501-ppyoloe-1f2e
"""

RETURN = r"""
known: {description: Whether the controller's record knows nodes of the run., type: bool, returned: success}
number: {description: Its newest attempt., type: int, returned: success}
nodes: {description: Its nodes., type: list, elements: str, returned: success}
waiting: {description: "[[run, number, nodes]] of runs whose restart may wait, where none is named.", type: list, elements: list, returned: success}
"""
