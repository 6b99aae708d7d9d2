#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin logs_show."""

from __future__ import annotations

DOCUMENTATION = r"""
module: logs_show
short_description: Show the logs of a run
description:
  - Prints the answer to a query, the ends of logs merged by the times in them, or where all logs
    lie.
  - What is printed is safe to show. Secrets are masked, control bytes and what is not UTF-8
    escaped, very long lines cut with a mark.
  - The options of C(logs.yml) are C(rank), C(node), C(lines), C(follow) and C(query). They are read
    from the command line (C(-e)) as data. Nothing in them is templated.
options:
  choice:
    description: What M(logs_choice) returned.
    type: dict
    required: true
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
- name: Show the answer
  logs_show: {choice: "{{ logs_choice }}"}
  register: logs_page
"""

RETURN = r"""
offsets:
  description: How far each log has been shown (name and bytes).
  type: dict
  returned: success
"""
