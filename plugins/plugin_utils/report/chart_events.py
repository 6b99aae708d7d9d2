# SPDX-License-Identifier: Apache-2.0
"""The moments of an attempt that a timeline points at. Pure.

They are first errors, losses that are not a number, kills, stops, and nodes that were lost.
"""

from __future__ import annotations

from .json_values import finite_number


def marks_of(attempt, scans, lives):
    """Return [{time, rank, node, text, level}] in order of time.

    level is error, warning or info. `verdict: true` stands at the marks that the verdict names.
    scans: {rank: (curves.Curve, ...)}. lives: {rank: times by the controller's clock}.
    """
    verdict = attempt.record.get("verdict")
    if not isinstance(verdict, dict):
        verdict = {}
    collector = _Marks(verdict)
    for rank, life in lives.items():
        curve = scans.get(rank, (None,))[0]
        _mark_rank(collector, attempt, rank, life, curve)
    for node, unit in attempt.units.items():
        _mark_unit(collector, attempt, node, unit, lives)
    _mark_lost_nodes(collector, verdict.get("unreachable"), attempt.record.get("ended"))
    return sorted(collector.marks, key=lambda mark: (mark["time"] is None, mark["time"] or 0.0))


class _Marks:
    """The marks of an attempt, in the order in which they were added."""

    def __init__(self, verdict):
        self.marks = []
        self._place = verdict.get("node"), verdict.get("rank")

    def add(self, when, rank, node, text, level):
        """Add a mark at a unix time, or at an unknown one (None)."""
        mark = {"time": when, "rank": rank, "node": node, "text": text, "level": level}
        if level != "info" and (node, rank) == self._place:
            mark["verdict"] = True
        self.marks.append(mark)


def _mark_rank(collector, attempt, rank, life, curve):
    known, node = attempt.known(rank), attempt.where[rank]
    error = known.get("first_error") or known.get("error")
    has_error = isinstance(error, dict)
    if has_error:
        collector.add(life["said"], rank, node, _error_text(error)[:300], _error_level(error))
    if curve is not None and curve.nan:
        text = "the loss is {}".format(curve.nan.get("loss"))
        collector.add(curve.nan_at, rank, node, text, "warning")
    signal, code = known.get("signal"), known.get("exit_code")
    unprompted = _ended_unprompted(life)
    if signal and unprompted:
        level = "error"
        if has_error:
            level = "warning"
        collector.add(life["ended"], rank, node, f"killed by {signal}", level)
    elif code and not has_error:
        level = "info"
        if unprompted:
            level = "error"
        collector.add(life["ended"], rank, node, f"ended with exit code {code}", level)


def _error_text(error):
    if error.get("text"):
        return "{}: {}".format(error.get("kind"), error.get("text"))
    return str(error.get("kind"))


def _error_level(error):
    passed = error.get("handled") or error.get("survived")
    if error.get("grade") == "primary" and not passed:
        return "error"
    return "warning"


def _ended_unprompted(life):
    """Return true if a rank ended before a stop was requested, or without one."""
    if life["asked"] is None:
        return True
    return life["ended"] is not None and life["ended"] < life["asked"]


def _mark_unit(collector, attempt, node, unit, lives):
    """Add the stop of a node's unit, or its failure."""
    if unit.get("stopped_by"):
        requester = str(unit["stopped_by"])
        if unit.get("stopped_from"):
            requester = "{} ({})".format(unit["stopped_by"], unit["stopped_from"])
        stop_times = (life["asked"] for rank, life in lives.items() if attempt.where[rank] == node)
        when = next((time for time in stop_times if time is not None), None)
        collector.add(when, None, node, f"stop asked by {requester}", "info")
    elif unit and unit.get("service_result") not in (None, "success", "exit-code"):
        when = finite_number(unit.get("time"))
        if when is not None:
            when -= attempt.ahead[node]
        text = "the unit ended with {}".format(unit["service_result"])
        collector.add(when, None, node, text, "error")


def _mark_lost_nodes(collector, nodes, ended):
    if isinstance(nodes, list):
        for node in nodes:
            collector.add(finite_number(ended), None, str(node), "did not answer", "error")


def said_at(error, written, ended, ahead):
    """Return the time of a rank's error by the controller's clock, or None.

    Paddle's handler prints a time. Else it is the log's last write, unless the process ended
    earlier. `written` is by the node's clock, which is `ahead` seconds off. `ended` is corrected.
    All are unix seconds.
    """
    printed = finite_number(error.get("time"))
    if printed is not None:
        return printed - ahead
    times = []
    if written is not None:
        times.append(written - ahead)
    if ended is not None:
        times.append(ended)
    return min(times, default=None)
