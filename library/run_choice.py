#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Choose the run, the attempt and the nodes that a command is about."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_choice
short_description: Choose the run that a command is about
description:
  - Chooses the run, the attempt and the nodes from what all nodes and the controller's record know. One node alone does not decide for the others.
  - Warns of each node whose answer differs.
  - Runs on the controller and changes nothing.
options:
  runs_dir: {description: Where the controller keeps its runs., type: path, required: true}
  run_id: {description: "The run that was named, if any.", type: str, default: ""}
  found: {description: "{node: what M(attempt_monitor) returned there}.", type: dict, default: {}}
  members: {description: The inventory's trainers and spares., type: list, elements: str, default: []}
  in_turn:
    description:
      - Choose the oldest attempt that this controller has no verdict of, where the run's nodes restart it themselves. So every attempt is
        collected, one after the other.
    type: bool
    default: false
  after: {description: "With O(in_turn), the attempt that was collected last.", type: int, default: 0}
  record: {description: "What M(run_info) returned of the run, for a stop.", type: dict, default: {}}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Choose the run by what the nodes and this controller know
  run_choice:
    runs_dir: runs
    members: "{{ groups.trainers }}"
    found: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'launch_attempt_status'))) }}"
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
choice:
  description: >-
    The run, number and nodes that are meant, next (a number that no attempt has used), claimed (the nodes that have this attempt) and notes (lines about
    nodes that say otherwise); empty where no node has a run.
  type: dict
  returned: success
known_runs: {description: "Runs that the nodes know, newest first.", type: list, elements: str, returned: success}
answering: {description: Nodes that gave an answer., type: list, elements: str, returned: success}
traces:
  description: Whether a node that knows no run still has processes of it, or was told to stop it.
  type: bool
  returned: success
stop:
  description: >-
    What a stop is about, number (of the attempt), members (the nodes on which something of it can be) and also ([[run, number, nodes]] of further attempts,
    among them one that waits for its restart).
  type: dict
  returned: success
holding: {description: "[[run, number, nodes]] of what holds any node.", type: list, elements: list, returned: success}
"""
