# SPDX-License-Identifier: Apache-2.0
"""Each rank's phases over time, and the offset of a node's clock. Pure.

start       The launcher starts the process, which imports and reads its config.
rendezvous  It looks for its peers: from its first word about them to the last before the first
            step.
first_step  It makes its data, network and first steps. The suite's first step line ends it.
training    Step lines, with evaluations and checkpoints between them.
stop        From its last sign of life, or from when a stop was requested, to the end of the
            process.

Between the last sign of life of a rank that hung and the stop there is no phase. A suite that
prints on its first rank only says nothing of the other ranks' steps. They go at one pace, so theirs
are taken from it and marked `inferred`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, NotRequired, TypedDict

# A rank counts as training for so many seconds after its last step line, or for so many times the
# usual time between two step lines.
QUIET, PACES = 30.0, 5
# Seconds that starting and collecting take at most, where only they bound the clock's offset.
SLACK = 10.0


class Phase(TypedDict):
    """A phase of a rank, in unix seconds. `inferred: true`: its steps are another rank's."""

    rank: int
    phase: str
    begin: float
    end: float
    inferred: NotRequired[bool]


class Sign(NamedTuple):
    """An evaluation or a checkpoint in a log, in unix seconds."""

    begin: float
    end: float
    phase: str


@dataclass
class LogBeginning:
    """Times of a log's beginning in unix seconds, None where unknown."""

    dated: float | None = None  # the first dated line
    # The first and the last word about peers before the first step.
    seeks_peers: float | None = None
    has_peers: float | None = None


@dataclass
class Life:
    """The times of a rank in unix seconds by the controller's clock, None where unknown."""

    launched: float | None  # the launcher's start
    process: float | None  # the start of the rank's process
    ended: float | None  # the end of the rank's process
    stop_requested: float | None
    written: float | None  # the log's last write
    log: LogBeginning
    error: float | None = None  # an error was printed
    fault: float | None = None  # an error was printed, or a signal ended the process
    # The first step line, and the latest step, evaluation or checkpoint.
    step: float | None = None
    last: float | None = None
    pace: float | None = None  # seconds between step lines


def clock_offset(bounds: tuple[float | None, float | None]) -> float:
    """Return the seconds by which a node's clock is ahead of the controller's.

    0.0 where what is known does not say that it differs. bounds: (least, most) in seconds, either
    None. The most is close: an event on the node follows its cause on the controller at once.
    """
    least, most = bounds
    if most is not None and most < 0:
        return most
    if least is not None and least > 0:
        if most is None:
            return least
        return max(least, most - SLACK / 4)
    return 0.0


def rank_phases(rank: int, life: Life, signs: Iterable[Sign], inferred: bool) -> list[Phase]:
    """Return one rank's phases, [{rank, phase, begin, end}] in order of time.

    inferred: the steps are another rank's. signs: of evaluations and checkpoints.
    """
    final = life.ended
    if final is None:
        final = _latest(life.written, life.last)
    if final is None:
        return []
    lane = _Lane(rank, final)
    step = _first_step(life, final)
    alive = None
    if step is not None:
        alive = _latest(life.last, step)
    turn = _turning_point(life, alive)
    _add_beginning(lane, life, _first(step, turn, final), inferred and step is not None)
    if step is not None and alive is not None:
        _add_training(lane, step, _training_end(life, turn, alive), signs, inferred)
    if life.ended is not None:
        lane.add("stop", _first(turn, alive), life.ended)
    return lane.phases


class _Lane:
    """The phases of one rank, none beyond its end (`final`, in unix seconds)."""

    def __init__(self, rank: int, final: float) -> None:
        self.phases: list[Phase] = []
        self._rank, self._final = rank, final

    def add(
        self, name: str, begin: float | None, end: float | None, inferred: bool = False
    ) -> None:
        """Add a phase whose begin and end are known, up to the rank's end."""
        if begin is None or end is None:
            return
        end = min(end, self._final)
        if end >= begin:
            phase: Phase = {"rank": self._rank, "phase": name, "begin": begin, "end": end}
            if inferred:
                phase["inferred"] = True
            self.phases.append(phase)


def _first_step(life: Life, final: float) -> float | None:
    """Return when the first step line was printed, None where that is after the end."""
    step = life.step
    if step is None or step <= final:
        return step
    return None


def _turning_point(life: Life, alive: float | None) -> float | None:
    """Return the time of the stop request or error after the last sign of life.

    None: there was neither.
    """
    times = [time for time in (life.stop_requested, life.fault) if time is not None]
    return min((time for time in times if alive is None or time >= alive), default=None)


def _add_beginning(lane: _Lane, life: Life, over: float | None, inferred: bool) -> None:
    """Add the phases before the first step.

    over: when they end.
    """
    seeks = life.log.seeks_peers
    begin = _first(life.launched, life.process, life.log.dated)
    lane.add("start", begin, _first(seeks, life.log.dated, over))
    if seeks is not None:
        lane.add("rendezvous", seeks, _first(life.log.has_peers, over))
    lane.add("first_step", _first(life.log.has_peers, seeks, life.log.dated), over, inferred)


def _training_end(life: Life, turn: float | None, alive: float) -> float:
    """Return the end of a rank's training: its last sign of life, or soon after."""
    quiet = max(QUIET, PACES * (life.pace or 0.0))
    written = life.written
    if life.ended is not None:
        written = None
    until = _first(turn, written, alive)
    if until is not None and alive <= until <= alive + quiet:
        return until
    return alive


def _add_training(
    lane: _Lane, begin: float, until: float, signs: Iterable[Sign], inferred: bool
) -> None:
    """Add the training, with the evaluations and checkpoints in it."""
    here = begin
    for sign_begin, sign_end, phase in sorted(signs):
        sign_begin, sign_end = max(sign_begin, here), min(sign_end, until)
        if sign_end >= sign_begin:
            if sign_begin > here:
                lane.add("training", here, sign_begin, inferred)
            lane.add(phase, sign_begin, sign_end)
            here = sign_end
    if until > here:
        lane.add("training", here, until, inferred)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _latest(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)
