#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Write the controller's record of a run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_record
short_description: Write the controller's record of a run
description:
  - Runs on the controller. C(started) makes C(runs/<run id>/attempt-N/) with its plan.json,
    job.json and code.diff, and fails with C(taken) where another command began that attempt before.
    C(ended) adds the verdict and every rank's figures to C(run.json), and says whether the run is
    to be started again. C(collected) adds the trained model that was copied after that. C(refused)
    notes that an attempt started on no node.
  - C(run.json) is of version 2 (docs/run-json.md); one of version 1 is taken over.
options:
  state:
    description: The event to record.
    type: str
    choices: [started, ended, collected, refused]
    required: true
  runs_dir:
    description: Where the controller keeps its runs.
    type: path
    required: true
  run_id:
    description: The run.
    type: str
    required: true
  number:
    description: The attempt's number.
    type: int
    default: 1
  job:
    description: The job (C(started) only).
    type: dict
  plan:
    description: The plan's bytes (C(started) only).
    type: str
  plan_sha256:
    description: Their digest (C(started) only).
    type: str
  code:
    description: The code's digest, commit and whether it has local changes (C(started) only).
    type: dict
    default: {}
  code_diff:
    description: The code's local changes against its commit (C(started) only).
    type: str
    default: ""
  resume:
    description: The point that the attempt goes on from (C(started) only).
    type: dict
    default: {}
  why:
    description: Why nothing was started (C(refused) only).
    type: str
    default: ""
  followed:
    description: Whether this command saw the attempt run; an end of long ago causes no automatic
      restart (C(ended) only).
    type: bool
    default: true
  nodes:
    description: "What rank_logs_info returned on every node: {node, ranks, files, endpoints, exit,
      missing} (C(ended) only)."
    type: list
    elements: dict
    default: []
  checkpoint:
    description: What M(checkpoint_info) found on the first node (C(collected) only).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Writes nothing.
author: Trainyard
"""

EXAMPLES = r"""
- name: Write how it ended
  run_record:
    state: ended
    runs_dir: runs
    run_id: 20261120-103501-ppyoloe-1f2e
    nodes: "{{ collected }}"
  register: record
"""

RETURN = r"""
run_dir:
  description: The run's directory on the controller.
  type: str
  returned: success
start:
  description: A new token that identifies this command's start on the nodes.
  type: str
  returned: started
verdict:
  description: Why the attempt ended; see plugins/module_utils/diagnosis/verdict.py.
  type: dict
  returned: ended
summary:
  description: The end of the run in lines for people.
  type: list
  elements: str
  returned: ended
again:
  description: "Whether the run is to be started again: again, reason (where it is not), why, delay
    (seconds), number and of (restarts), cause; null after a run that completed."
  type: dict
  returned: ended
goes_on:
  description: Whether the run's nodes restart it, so that its trained model is that of a later attempt.
  type: bool
  returned: ended
resumed:
  description: The attempt that its nodes went on from, 0 for none.
  type: int
  returned: ended
run:
  description: The run.
  type: str
  returned: ended
attempt:
  description: The attempt's number.
  type: int
  returned: ended
line:
  description: Where the trained model is, for the summary.
  type: str
  returned: collected
taken:
  description: Another command has begun this attempt.
  type: bool
  returned: where it failed for that reason
"""
