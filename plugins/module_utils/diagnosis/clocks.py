# SPDX-License-Identifier: Apache-2.0
"""Times on the clocks of several nodes, which are never quite one.

Clocks that are far apart are measured by the answers of the nodes, and their times corrected.
"""

from __future__ import annotations

from ..attempts.ownership import BY_NODES

# seconds between two nodes' clocks from which times are corrected; less is the time it takes to ask
# them
CLOCKS_APART = 10.0
STARTS_APART = 30.0  # seconds within which the launchers of one attempt are started
# seconds by which one death must precede another on the same node to be the earlier one
BEFORE = 0.5
BEFORE_ELSEWHERE = 3.0  # the same between two nodes, whose clocks are not quite one


def measure_clocks(answers):
    """Return {node: seconds that its clock is ahead of the middle one}.

    Differences that asking the nodes explains count as 0.
    answers: {node: what rank_logs_info returned}.
    """
    ahead = _compare_clocks(answers)
    _excuse_late_answers(answers, ahead)
    _correct_stopped_nodes(answers, ahead)
    return ahead


def _compare_clocks(answers):
    """Return {node: seconds ahead of the middle clock} as the nodes' answers show it."""
    now = {name: node["now"] for name, node in answers.items() if node.get("now") is not None}
    middle = _lower_median(now.values())
    ahead = {}
    for name, value in now.items():
        ahead[name] = 0.0
        if abs(value - middle) >= CLOCKS_APART:
            ahead[name] = value - middle
    return ahead


def _lower_median(values):
    """Return the middle one of some numbers, the lower one of two, 0 of none."""
    if not values:
        return 0.0
    return sorted(values)[(len(values) - 1) // 2]


def _excuse_late_answers(answers, ahead):
    """Set the clocks to 0 that only seem to be wrong because the node was asked late.

    Nodes beyond Ansible's forks are asked later. Launchers are started all at once: where they
    agree, it is the question that came late.
    """
    starts = {name: (node.get("launcher") or {}).get("started") for name, node in answers.items()}
    middle = _lower_median([when for when in starts.values() if when is not None])
    for name in ahead:
        start = starts.get(name)
        if start is not None and abs(start - middle - ahead[name]) >= STARTS_APART:
            ahead[name] = 0.0


def _correct_stopped_nodes(answers, ahead):
    """Correct the clocks of nodes that seem to be stopped too early.

    They seem to be stopped before the peer that stopped them ended. Such a clock is behind by at
    least the difference.
    """
    for name in ahead:
        delay = _delay_after_peer(answers, ahead, name)
        if delay < -1.0:
            ahead[name] += delay


def _delay_after_peer(answers, ahead, name):
    """Return the seconds from a peer's end to the stop that it asked for.

    It is 0 where that is unknown.
    """
    unit = answers[name].get("exit") or {}
    if unit.get("stopped_by") != "peer" or unit.get("stopped_at") is None:
        return 0.0
    ends = [_end_of(answers, ahead, unit.get("stopped_from"))]
    if unit.get("stopped_from") == BY_NODES:
        # The supervisors of the run, after the first end that nobody asked for.
        ends = [_end_of(answers, ahead, other, True) for other in answers if other != name]
    known = [when for when in ends if when is not None]
    if not known:
        return 0.0
    delay = unit["stopped_at"] - ahead[name] - min(known)
    if unit.get("stopped_from") == BY_NODES and delay <= -CLOCKS_APART:
        # Such a clock is measured. They stop an attempt as well because a node says nothing, which
        # ends later.
        return 0.0
    return delay


def _end_of(answers, ahead, name, unforced=False):
    """Return the time at which a node's attempt ended, by the middle clock, None where unknown.

    A guard stops the peers before its own node ends, so its node's end says nothing. unforced: only
    of an attempt that nobody stopped.
    """
    unit = (answers.get(name) or {}).get("exit") or {}
    stopper = unit.get("stopped_by")
    if stopper == "guard" or (unforced and stopper) or unit.get("time") is None:
        return None
    return unit["time"] - ahead.get(name, 0.0)
