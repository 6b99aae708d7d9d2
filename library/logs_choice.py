#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin logs_choice."""

from __future__ import annotations

DOCUMENTATION = r"""
module: logs_choice
short_description: Choose the run whose logs are shown
description:
  - Chooses the run by the nodes' answers, or by the controller's record. Warns of each node that
    did not answer.
  - The options of C(logs.yml) are C(rank), C(node), C(lines), C(follow) and C(query). They are read
    from the command line (C(-e)) as data. Nothing in them is templated.
options:
  run:
    description: The run's id, or '' for the newest one.
    type: str
    default: ""
  answers:
    description: By node, what M(logs_run_info) returned there. A node that was not asked is left
      out.
    type: dict
    default: {}
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
- name: Report the run and its missing logs
  logs_choice:
    run: "{{ logs_question.run }}"
    answers: "{{ logs_question.ask | trainyard.cluster.results_of(hostvars, 'logs_attempt_status') }}"
  run_once: true
  register: logs_choice
"""

RETURN = r"""
run:
  description: The run's id.
  type: str
  returned: success
number:
  description: The attempt's number.
  type: int
  returned: success
ended:
  description: The nodes on which the run is over and whose logs are not all on the controller.
  type: list
  elements: str
  returned: success
goes_on:
  description: The nodes on which the run goes on.
  type: list
  elements: str
  returned: success
silent:
  description: The nodes that did not answer.
  type: list
  elements: str
  returned: success
follow:
  description: The nodes that are to be followed.
  type: list
  elements: str
  returned: success
"""
