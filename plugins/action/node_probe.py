# SPDX-License-Identifier: GPL-3.0-or-later
"""Run node_probe on a node and note the controller's time before and after: only the controller
can; see library/node_probe.py for the documentation.
"""

from __future__ import annotations

import os
import time

import ansible.module_utils
from ansible.plugins.action import ActionBase

# ansible.cfg's module_utils is for modules; a plugin has to find the product's package by itself.
_CORE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "module_utils")
if _CORE not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_CORE)
from ansible.module_utils.trainyard.gate import answer_gate


class ActionModule(answer_gate.Gated, ActionBase):
    """The module's result, with facts.sent and facts.received (unix seconds), between which all
    that it tells was read.
    """

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        sent = time.time()
        result.update(self._execute_module(module_name="node_probe", task_vars=task_vars))
        if "facts" in result:
            result["facts"].update(sent=sent, received=time.time())
        return result
