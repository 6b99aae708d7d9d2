#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Pull named files from a node into a run's directory on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fetch_files
short_description: Pull named files from a node with rsync, within bounds
description:
  - An action plugin of the same name does all of it on the controller; no module runs on the node.
  - File names come from the node and are not trusted. They must pass one rule (no leading
    dash, no C(..), no control character, bounded length and depth), and rsync reads them from its
    standard input. No name stands on a command line.
  - rsync logs in as Ansible's connection does, with its options, keys, ports, jump hosts and
    control path. Links, devices and pipes do not come.
  - A node that passes a bound is cut off with a warning, and the task does not fail. What has not
    come stays on the node.
options:
  src:
    description: The directory on the node; a relative path starts at the user's home.
    type: str
    required: true
  root:
    description: The attempt's directory on the controller, C(runs/<run id>/attempt-1).
    type: str
    required: true
  into:
    description: Directory below O(root) that the files come to; it is opened without following
      links.
    type: str
    required: true
  sizes:
    description: File below O(src) to its size in bytes, as the node announced it. A file that grew
      since may be 64 MiB larger.
    type: dict
    required: true
  bytes:
    description: Most bytes of all files, as a number or with KiB, MiB, GiB or TiB.
    type: str
    default: "21474836480"
  files:
    description: Most files.
    type: int
    default: 2000
  free:
    description: Bytes that stay free on the controller's file system, as O(bytes).
    type: str
    default: "5368709120"
  partial:
    description: Keep what came of a file when the copy is interrupted; the next copy goes on from
      it.
    type: bool
    default: false
  compare:
    description: Compare what is here block by block, also where size and time are the same, and
      keep holes.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Copies nothing.
author: Trainyard
"""

EXAMPLES = r"""
- name: Copy the raw logs that are missing
  fetch_files:
    src: .trainyard/runs/20261120-103501-ppyoloe-1f2e/attempt-1
    root: /home/user/runs/20261120-103501-ppyoloe-1f2e/attempt-1
    into: ".incoming/{{ inventory_hostname }}"
    sizes: {log/workerlog.0: 123456}
    compare: true
"""

RETURN = r"""
brought:
  description: The files that lie in O(into) now.
  type: list
  elements: str
  returned: success
cut:
  description: Why the node was cut off; '' where it was not.
  type: str
  returned: always
"""
