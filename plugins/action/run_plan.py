# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep this controller's plan and job of a run, or take another's from the nodes; see
library/run_plan.py for the documentation.
"""

from __future__ import annotations

import os

import ansible.module_utils
from ansible.plugins.action import ActionBase

# ansible.cfg's module_utils is for modules; a plugin has to find the product's package by itself.
_CORE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "module_utils")
if _CORE not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_CORE)
from ansible.module_utils.trainyard.base.untag import plain
from ansible.module_utils.trainyard.runs import plan_directory as plan_home

SPEC = {
    "state": {"type": "str", "choices": ["looked", "taken"], "required": True},
    "attempt_dir": {"type": "path", "required": True},
    "digests": {"type": "dict", "default": {}},
    "site": {"type": "list", "elements": "str", "default": []},
}


class ActionModule(ActionBase):
    """The schemas and the suites' tables lie beside this plugin and do not travel with a module; so
    this is none.
    """

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _checked, given = self.validate_argument_spec(argument_spec=SPEC)
        given, changed = plain(given), False
        attempt = given["attempt_dir"]
        if given["state"] == "taken" and not self._task.check_mode:
            changed, problems = plan_home.take(attempt, given["digests"], given["site"])
            for text in problems:
                self._display.warning(text)
        result.update(changed=changed, lacking=plan_home.lacking(attempt))
        return result
