#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin logs_run_info."""

from __future__ import annotations

DOCUMENTATION = r"""
module: logs_run_info
short_description: Ask a node for the run whose logs are wanted
description:
  - Opens a connection to the node and runs M(attempt_monitor) there, without a live view.
  - The options of C(logs.yml) are C(rank), C(node), C(lines), C(follow) and C(query). They are read
    from the command line (C(-e)) as data. Nothing in them is templated.
options:
  run:
    description: The run's id, or '' for the one that owns the node.
    type: str
    default: ""
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
- name: Query the node for the run
  logs_run_info: {run: "{{ logs_question.run }}"}
  register: logs_attempt_status
"""

RETURN = r"""
status:
  description: What M(attempt_monitor) says.
  type: dict
  returned: success
"""
