# SPDX-License-Identifier: Apache-2.0
"""The report's timeline: a lane per rank, faults and stragglers. Pure.

Positions on a lane are parts per thousand of the attempt's time, as the lanes' viewBox has them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_clock

from .chart_events import TimedMark
from .json_values import Json
from .phases import Phase

PHASES = ("start", "rendezvous", "first_step", "training", "evaluation", "checkpoint", "stop")
WORDS = {
    "start": "start",
    "rendezvous": "rendezvous",
    "first_step": "first step",
    "training": "training",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "stop": "stop",
}
# Strokes of all lanes together, and the fewest of one lane. A day with an evaluation every five
# minutes on 64 ranks stays whole.
STROKES, FEWEST = 40_000, 200
# What is shorter is drawn this long, or it would not be visible.
SHORTEST = 1.5
# Steps that take so many times the ranks' median are slow.
SLOW = 1.15
# A rank is late if it looks for its peers after the median by more than these seconds and by more
# than this part of the time from the attempt's begin to the median.
LATE_SECONDS, LATE_PART = 5.0, 0.3
# Parts of the time in which the ranks' paces are compared: a rank may be slow for an hour only.
PARTS = 48
# Seconds between two ticks of the axis.
STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
    172800,
    604800,
)


SlowPart = tuple[float, float, float]  # begin, end, factor


@dataclass
class Straggler:
    """A rank that was slow or late: words for its lane, and when it was slow."""

    words: list[str] = field(default_factory=list)
    parts: Sequence[SlowPart] = ()


def clock(seconds: float) -> str:
    """Return seconds since the start as m:ss or h:mm:ss, or as tenths below 10 s."""
    if 0 < seconds < 10:
        return f"{seconds:.1f} s"
    return format_clock(round(seconds))


def ticks(seconds: float, most: int = 8) -> list[Json]:
    """Return [{at, text}] for an axis of so many seconds, with at most `most` + 1 ticks.

    A node can write any time. Beyond the table, a step is a multiple of its largest.
    """
    whole = STEPS[-1] * max(1, math.ceil(seconds / most / STEPS[-1]))
    step = next((size for size in STEPS if seconds / size <= most), whole)
    return [
        {"at": round(1000 * second / seconds, 1), "text": format_clock(second)}
        for second in range(0, int(seconds) + 1, step)
    ]


def stroke(phases: Iterable[Phase], begin: float, seconds: float) -> str:
    """Return one SVG path's data for phases of one kind: a horizontal stroke each."""
    strokes = []
    for phase in phases:
        left = 1000 * (phase["begin"] - begin) / seconds
        width = max(SHORTEST, 1000 * (phase["end"] - phase["begin"]) / seconds)
        left = max(0.0, min(left, 1000 - width))
        strokes.append(f"M{round(left, 1):g} 5h{round(width, 1):g}")
    return "".join(strokes)


def slow_path(parts: Sequence[SlowPart], begin: float, seconds: float) -> str:
    """Return one SVG path's data for the times in which a rank was slow.

    It is a thin stroke below the lane. parts: [(begin, end, factor)].
    """
    strokes = [
        f"M{round(1000 * (left - begin) / seconds, 1):g}"
        f" 11.5h{round(1000 * (right - left) / seconds, 1):g}"
        for left, right, _ in parts
    ]
    return "".join(strokes)


def thin_phases(phases: Sequence[Phase], most: int) -> Sequence[Phase]:
    """Return at most so many phases.

    The shortest are dropped, and neighbours of one kind joined.
    """
    if len(phases) <= most:
        return phases
    longest = sorted(phases, key=lambda phase: phase["begin"] - phase["end"])[:most]
    joined: list[Phase] = []
    for phase in sorted(longest, key=lambda phase: phase["begin"]):
        if joined and joined[-1]["phase"] == phase["phase"]:
            joined[-1] = {**joined[-1], "end": max(joined[-1]["end"], phase["end"])}
        else:
            joined.append(phase)
    return joined


def paces(curve: Json, begin: float, width: float, count: int) -> list[float | None]:
    """Return a rank's median seconds per step in each of `count` parts of the time.

    A part with fewer than three steps has None. begin: unix seconds. width: seconds of one part.
    """
    parts: list[list[float]] = [[] for _part in range(count)]
    for when, cost in zip(curve["time"], _step_costs(curve)):
        if when is not None and cost:
            parts[max(0, min(count - 1, int((when - begin) / width)))].append(cost)
    return [_median_above(part, 2) for part in parts]


def _step_costs(curve: Json) -> Sequence[float | None]:
    """Return a step's cost at each step line, in any unit."""
    costs = curve.get("batch_cost") or ()
    if any(costs):
        return costs
    return [_inverse(speed) for speed in curve.get("ips") or ()]


def _inverse(speed: float | None) -> float | None:
    if not speed:
        return None
    return 1.0 / speed


def _median_above(
    values: Collection[float], count: int, default: float | None = None
) -> float | None:
    """Return the median of more than `count` values, else the default."""
    if len(values) > count:
        return median(values)
    return default


def slow_parts(series: Mapping[Any, Json]) -> dict[int, list[SlowPart]]:
    """Return {rank: [(begin, end, factor)]}: the times in which a rank was slow.

    A rank is slow if its steps take SLOW times the median of the ranks' in that part of the time.
    series: {rank: curve}. The time is cut so that a part holds some steps of every rank. One rank
    alone has no other to be compared with.
    """
    times = [when for curve in series.values() for when in curve["time"] if when is not None]
    points = min(map(_count_timed, series.values()), default=0)
    count = max(1, min(PARTS, points // 6))
    if len(series) < 2 or points < 3 or max(times) <= min(times):
        return {}
    begin, width = min(times), (max(times) - min(times)) / count
    paces_by_rank = {int(rank): paces(curve, begin, width, count) for rank, curve in series.items()}
    slow: dict[int, list[SlowPart]] = {}
    for number in range(count):
        paces_now = {rank: pace[number] for rank, pace in paces_by_rank.items()}
        known = {rank: pace for rank, pace in paces_now.items() if pace}
        middle = _median_above(known.values(), 1)
        for rank, pace in known.items():
            if middle and pace > SLOW * middle:
                part = (begin + number * width, begin + (number + 1) * width, pace / middle)
                slow.setdefault(rank, []).append(part)
    return slow


def _count_timed(curve: Json) -> int:
    return sum(when is not None for when in curve["time"])


def behind(attempt: Json) -> dict[int, Straggler]:
    """Return {rank: Straggler} of the ranks that were slow or late.

    Slow: slower than the other ranks at some time. Late: later to look for its peers.
    """
    stragglers = {}
    for rank, parts in slow_parts(attempt.get("series") or {}).items():
        factor = max(factor for _begin, _end, factor in parts)
        stragglers[rank] = Straggler([f"steps {factor:.1f}x the median"], parts)
    for rank, seconds in _late_ranks(attempt).items():
        straggler = stragglers.setdefault(rank, Straggler())
        straggler.words.append(f"{clock(seconds)} late to its peers")
    return stragglers


def _late_ranks(attempt: Json) -> dict[int, float]:
    """Return {rank: seconds after the median} of ranks late to their peers."""
    begins: dict[int, float] = {}
    for phase in attempt.get("phases") or ():
        if phase["phase"] in ("rendezvous", "first_step") and not phase.get("inferred"):
            begins[phase["rank"]] = min(phase["begin"], begins.get(phase["rank"], phase["begin"]))
    middle = _median_above(begins.values(), 1)
    if not middle:
        return {}
    limit = max(LATE_SECONDS, LATE_PART * (middle - (attempt.get("begin") or middle)))
    return {rank: when - middle for rank, when in begins.items() if when - middle > limit}


def sum_phases(phases: Iterable[Phase]) -> dict[str, tuple[int, float]]:
    """Return {phase: (number of occurrences, seconds in all)}."""
    totals: dict[str, tuple[int, float]] = {}
    for phase in phases:
        count, seconds = totals.get(phase["phase"], (0, 0.0))
        totals[phase["phase"]] = (count + 1, seconds + phase["end"] - phase["begin"])
    return totals


def lane_titles(totals: Mapping[str, tuple[int, float]]) -> dict[str, str]:
    """Return {phase: words} for the lane's titles.

    totals: sum_phases'.
    """
    titles = {}
    for phase, (count, seconds) in totals.items():
        titles[phase] = f"{WORDS[phase]}: {clock(seconds)}"
        if count > 1:
            titles[phase] += f" in {count} parts"
    return titles


def concerns(mark: TimedMark, rank: Json) -> bool:
    """Return true if a mark stands on a rank's lane.

    It is the rank's own mark, or an error of its whole node.
    """
    if mark.get("rank") is None:
        return mark.get("level") == "error" and mark.get("node") == rank["node"]
    return mark["rank"] == rank["rank"]


def timeline(attempt: Json, ranks: Collection[Json]) -> Json | None:
    """Return the view of an attempt's time, or None.

    The keys are begin, seconds, ticks, phases, fault, noted, lanes, marks. None: nothing is known
    of the attempt's time. attempt: one of series.of_run's. ranks: the plan's [{rank, node}].
    """
    phases = [phase for phase in attempt.get("phases") or () if phase["phase"] in WORDS]
    marks: list[TimedMark] = [
        mark for mark in attempt.get("marks") or () if mark.get("time") is not None
    ]
    times = [time for phase in phases for time in (phase["begin"], phase["end"])]
    if not times:
        return None
    axis = _measure_axis(attempt.get("begin"), times, marks)
    first_error, fault = _find_first_error(marks), None
    if first_error is not None:
        fault = axis.position(first_error["time"])
    slow = behind(attempt)
    kinds = {phase["phase"] for phase in phases}
    return {
        "begin": axis.begin,
        "seconds": axis.seconds,
        "ticks": ticks(axis.seconds),
        "phases": [{"phase": kind, "words": WORDS[kind]} for kind in PHASES if kind in kinds],
        "fault": fault,
        "noted": bool(slow) or first_error is not None,
        "lanes": _draw_lanes(ranks, phases, marks, slow, axis),
        "marks": [
            dict(mark, at=axis.position(mark["time"]), clock=axis.clock(mark["time"]))
            for mark in sorted(marks, key=lambda m: m["time"])
        ],
    }


class _Axis:
    """The time of an attempt: from `begin` (unix seconds), so many seconds."""

    def __init__(self, begin: float, seconds: float) -> None:
        self.begin, self.seconds = begin, seconds

    def position(self, when: float) -> float:
        """Return the position of a unix time, in parts per thousand."""
        return round(max(0.0, min(1000.0, 1000 * (when - self.begin) / self.seconds)), 1)

    def clock(self, when: float) -> str:
        """Return a unix time as the text of its time since the begin."""
        return clock(when - self.begin)

    def place_on_lane(self, mark: TimedMark) -> Json:
        """Return {at, level, text, clock} of a mark."""
        return {
            "at": self.position(mark["time"]),
            "level": mark.get("level") or "info",
            "text": mark["text"],
            "clock": self.clock(mark["time"]),
        }


def _measure_axis(begin: float | None, times: list[float], marks: Sequence[TimedMark]) -> _Axis:
    """Return the axis that holds all times.

    begin: the attempt's, or None.
    """
    starts = list(times)
    if begin:
        starts.insert(0, begin)
    first = min(starts)
    last = max(times + [mark["time"] for mark in marks])
    return _Axis(first, max(last - first, 1.0))


def _find_first_error(marks: Sequence[TimedMark]) -> TimedMark | None:
    errors = (mark for mark in marks if mark.get("level") == "error")
    return min(errors, key=lambda mark: mark["time"], default=None)


def _draw_lanes(
    ranks: Collection[Json],
    phases: Sequence[Phase],
    marks: Sequence[TimedMark],
    slow: Mapping[int, Straggler],
    axis: _Axis,
) -> list[Json]:
    """Return one lane per rank.

    slow: behind's result.
    """
    most = max(FEWEST, STROKES // max(1, len(ranks)))
    lanes: list[Json] = []
    first_error = _find_first_error(marks)
    for rank in ranks:
        number, node = rank["rank"], rank["node"]
        lane = _draw_phases([phase for phase in phases if phase["rank"] == number], axis, most)
        lane.update(_describe_straggler(slow.get(number), axis))
        lane.update(
            rank=number,
            node=node,
            faulty=first_error is not None and concerns(first_error, rank),
            marks=[axis.place_on_lane(mark) for mark in marks if concerns(mark, rank)],
            next=bool(lanes) and lanes[-1]["node"] != node,
        )
        lanes.append(lane)
    return lanes


def _draw_phases(phases: Sequence[Phase], axis: _Axis, most: int) -> Json:
    """Return a lane's phases, in at most so many strokes."""
    shown, titles = thin_phases(phases, most), lane_titles(sum_phases(phases))
    kinds = [kind for kind in PHASES if kind in titles]
    strokes = []
    for kind in kinds:
        path = stroke(
            [phase for phase in shown if phase["phase"] == kind], axis.begin, axis.seconds
        )
        strokes.append({"phase": kind, "title": titles[kind], "path": path})
    return {
        "strokes": strokes,
        "guessed": any(phase.get("inferred") for phase in phases),
        "words": ", ".join(titles[kind] for kind in kinds) or "nothing is known of it",
    }


def _describe_straggler(straggler: Straggler | None, axis: _Axis) -> Json:
    """Return a lane's words and strokes of a slow or late rank.

    straggler: the rank's entry in behind's result, or None.
    """
    if straggler is None:
        return {"behind": None, "slow": ""}
    return {
        "behind": ", ".join(straggler.words),
        "slow": slow_path(straggler.parts, axis.begin, axis.seconds),
    }
