# SPDX-License-Identifier: Apache-2.0
"""The replacement nodes that were not ready for the attempt.

They are found by what a playbook has met. Pure. Nodes that took part in the previous attempt are
known to work. A node that takes a place and then keeps the attempt from its start (its preflight
names it, or what it lacked could not be installed) counts as failed: otherwise each further try
would choose it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

# What is proven between nodes: where it fails it names the others, too, and those have trained
# together.
BETWEEN = ("network", "rehearsal")


class Replacements:
    """The replacement nodes of one playbook, and the events in their order."""

    def __init__(self) -> None:
        self.run: str = ""
        self.state_dir: str = ""
        self._nodes: Sequence[str] = ()
        self._new: set[str] = set()
        self._refused: dict[str, str] = {}
        self._play = 0
        # play, task, {node: why}
        self._first_failure: tuple[int | None, str, dict[str, str]] = (None, "", {})

    def note_choice(self, choice: Mapping[str, Any]) -> None:
        """Note the choice of library/node_replacement.py: {run, state_dir, nodes, new}."""
        self.run = choice["run"]
        self.state_dir = choice["state_dir"]
        self._nodes = choice["nodes"]
        self._new = set(choice["new"])

    def note_start(self) -> None:
        """Note that the attempt has been started: its verdict says how it ends."""
        self._new = set()

    def note_play(self) -> None:
        """Note that another play begins.

        What failed in the one before was made good, or no play would come after it.
        """
        self._play += 1

    def note_failure(self, task: str, node: str, why: str) -> None:
        """Note that a task has failed on a node.

        task: its identity. why: in words. Only the first failed task of a play counts:
        others follow from it.
        """
        if self._first_failure[0] != self._play:
            self._first_failure = (self._play, task, {})
        _play, first_task, nodes = self._first_failure
        if first_task == task:
            nodes[node] = why

    def note_refusal(self, stops: Iterable[Mapping[str, Any]]) -> None:
        """Note that a preflight has refused the attempt.

        stops: [{check, nodes}] of the findings with which nothing may start.
        """
        old = set(self._nodes) - self._new
        for item in stops:
            # a problem of all nodes is not the replacement's
            if item["check"] in BETWEEN or not old <= set(item["nodes"]) or not old:
                for node in item["nodes"]:
                    self._refused.setdefault(node, item["check"])

    def unready(self, failed: Collection[str]) -> dict[str, str]:
        """Return {node: why} of the replacement nodes that were not ready.

        failed: the nodes on which the playbook failed in the end.
        """
        _play, _task, nodes = self._first_failure
        reasons = {node: why for node, why in nodes.items() if node in failed}
        if len(reasons) == len(self._nodes) and set(reasons) - self._new:
            reasons = {}
        reasons.update(self._refused)
        return {
            node: f"not ready: {reasons[node]}"
            for node in self._nodes
            if node in self._new and node in reasons
        }
