#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Write the report of a run, or of several runs side by side."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_report
short_description: Write the report of a run, or a comparison of several runs
description:
  - Runs on the controller and reads what the controller has; no node is contacted. Writes one HTML
    file that is complete in itself and loads nothing from elsewhere, mode 0600,
    C(<runs_dir>/<run>/report.html) or C(<runs_dir>/compare-<digest of the run ids>.html).
  - A part that cannot be read (a damaged log, say) is left out; the page and a warning name it.
    Fails where there is no such run.
options:
  runs_dir:
    description: Where the controller keeps its runs.
    type: path
    required: true
  run:
    description: The run; the newest one where this is empty.
    type: str
    default: ""
  runs:
    description: Two to eight runs to be compared; not together with O(run).
    type: list
    elements: str
    default: []
  assets:
    description: The role's directory, which holds the page's template, style, script and chart
      library.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: Makes the page and writes nothing.
author: Trainyard
"""

EXAMPLES = r"""
- name: Make the report of the newest run
  run_report:
    runs_dir: runs
    assets: "{{ role_path }}"
  register: made
"""

RETURN = r"""
report:
  description: The page's path.
  type: str
  returned: success
bytes:
  description: Its size.
  type: int
  returned: success
notes:
  description: What of the run could not be read.
  type: list
  elements: str
  returned: success
"""
