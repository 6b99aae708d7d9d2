# SPDX-License-Identifier: Apache-2.0
"""Choice of the node that a tree is fetched from, where one of them is slow.

Pure. A node that has a slow link, disk or processor would keep all nodes behind it in the chain as
slow as itself. So each node compares the rates of some sources where much is left to come. Two
sources of one chain usually have the same rate, that of the chain. Then the first one stays.
"""

from __future__ import annotations

# A source is judged by what comes from it in so many seconds.
TRIAL_SECONDS = 3
# No other source is tried where the rest comes within so many seconds.
PATIENCE_SECONDS = 15
# Sources that are compared with each other, and how much faster another one has to be.
MOST_COMPARED = 3
BETTER = 1.5
# All are compared again where the chosen one has become slower by this factor.
WORSE = 2


class SourceChoice:
    """The source that is asked at present (`node`, None where all have failed).

    nodes: in the order in which they are asked.
    """

    def __init__(self, nodes):
        self.nodes = list(nodes)
        # {node: bytes per second} of those that are compared, and that of the chosen one.
        self.rates, self.chosen = {}, None
        self._take_first()

    def _take_first(self):
        self.node = next(iter(self.nodes), None)

    def fail(self):
        """Give the present source up for good."""
        self.nodes.remove(self.node)
        self.rates, self.chosen = {}, None
        self._take_first()

    def leaves(self, rate, rest):
        """Note the present source's rate, and return whether another one is asked now.

        rate: bytes per second of one trial. rest: bytes that are still missing. A source that sends
        nothing is not slow: it waits for others, and is left after the seconds of `stall`.
        """
        if not rate:
            return False
        if self.chosen is not None:
            if rate * WORSE >= self.chosen:
                return False
            self.rates, self.chosen = {}, None
        before = max(self.rates.values(), default=0)
        self.rates[self.node] = rate
        if rest <= rate * PATIENCE_SECONDS:
            return False
        others = [node for node in self.nodes if node not in self.rates]
        if others and len(self.rates) < MOST_COMPARED and rate >= BETTER * before:
            self.node = others[0]
            return True
        return self._choose()

    def _choose(self):
        """Take the best of those that were compared, and return whether it is another one."""
        present, compared = self.node, [node for node in self.nodes if node in self.rates]
        self.node = compared[0]
        for node in compared[1:]:
            if self.rates[node] >= BETTER * self.rates[self.node]:
                self.node = node
        self.chosen = self.rates[self.node]
        return self.node != present
