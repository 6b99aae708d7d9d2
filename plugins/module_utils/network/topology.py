# SPDX-License-Identifier: Apache-2.0
"""Who connects to whom to prove the network. Pure, and apart, because the nodes need it and have
not what the plan imports.

Ring and star to the first node are O(N); a rule that cuts off one other pair is found by the full
matrix (-e matrix=true) only.
"""

from __future__ import annotations


def targets(names, node, matrix=False):
    """Return the nodes that this one connects to: the first, its successor and its predecessor in
    the ring, or all; names: in rank order.
    """
    at = names.index(node)
    if matrix:
        return names[at + 1 :] + names[:at]
    wanted = [names[(at + 1) % len(names)], names[at - 1], names[0]]
    return [name for name in dict.fromkeys(wanted) if name != node]


def rounds(names, node, matrix=False):
    """Return the nodes that this one sends data to, in turn; in every round each node sends to one
    and receives from one.
    """
    at = names.index(node)
    return [
        names[(at + step) % len(names)]
        for step in range(1, len(names) if matrix else min(2, len(names)))
    ]
