#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin logs_follow."""

from __future__ import annotations

DOCUMENTATION = r"""
module: logs_follow
short_description: Copy a node's logs while the run goes on, and print them
description:
  - Opens a connection to the node and copies its logs, unless another process copies them already.
  - With O(follow), copies them as they grow and prints their lines as they come, until the run has
    ended there.
  - The options of C(logs.yml) are C(rank), C(node), C(lines), C(follow) and C(query). They are read
    from the command line (C(-e)) as data. Nothing in them is templated.
options:
  choice:
    description: What M(logs_choice) returned.
    type: dict
    required: true
  follow:
    description: Follow the logs until the run has ended on the node. When false, copy what there is.
    type: bool
    default: true
  offsets:
    description: How far each log has been shown already (name and bytes).
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Copies nothing without O(follow). With it, copies the logs that it prints.
  action:
    support: full
    description: Runs on the controller.
author: Trainyard
"""

EXAMPLES = r"""
- name: Follow the run's logs until it ends
  logs_follow: {choice: "{{ logs_choice }}", offsets: "{{ logs_page.offsets }}"}
"""

RETURN = r"""
bytes:
  description: Bytes of logs that came over the wire.
  type: int
  returned: with follow false
brought:
  description: Whether this process has copied the logs.
  type: bool
  returned: with follow true
lines:
  description: Lines that were printed.
  type: int
  returned: success
problem:
  description: What was wrong with the stream at its end.
  type: str
  returned: success
"""
