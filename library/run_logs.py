#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin run_logs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_logs
short_description: Select, fetch, show and follow the logs of a run
description:
  - The options of C(logs.yml) are C(rank), C(node), C(lines), C(follow) and C(query). They are read
    from the command line (C(-e)) as data. Nothing in them is templated.
  - What is printed is safe to show. Secrets are masked, control bytes and what is not UTF-8
    escaped, very long lines cut with a mark.
  - Runs on the controller as an action plugin. Only V(found), V(brought) and V(followed) open a
    connection, one task per node.
options:
  state:
    description:
      - V(asked) compares the command line with the site and with what is on the controller, before
        a node is contacted, and returns the nodes to ask.
      - V(found) asks a node for the run.
      - V(chosen) returns the run, the nodes whose logs are to be fetched, and the nodes to follow.
      - V(brought) fetches what there is of the logs of a node on which the run goes on, unless
        another process fetches them already.
      - V(shown) prints the answer, the ends of logs merged by the times in them, or where all logs
        lie.
      - V(followed) fetches a node's logs as they grow and prints their lines as they come,
        until the run has ended there.
    type: str
    choices: [asked, found, chosen, brought, shown, followed]
    required: true
  asked:
    description: What V(asked) returned.
    type: dict
  chosen:
    description: What V(chosen) returned.
    type: dict
  offsets:
    description: How far each log has been shown already (name and bytes).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Reads only, apart from the logs that V(followed) fetches.
  action:
    support: full
    description: Runs on the controller.
author: Trainyard
"""

EXAMPLES = r"""
- name: Ask the node for the run
  run_logs: {state: found, asked: "{{ logs_question }}"}
  register: logs_attempt_status

- name: Print what is asked
  run_logs: {state: shown, chosen: "{{ logs_choice }}"}
  register: logs_page
"""

RETURN = r"""
run:
  description: The run's id.
  type: str
  returned: asked and chosen
ask:
  description: The nodes that are to be asked; empty where everything is on the controller.
  type: list
  elements: str
  returned: asked
status:
  description: What M(attempt_monitor) says.
  type: dict
  returned: found
number:
  description: The attempt's number.
  type: int
  returned: chosen
ended:
  description: The nodes on which the run is over and whose logs are not all on the controller.
  type: list
  elements: str
  returned: chosen
goes_on:
  description: The nodes on which the run goes on.
  type: list
  elements: str
  returned: chosen
follow:
  description: Those of them that are to be followed.
  type: list
  elements: str
  returned: chosen
offsets:
  description: How far each log has been shown (name and bytes).
  type: dict
  returned: shown
bytes:
  description: Bytes of logs that came over the wire.
  type: int
  returned: brought
brought:
  description: Whether this process has fetched the logs.
  type: bool
  returned: followed
lines:
  description: Lines that were printed.
  type: int
  returned: followed
problem:
  description: What was wrong with the stream at its end.
  type: str
  returned: followed
"""
