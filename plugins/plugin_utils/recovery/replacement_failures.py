# SPDX-License-Identifier: Apache-2.0
"""The replacement nodes that were not ready for the attempt.

They are found by what a playbook has met. Pure. Nodes that took part in the previous attempt are
known to work. A node that takes a place and then keeps the attempt from its start (its preflight
names it, or what it lacked could not be installed) counts as failed: otherwise each further try
would choose it again.
"""

from __future__ import annotations

# What is proven between nodes: where it fails it names the others, too, and those have trained
# together.
BETWEEN = ("network", "rehearsal")


class Newcomers:
    """The events of one playbook, in their order."""

    def __init__(self):
        self.run = None
        self.state_dir = None
        self._nodes = ()
        self._new = set()
        self._refused = {}
        self._play = 0
        self._first_failure = (None, "", {})  # play, task, {node: why}

    def chosen(self, said):
        """Note what library/node_replacement.py chose: {run, state_dir, nodes, new}."""
        self.run = said["run"]
        self.state_dir = said["state_dir"]
        self._nodes = said["nodes"]
        self._new = set(said["new"])

    def begun(self):
        """Note that the attempt has been started: its verdict says how it ends."""
        self._new = set()

    def play(self):
        """Note that another play begins.

        What failed in the one before was made good, or no play would come after it.
        """
        self._play += 1

    def failed(self, task, node, why):
        """Note that a task has failed on a node.

        task: its identity. why: in words. Only the first failed task of a play counts:
        others follow from it.
        """
        if self._first_failure[0] != self._play:
            self._first_failure = (self._play, task, {})
        _play, first_task, nodes = self._first_failure
        if first_task == task:
            nodes[node] = why

    def stopped(self, stops):
        """Note that a preflight has refused the attempt.

        stops: [{check, nodes}] of the findings with which nothing may start.
        """
        old = set(self._nodes) - self._new
        for item in stops:
            # a problem of all of them is not the newcomer's
            if item["check"] in BETWEEN or not old <= set(item["nodes"]) or not old:
                for node in item["nodes"]:
                    self._refused.setdefault(node, item["check"])

    def unready(self, failed):
        """Return {node: why} of the newcomers that were not ready.

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
