#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Remove runs from the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: controller_run_prune
short_description: Remove runs from the controller
description:
  - Looks at each run once more before it removes it. A run whose logs are being collected stays, and
    so does what is not understood from top to bottom.
  - Runs on the controller. M(run_prune) does the same on a node.
options:
  runs_dir:
    description: The directory of the runs on the controller.
    type: path
    required: true
  names:
    description: The ids of the runs to remove.
    type: list
    elements: str
    required: true
attributes:
  check_mode: {support: full, description: Removes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Remove the chosen runs
  controller_run_prune:
    runs_dir: runs
    names: "{{ chosen.remove.home }}"
"""

RETURN = r"""
removed: {description: Ids of the runs that are gone., type: list, elements: str, returned: success}
freed: {description: Freed bytes., type: int, returned: success}
problems: {description: "What was left, and why.", type: list, elements: str, returned: success}
"""
