#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin logs_question."""

from __future__ import annotations

DOCUMENTATION = r"""
module: logs_question
short_description: Compare the question to logs.yml with the site
description:
  - Compares the command line with the site and with what is on the controller, before a node is
    contacted. Refuses a node, a rank or an expression that cannot be.
  - The options of C(logs.yml) are C(rank), C(node), C(lines), C(follow) and C(query). They are read
    from the command line (C(-e)) as data. Nothing in them is templated.
options: {}
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
- name: Refuse a question without an answer
  logs_question: {}
  register: logs_question
"""

RETURN = r"""
run:
  description: The run's id, or '' where none is named.
  type: str
  returned: success
ask:
  description: The nodes that are to be asked; empty where everything is on the controller.
  type: list
  elements: str
  returned: success
"""
