# SPDX-License-Identifier: Apache-2.0
"""Isolation of nodes' answers that cannot be judged.

They cost their own node's part and nothing else. Pure. The gate checks the form of an answer. It
cannot check everything that a judge relies on, so answers that raise where they are judged are kept
apart by node.
"""

from __future__ import annotations

# Data of another shape than expected raises these. Anything else is a defect of this program.
RAISED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def judge_apart(judge, names):
    """Return (what judge gives, names that are left out).

    judge(names) judges the answers of these nodes alone. A node that makes the judge raise alone is
    left out. Where the others raise only together, each of them without which they do not is left
    out: it cannot be known which of these answers is wrong. Where no single one helps, all are left
    out.
    """
    names = list(names)
    try:
        return judge(names), []
    except RAISED:
        kept = [name for name in names if _can_judge(judge, [name])]
    if not _can_judge(judge, kept):
        odd = [
            name for name in kept if _can_judge(judge, [other for other in kept if other != name])
        ]
        kept = [name for name in kept if name not in odd]
        if not _can_judge(judge, kept):
            kept = []
    return judge(kept), [name for name in names if name not in kept]


def _can_judge(judge, names):
    """Return True if the answers of these nodes can be judged together."""
    try:
        judge(names)
    except RAISED:
        return False
    return True
