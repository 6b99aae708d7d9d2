# SPDX-License-Identifier: GPL-3.0-or-later
"""Send a tree to a node, from the controller or from another node.

Documented in library/tree_send.py.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_json
from ansible_collections.trainyard.cluster.plugins.modules.tree_send import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import (
    tree_progress,
    tree_route,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import log_receiver

SYNCHRONIZE = "ansible.posix.synchronize"


class ActionModule(answer_gate.Gated, ControllerAction):
    """Have the node ask the nodes before it, and send it from here what none of them gives."""

    _requires_connection = True

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Return where the tree came from."""
        with self._progress(arguments):
            return self._send(arguments)

    def _progress(self, arguments: Arguments) -> tree_progress.Progress:
        """Return what shows a line now and then while the tree comes to the node."""
        node, staging = self.task_vars["inventory_hostname"], arguments["staging"]
        if getattr(self._connection, "transport", "") == "ssh":
            words, host = log_receiver.ssh_command(self._connection)
            # Without a terminal nothing ends it on the node when ssh is ended here.
            look = f"timeout {tree_progress.LOOK_SECONDS} nice -n 19 du -sb -- "
            command = [*words, host, look + shlex.quote(staging)]
        else:
            command = ["du", "-sb", "--", os.path.expanduser(staging)]
        return tree_progress.Progress(
            arguments["tree"],
            command,
            lambda line: self._display.display(f"{node}: {line}"),
            max(tree_progress.INTERVAL_SECONDS, len(arguments["chain"])),
        )

    def _send(self, arguments: Arguments) -> Result:
        """Send the tree and return where it came from."""
        tree, node = arguments["tree"], self.task_vars["inventory_hostname"]
        self._place = os.path.join(arguments["cache_dir"], "manifests", tree["digest"])
        self._own = {"base": arguments["base"], "kind": tree["kind"], "digest": tree["digest"]}
        chain = arguments["chain"]
        sources = tree_route.sources_of(node, tree["bytes"], chain, arguments["holders"])
        said: list[str] = []
        if sources:
            fetched = self._ask(
                "tree_fetch",
                sources=sources,
                stall=tree_route.stall_seconds(node, chain),
                manifest_bytes=os.path.getsize(self._place + ".json"),
            )
            if fetched.get("failed") or fetched.get("complete") or self.check_mode:
                return {**fetched, "origin": "nodes"}
            said = fetched["said"]
            # Without a mesh every tree comes from here. That is no event.
            if fetched["changed"]:
                self._display.warning(
                    f"{node} gets {tree['kind']} {tree['name']} from the controller, since no other"
                    f" node gave all of it: {'; '.join(said)}"
                )
        sent = self._push(tree, arguments["staging"])
        return {**sent, "said": said, "origin": "controller"}

    def _ask(self, module: str, **arguments: Any) -> Result:
        """Run a module of the tree on the node, and return its answer."""
        name, given = f"trainyard.cluster.{module}", {**self._own, **arguments}
        answer: Result = self._execute_module(name, given, task_vars=self.task_vars)
        return answer

    def _push(self, tree: Arguments, staging: str) -> Result:
        """Send from here what the node lacks of the tree."""
        entries = read_json(self._place + ".json", manifest.TREE_BYTES)
        if not isinstance(entries, dict):
            self.fail(f"{self._place}.json is not readable; start again")
        begun = self._ask("tree_install", state="begun", manifest=entries)
        missing = begun.get("missing")
        if begun.get("failed") or missing == []:
            return begun
        if missing is None:
            return self._synchronize(tree, self._place + ".files", staging)
        with tempfile.NamedTemporaryFile("w", prefix="trainyard-", encoding="utf-8") as names:
            names.write(tree_route.missing_names(entries, missing))
            names.flush()
            return self._synchronize(tree, names.name, staging)

    def _synchronize(self, tree: Arguments, names: str, staging: str) -> Result:
        """Send files of the tree by rsync. names: path of their list."""
        task = self._task.copy()
        task.action = SYNCHRONIZE
        task.args = tree_route.synchronize_arguments(tree, names, staging)
        action = self._shared_loader_obj.action_loader.get(
            SYNCHRONIZE,
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        sent: Result = action.run(task_vars=self.task_vars)
        if sent.get("failed"):
            self._ask("tree_install", state="withdrawn")  # the next nodes wait for it
        return sent
