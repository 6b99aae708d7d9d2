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
# All are compared again where the chosen one has become slower by this factor, after so many looks
# at it. Each time it takes twice as many looks.
WORSE = 2
FIRST_LOOKS = 10


class SourceChoice:
    """The source that is asked at present (`node`, None where all have failed).

    nodes: in the order in which they are asked.
    """

    def __init__(self, nodes):
        self.nodes = list(nodes)
        self.node = next(iter(self.nodes), None)
        # {node: bytes per second} of those that are compared, and the best one of the chosen.
        self.rates, self.chosen = {}, None
        self.looks, self.least_looks = 0, FIRST_LOOKS

    def is_comparing(self):
        """Return whether the present source is tried, while another one is known to work."""
        return self.chosen is None and any(node != self.node for node in self.rates)

    def fail(self):
        """Give the present source up for good."""
        self.nodes.remove(self.node)
        self.rates.pop(self.node, None)
        self.chosen = None
        if self.rates:
            self._choose()
        else:
            self.node = next(iter(self.nodes), None)

    def leaves(self, rate, rest):
        """Note the present source's rate, and return whether another one is asked now.

        rate: bytes per second of one trial. rest: bytes that are still missing. The only source
        that is known is not left because it sends nothing: it waits for others, and is left after
        the seconds of `stall`.
        """
        if self.chosen is not None and not self._has_become_slow(rate):
            return False
        compares = self.is_comparing()
        if not compares and not rate:
            return False
        if rest <= rate * PATIENCE_SECONDS:
            return False
        before = max(self.rates.values(), default=0)
        self.rates[self.node] = rate
        others = [node for node in self.nodes if node not in self.rates]
        if others and len(self.rates) < MOST_COMPARED and rate >= BETTER * before:
            self.node = others[0]
            return True
        return self._choose()

    def _has_become_slow(self, rate):
        """Return whether the chosen source is to be compared with others again."""
        self.chosen = max(self.chosen, rate)
        self.looks += 1
        if rate * WORSE >= self.chosen or self.looks < self.least_looks:
            return False
        self.least_looks *= 2
        self.rates, self.chosen = {}, None
        return True

    def _choose(self):
        """Take the best of those that were compared, and return whether it is another one."""
        present, compared = self.node, [node for node in self.nodes if node in self.rates]
        self.node = compared[0]
        for node in compared[1:]:
            if self.rates[node] >= BETTER * self.rates[self.node]:
                self.node = node
        self.chosen, self.looks = self.rates[self.node], 0
        return self.node != present
