# SPDX-License-Identifier: Apache-2.0
"""Topology of the network check: which node connects to which.

Pure. It stands apart because the nodes need it and do not have what the plan imports.

Ring and star to the first node are O(N). A rule that cuts off one other pair is found by the full
matrix (-e matrix=true) only.
"""

from __future__ import annotations


def targets(names, node, matrix=False):
    """Return the nodes that one node connects to.

    They are the first node and both neighbours in the ring, or all nodes with matrix=True. names:
    all nodes in the order of their ranks.
    """
    at = names.index(node)
    if matrix:
        return names[at + 1 :] + names[:at]
    peers = [names[(at + 1) % len(names)], names[at - 1], names[0]]
    return [name for name in dict.fromkeys(peers) if name != node]


def rounds(names, node, matrix=False):
    """Return the nodes that one node sends data to, in the order of the rounds.

    In every round each node sends to one node and receives from one.
    """
    at, count = names.index(node), len(names)
    if not matrix:
        count = min(2, count)
    return [names[(at + step) % len(names)] for step in range(1, count)]
