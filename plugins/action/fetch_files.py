# SPDX-License-Identifier: GPL-3.0-or-later
"""Pull named files from a node into a run's directory on the controller.

See library/fetch_files.py for the documentation.
"""

from __future__ import annotations

import shutil

from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.modules.fetch_files import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import fetcher, log_receiver


class ActionModule(ControllerAction):
    """Run rsync on the controller against the node behind this task's connection."""

    _requires_connection = True

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Return the names of the copied files, and why a node was cut off."""
        result: Result = {"changed": False, "brought": [], "cut": ""}
        if self.check_mode or not arguments["sizes"]:
            return result
        node = self.task_vars["inventory_hostname"]
        try:
            result["brought"] = self._fetch(arguments)
            result["changed"] = bool(result["brought"])
        except fetcher.BoundExceeded as error:
            result["cut"] = printable(str(error))
            self._display.warning(
                f"{node} was cut off while its files came: {result['cut']}; what is missing stays"
                " on the node"
            )
        except (fetcher.FetchError, safe_names.UnsafeName, ValueError, OSError) as error:
            self.fail(printable(f"the files of {node} did not come: {error}"), **result)
        return result

    def _fetch(self, arguments: Arguments) -> list[str]:
        """Return the names of the files that came."""
        options = []
        if arguments["partial"]:
            options += ["--partial"]
        if arguments["compare"]:
            options += ["--ignore-times", "--sparse"]
        bounds = quota.Quota(arguments["bytes"], arguments["files"], arguments["free"])
        shell, host, password = self._login()
        return fetcher.fetch(
            shell,
            fetcher.source_of(host, arguments["src"]),
            arguments["root"],
            arguments["into"],
            arguments["sizes"],
            bounds,
            options,
            password,
        )

    def _login(self) -> tuple[list[str] | None, str | None, str | None]:
        """Return (words of ssh, host, password) of this task's connection.

        For this machine itself each is missing (None).
        """
        transport = getattr(self._connection, "transport", "")
        if transport == "local":
            return None, None, None
        if transport != "ssh":
            raise fetcher.FetchError(
                f"files come over connections of type ssh; this one is {transport}"
            )
        password = self._connection.get_option("password")
        if not password or not shutil.which("sshpass"):
            words, host = log_receiver.ssh_command(self._connection, batch=True)
            return words, host, None
        words, host = log_receiver.ssh_command(self._connection, batch=False)
        return words, host, str(password)
