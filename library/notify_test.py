#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Send a test event to the receivers of a site."""

from __future__ import annotations

DOCUMENTATION = r"""
module: notify_test
short_description: Send a test event to the receivers of a site
description:
  - Reads C(trainyard_notify) of the first node of the group C(trainers), sends the event C(test) to
    each receiver whatever its C(on) says, and waits for the answers.
  - Fails if a receiver does not take it, or if the site has no receiver.
author: Trainyard
"""

EXAMPLES = r"""
- name: Tell every receiver of the site
  notify_test:
"""

RETURN = r"""
told:
  description: The receivers that took the event, without the secrets of their addresses.
  type: list
  elements: str
  returned: always
problems:
  description: A sentence for each receiver that did not.
  type: list
  elements: str
  returned: always
"""
