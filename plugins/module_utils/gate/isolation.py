# SPDX-License-Identifier: Apache-2.0
"""Judge what several nodes answered, so that an answer that cannot be judged costs its own node's
part and nothing else. Pure, controller only.

The gate checks the form of an answer. It cannot check everything that a judge relies on, so what
raises here is kept apart by node.
"""

from __future__ import annotations

# What data of another shape than expected raises. Anything else is a defect of this program.
RAISED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def judge_apart(judge, names):
    """Return (what judge gives, names that are left out); judge(names) judges the answers of these
    nodes alone.

    A node that makes the judge raise by itself is left out. Where the others raise only together,
    each of them without which they do not is left out: nobody can say which of these answers is
    wrong. Where no single one helps, all are left out.
    """
    names = list(names)
    try:
        return judge(names), []
    except RAISED:
        kept = [name for name in names if _holds(judge, [name])]
    if not _holds(judge, kept):
        odd = [name for name in kept if _holds(judge, [other for other in kept if other != name])]
        rest = [name for name in kept if name not in odd]
        kept = rest if _holds(judge, rest) else []
    return judge(kept), [name for name in names if name not in kept]


def _holds(judge, names):
    try:
        judge(names)
    except RAISED:
        return False
    return True
