#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The decision to resume a run, and the number of the attempt."""

from __future__ import annotations

DOCUMENTATION = r"""
module: resume_decision
short_description: Decide whether a run can be resumed, and as which attempt
description:
  - Runs on the controller. Combines what its own record and the nodes know of a run. It fails with
    the reason where there is nothing to resume (the run has completed, still runs, or is unknown).
    Changes nothing.
options:
  runs_dir:
    description: Where the controller keeps its runs.
    type: path
    required: true
  run_id:
    description: The run.
    type: str
    required: true
  answers:
    description: "{node: what attempt_monitor returned, or nothing where it did not answer}."
    type: dict
    required: true
  job:
    description: The nodes' job.json in base64, for a controller that has none.
    type: list
    elements: str
    default: []
  after:
    description: The attempt that a restart follows; 0 where a person asks.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
    description: Reads only.
author: Trainyard
"""

EXAMPLES = r"""
- name: See whether the run can be resumed
  resume_decision:
    runs_dir: runs
    run_id: 20261120-103501-ppyoloe-1f2e
    answers: "{{ answers }}"
  register: resumed
"""

RETURN = r"""
mode:
  description: start, or follow where another command has begun the next attempt, or O(after) itself
    goes on on all its nodes (only with O(after)).
  type: str
  returned: success
run:
  description: The run.
  type: str
  returned: success
number:
  description: The attempt's number.
  type: int
  returned: success
nodes:
  description: The nodes of the newest attempt in the order of the ranks.
  type: list
  elements: str
  returned: success
places:
  description: Those of the first attempt.
  type: list
  elements: str
  returned: success
before:
  description: The newest attempt so far; 0 where none was started.
  type: int
  returned: where a start is meant
unfinished:
  description: Whether the end of the newest attempt is not recorded yet.
  type: bool
  returned: success
job:
  description: The job as it was read for the start.
  type: dict
  returned: success
code:
  description: number, digest, commit, dirty and diff (path of the local changes, or null) of the code
    of each attempt that this controller has recorded.
  type: list
  elements: dict
  returned: success
refused:
  description: Nothing is to be resumed.
  type: bool
  returned: where it failed for that reason
"""
