# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep this controller's plan and job of a run, or take another's from the nodes; see
library/run_plan.py for the documentation.
"""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import (
    plan_directory,
)

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
            changed, problems = plan_directory.take(attempt, given["digests"], given["site"])
            for text in problems:
                self._display.warning(text)
        result.update(changed=changed, lacking=plan_directory.lacking(attempt))
        return result
