# SPDX-License-Identifier: GPL-3.0-or-later
"""Pull named files from a node into a run's directory on the controller; see library/fetch_files.py
for the documentation.
"""

from __future__ import annotations

import shutil

from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.module_utils.logsync import (
    fetcher,
    log_receiver,
)

SPEC = {
    "src": {"type": "str", "required": True},
    "root": {"type": "str", "required": True},
    "into": {"type": "str", "required": True},
    "sizes": {"type": "dict", "required": True},
    "bytes": {"type": "str", "default": str(quota.BYTES)},
    "files": {"type": "int", "default": quota.FILES},
    "free": {"type": "str", "default": str(quota.FREE)},
    "partial": {"type": "bool", "default": False},
    "compare": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """Run rsync on the controller against the node behind this task's connection."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _checked, given = self.validate_argument_spec(argument_spec=SPEC)
        given = plain(given)
        result.update(changed=False, brought=[], cut="")
        if self._task.check_mode or not given["sizes"]:
            return result
        node = task_vars["inventory_hostname"]
        options = (["--partial"] if given["partial"] else []) + (
            ["--ignore-times", "--sparse"] if given["compare"] else []
        )
        try:
            bounds = quota.Quota(given["bytes"], given["files"], given["free"])
            shell, host, password = self._login()
            source = fetcher.source_of(host, given["src"])
            into = (given["root"], given["into"])
            result["brought"] = fetcher.fetch(
                shell, source, *into, given["sizes"], bounds, options, password
            )
            result["changed"] = bool(result["brought"])
        except fetcher.Cut as error:
            result["cut"] = printable(str(error))
            text = "%s was cut off while its files came: %s; what is missing stays on the node"
            self._display.warning(text % (node, result["cut"]))
        except (fetcher.FetchError, safe_names.UnsafeName, ValueError, OSError) as error:
            result.update(failed=True, msg=printable(f"the files of {node} did not come: {error}"))
        return result

    def _login(self):
        """Return (words of ssh, host, password) of this task's connection; (None, None, None) for
        this machine itself.
        """
        transport = getattr(self._connection, "transport", "")
        if transport == "local":
            return None, None, None
        if transport != "ssh":
            raise fetcher.FetchError(
                f"files come over connections of type ssh; this one is {transport}"
            )
        password = self._connection.get_option("password")
        password = str(password) if password and shutil.which("sshpass") else None
        words, host = log_receiver.ssh_words(self._connection, batch=password is None)
        return words, host, password
