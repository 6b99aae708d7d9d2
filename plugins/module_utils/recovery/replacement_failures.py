# SPDX-License-Identifier: Apache-2.0
"""Which of the nodes that stand in for others were not ready for the attempt, by what a playbook
has met. Pure, controller only.

Who trained until now has shown that he can. A node that takes a place and then keeps the attempt
from its start (its preflight names it, or what it lacked could not be brought) counts as failed:
otherwise each further try would choose it again.
"""

from __future__ import annotations

# What is proven between nodes: where it fails it names the others, too, and those have trained
# together.
BETWEEN = ("network", "rehearsal")


class Newcomers:
    """What one playbook meets, in its order."""

    def __init__(self):
        self.run, self.state_dir, self._nodes, self._new, self._named, self._play, self._first = (
            None,
            None,
            (),
            set(),
            {},
            0,
            None,
        )

    def chosen(self, said):
        """Take in what library/replacement.py chose: {run, state_dir, nodes, new}."""
        self.run, self.state_dir, self._nodes, self._new = (
            said["run"],
            said["state_dir"],
            said["nodes"],
            set(said["new"]),
        )

    def begun(self):
        """The attempt has been started; how it ends is its verdict's to say."""
        self._new = set()

    def play(self):
        """Another play begins: what failed in the one before was made good, or no play would come
        after it.
        """
        self._play += 1

    def failed(self, task, node, why):
        """A task has failed on a node. task: what tells it from others; why: in words. Only the
        first one of a play counts: others follow from it.
        """
        if not self._first or self._first[0] != self._play:
            self._first = (self._play, task, {})
        if self._first[1] == task:
            self._first[2][node] = why

    def stopped(self, stops):
        """A preflight has refused the attempt. stops: [{check, nodes}] of the findings with which
        nothing may start.
        """
        old = set(self._nodes) - self._new
        for item in stops:
            # what is wrong with all of them is not the newcomer's
            if item["check"] in BETWEEN or not old <= set(item["nodes"]) or not old:
                self._named.update(
                    {node: item["check"] for node in item["nodes"] if node not in self._named}
                )

    def unready(self, failed):
        """Return {node: why} of the newcomers that were not ready. failed: the nodes on which the
        playbook failed in the end.
        """
        own = {node: why for node, why in (self._first or (0, "", {}))[2].items() if node in failed}
        if len(own) == len(self._nodes) and set(own) - self._new:
            own = {}
        found = dict(own, **self._named)
        return {
            node: f"not ready: {found[node]}"
            for node in self._nodes
            if node in self._new and node in found
        }
