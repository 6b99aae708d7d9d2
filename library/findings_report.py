#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Show the findings of a check."""

from __future__ import annotations

DOCUMENTATION = r"""
module: findings_report
short_description: Show all findings of a check as one table
description:
  - Runs on the controller. Fails with the table where a finding keeps a training from starting.
options:
  findings:
    description: The findings, see plugins/module_utils/base/findings.py.
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    support: full
    description: Shows only.
author: Trainyard
"""

EXAMPLES = r"""
- name: Show the findings
  findings_report:
    findings:
      - check: clock
        level: warn
        nodes: [node1]
        text: is 31 s ahead
        remedy: start an NTP service
"""

RETURN = r"""
lines:
  description: The table, and READY or NOT READY as its last line.
  type: list
  elements: str
  returned: success
"""
