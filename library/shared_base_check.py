#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Refuse nodes that share one product directory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_base_check
short_description: Refuse nodes that share one product directory
description:
  - Fails where two nodes have one product directory, since each would write over the other's runs, environments and trees.
  - Runs on the controller and changes nothing.
options:
  facts: {description: "{node: the C(found) that M(product_directory_info) returned there}.", type: dict, required: true}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Stop where two nodes have one product directory
  shared_base_check:
    facts: {node1: "{{ hostvars.node1.preflight_base.found }}"}
"""

RETURN = "{}"
