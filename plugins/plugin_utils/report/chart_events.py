# SPDX-License-Identifier: Apache-2.0
"""The moments of an attempt that a timeline points at. Pure.

They are first errors, losses that are not a number, kills, stops, and nodes that were lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from .curves import Curve
from .json_values import finite_number
from .phases import Life

if TYPE_CHECKING:
    from .series import Attempt, RankScan


class _Event(TypedDict):
    rank: int | None
    node: str
    text: str
    level: str  # error, warning or info
    verdict: NotRequired[bool]


class Mark(_Event):
    """A moment of an attempt. `verdict: true`: the verdict names its place."""

    time: float | None  # unix seconds


class TimedMark(_Event):
    """A mark whose time is known."""

    time: float  # unix seconds


def marks_of(
    attempt: Attempt, scans: Mapping[int, RankScan], lives: Mapping[int, Life]
) -> list[Mark]:
    """Return an attempt's marks in order of time. Marks of an unknown time come last."""
    verdict = attempt.record.get("verdict")
    if not isinstance(verdict, dict):
        verdict = {}
    collector = _Marks(verdict)
    for rank, life in lives.items():
        curve = None
        if rank in scans:
            curve = scans[rank].curve
        _mark_rank(collector, attempt, rank, life, curve)
    for node, unit in attempt.units.items():
        _mark_unit(collector, attempt, node, unit, lives)
    _mark_lost_nodes(collector, verdict.get("unreachable"), attempt.record.get("ended"))
    return sorted(collector.marks, key=lambda mark: (mark["time"] is None, mark["time"] or 0.0))


class _Marks:
    """The marks of an attempt, in the order in which they were added."""

    def __init__(self, verdict: Mapping[str, Any]) -> None:
        self.marks: list[Mark] = []
        self._place = verdict.get("node"), verdict.get("rank")

    def add(self, when: float | None, rank: int | None, node: str, text: str, level: str) -> None:
        """Add a mark at a unix time, or at an unknown one (None)."""
        mark: Mark = {"time": when, "rank": rank, "node": node, "text": text, "level": level}
        if level != "info" and (node, rank) == self._place:
            mark["verdict"] = True
        self.marks.append(mark)


def _mark_rank(
    collector: _Marks, attempt: Attempt, rank: int, life: Life, curve: Curve | None
) -> None:
    known, node = attempt.known(rank), attempt.where[rank]
    error = known.get("first_error") or known.get("error")
    has_error = isinstance(error, dict)
    if isinstance(error, dict):
        collector.add(life.error, rank, node, _error_text(error)[:300], _error_level(error))
    if curve is not None and curve.nan:
        text = f"the loss is {curve.nan.get('loss')}"
        collector.add(curve.nan_at, rank, node, text, "warning")
    signal, code = known.get("signal"), known.get("exit_code")
    unprompted = _ended_unprompted(life)
    if signal and unprompted:
        level = "error"
        if has_error:
            level = "warning"
        collector.add(life.ended, rank, node, f"killed by {signal}", level)
    elif code and not has_error:
        level = "info"
        if unprompted:
            level = "error"
        collector.add(life.ended, rank, node, f"ended with exit code {code}", level)


def _error_text(error: Mapping[str, Any]) -> str:
    if error.get("text"):
        return f"{error.get('kind')}: {error.get('text')}"
    return str(error.get("kind"))


def _error_level(error: Mapping[str, Any]) -> str:
    passed = error.get("handled") or error.get("survived")
    if error.get("grade") == "primary" and not passed:
        return "error"
    return "warning"


def _ended_unprompted(life: Life) -> bool:
    """Return true if a rank ended before a stop was requested, or without one."""
    if life.stop_requested is None:
        return True
    return life.ended is not None and life.ended < life.stop_requested


def _mark_unit(
    collector: _Marks,
    attempt: Attempt,
    node: str,
    unit: Mapping[str, Any],
    lives: Mapping[int, Life],
) -> None:
    """Add the stop of a node's unit, or its failure."""
    if unit.get("stopped_by"):
        requester = str(unit["stopped_by"])
        if unit.get("stopped_from"):
            requester += f" ({unit['stopped_from']})"
        stop_times = (
            life.stop_requested for rank, life in lives.items() if attempt.where[rank] == node
        )
        when = next((time for time in stop_times if time is not None), None)
        collector.add(when, None, node, f"stop requested by {requester}", "info")
    elif unit and unit.get("service_result") not in (None, "success", "exit-code"):
        when = finite_number(unit.get("time"))
        if when is not None:
            when -= attempt.ahead[node]
        text = f"the unit ended with {unit['service_result']}"
        collector.add(when, None, node, text, "error")


def _mark_lost_nodes(collector: _Marks, nodes: object, ended: object) -> None:
    if isinstance(nodes, list):
        for node in nodes:
            collector.add(finite_number(ended), None, str(node), "did not answer", "error")


def error_time(
    error: Mapping[str, Any], written: float | None, ended: float | None, ahead: float
) -> float | None:
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
