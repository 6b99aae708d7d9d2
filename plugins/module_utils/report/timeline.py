# SPDX-License-Identifier: Apache-2.0
"""The report's time line: one lane a rank, its phases as strokes, faults and stragglers marked.
Pure: an attempt's series in, places out.

Places are parts per thousand of the attempt's time, as the lanes' viewBox has them.
"""

from __future__ import annotations

from statistics import median

from ..base.text_layout import span as duration

PHASES = ("start", "rendezvous", "first_step", "training", "evaluation", "checkpoint", "stop")
WORDS = {
    "start": "start", "rendezvous": "rendezvous", "first_step": "first step", "training": "training",
    "evaluation": "evaluation", "checkpoint": "checkpoint", "stop": "stop",
}  # fmt: skip
# Strokes of all lanes together; a day with an evaluation every five minutes on 64 ranks stays
# whole.
STROKES, FEWEST = 40_000, 200
# What is shorter is drawn this long, or nobody would see it.
SHORTEST = 1.5
# Steps that take so many times the ranks' median are slow; late is who looks for its peers so many
# seconds, and this part of the median's start, after the median.
SLOW, LATE_SECONDS, LATE_PART = 1.15, 5.0, 0.3
PARTS = (
    48  # of the time, in which the ranks' paces are compared: a rank may be slow for an hour only
)
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


def clock(seconds):
    """Return seconds since the start as m:ss or h:mm:ss; tenths below ten seconds."""
    return f"{seconds:.1f} s" if 0 < seconds < 10 else duration(round(seconds))


def ticks(seconds, most=8):
    """Return [{at, text}] for an axis of so many seconds."""
    step = next((size for size in STEPS if seconds / size <= most), STEPS[-1])
    return [
        {"at": round(1000 * second / seconds, 1), "text": duration(second)}
        for second in range(0, int(seconds) + 1, step)
    ]


def stroke(phases, begin, seconds):
    """Return one path's data for phases of one kind: a horizontal stroke each."""
    drawn = []
    for phase in phases:
        left = 1000 * (phase["begin"] - begin) / seconds
        width = max(SHORTEST, 1000 * (phase["end"] - phase["begin"]) / seconds)
        left = max(0.0, min(left, 1000 - width))
        drawn.append(f"M{round(left, 1):g} 5h{round(width, 1):g}")
    return "".join(drawn)


def slow_path(parts, begin, seconds):
    """Return one path's data for the parts of the time in which a rank was slow: a thin stroke
    below the lane.
    """
    drawn = [
        f"M{round(1000 * (left - begin) / seconds, 1):g}"
        f" 11.5h{round(1000 * (right - left) / seconds, 1):g}"
        for left, right, _ in parts
    ]
    return "".join(drawn)


def thinned(phases, most):
    """Return at most so many phases: the shortest go, and their neighbours of one kind become one."""
    if len(phases) <= most:
        return phases
    kept = sorted(
        sorted(phases, key=lambda item: item["begin"] - item["end"])[:most],
        key=lambda item: item["begin"],
    )
    joined = []
    for phase in kept:
        if joined and joined[-1]["phase"] == phase["phase"]:
            joined[-1] = dict(joined[-1], end=max(joined[-1]["end"], phase["end"]))
        else:
            joined.append(phase)
    return joined


def paces(curve, begin, width, count):
    """Return the median seconds a step of a rank in each of so many parts of the time, None where
    it has fewer than three steps there.
    """
    found = [[] for _part in range(count)]
    costs = curve.get("batch_cost") or ()
    costs = (
        costs
        if any(costs)
        else [1.0 / speed if speed else None for speed in curve.get("ips") or ()]
    )
    for when, cost in zip(curve["time"], costs):
        if when is not None and cost:
            found[max(0, min(count - 1, int((when - begin) / width)))].append(cost)
    return [median(part) if len(part) > 2 else None for part in found]


def slow_parts(series):
    """Return {rank: [(begin, end, factor)]}: when a rank's steps took SLOW times the median of the
    ranks' in that part of the time, or more.

    series: {rank: curve}. The time is cut so that a part holds some steps of every rank; one rank
    has nobody to be compared with.
    """
    times = [when for curve in series.values() for when in curve["time"] if when is not None]
    points = min(
        (sum(when is not None for when in curve["time"]) for curve in series.values()), default=0
    )
    count = max(1, min(PARTS, points // 6))
    if len(series) < 2 or points < 3 or max(times) <= min(times):
        return {}
    begin, width = min(times), (max(times) - min(times)) / count
    parts = {int(rank): paces(curve, begin, width, count) for rank, curve in series.items()}
    found = {}
    for number in range(count):
        known = {rank: pace[number] for rank, pace in parts.items() if pace[number]}
        middle = median(known.values()) if len(known) > 1 else None
        for rank, pace in known.items():
            if middle and pace > SLOW * middle:
                found.setdefault(rank, []).append(
                    (begin + number * width, begin + (number + 1) * width, pace / middle)
                )
    return found


def behind(attempt):
    """Return {rank: {words, parts}} of the ranks that were slower than the others at some time, or
    later to look for their peers.
    """
    found = {}
    for rank, parts in slow_parts(attempt.get("series") or {}).items():
        found[rank] = {
            "words": [f"steps {max(factor for _begin, _end, factor in parts):.1f}x the median"],
            "parts": parts,
        }
    begun = {}
    for phase in attempt.get("phases") or ():
        if phase["phase"] in ("rendezvous", "first_step") and not phase.get("inferred"):
            begun[phase["rank"]] = min(phase["begin"], begun.get(phase["rank"], phase["begin"]))
    middle = median(begun.values()) if len(begun) > 1 else 0.0
    limit = max(LATE_SECONDS, LATE_PART * (middle - (attempt.get("begin") or middle)))
    for rank, when in begun.items():
        if middle and when - middle > limit:
            found.setdefault(rank, {"words": [], "parts": []})["words"].append(
                f"{clock(when - middle)} late to its peers"
            )
    return found


def summed(phases):
    """Return {phase: (how often, seconds in all)}."""
    found = {}
    for phase in phases:
        often, seconds = found.get(phase["phase"], (0, 0.0))
        found[phase["phase"]] = (often + 1, seconds + phase["end"] - phase["begin"])
    return found


def told(totals):
    """Return {phase: words} for the lane's titles."""
    return {
        phase: "{}: {}{}".format(
            WORDS[phase], clock(seconds), " in %d parts" % often if often > 1 else ""
        )
        for phase, (often, seconds) in totals.items()
    }


def concerns(mark, rank):
    """Whether a mark stands on a rank's lane: it is the rank's own, or an error of its whole node."""
    if mark.get("rank") is None:
        return mark.get("level") == "error" and mark.get("node") == rank["node"]
    return mark["rank"] == rank["rank"]


def timeline(attempt, ranks):
    """Return {begin, seconds, ticks, phases, fault, noted, lanes, marks}, or None where nothing is
    known of the attempt's time.

    attempt: one of series.of_run's. ranks: the plan's [{rank, node}].
    """
    phases = [phase for phase in attempt.get("phases") or () if phase["phase"] in WORDS]
    marks = [mark for mark in attempt.get("marks") or () if mark.get("time") is not None]
    times = [time for phase in phases for time in (phase["begin"], phase["end"])]
    begin = min([attempt["begin"]] * bool(attempt.get("begin")) + times, default=None)
    if begin is None or not times:
        return None
    seconds = max(max(times + [mark["time"] for mark in marks]) - begin, 1.0)
    errors = [mark for mark in marks if mark.get("level") == "error"]
    first = min(errors, key=lambda mark: mark["time"], default=None)

    def place(when):
        return round(max(0.0, min(1000.0, 1000 * (when - begin) / seconds)), 1)

    slow, most, lanes = behind(attempt), max(FEWEST, STROKES // max(1, len(ranks))), []
    for item in ranks:
        mine = [phase for phase in phases if phase["rank"] == item["rank"]]
        shown = thinned(mine, most)
        words = told(summed(mine))
        kinds = [kind for kind in PHASES if kind in words]
        lanes.append(
            {
                "rank": item["rank"],
                "node": item["node"],
                "strokes": [
                    {
                        "phase": kind,
                        "title": words[kind],
                        "path": stroke(
                            [one for one in shown if one["phase"] == kind], begin, seconds
                        ),
                    }
                    for kind in kinds
                ],
                "faulty": first is not None and concerns(first, item),
                "guessed": any(phase.get("inferred") for phase in mine),
                "marks": [
                    {
                        "at": place(mark["time"]),
                        "level": mark.get("level") or "info",
                        "text": mark["text"],
                        "clock": clock(mark["time"] - begin),
                    }
                    for mark in marks
                    if concerns(mark, item)
                ],
                "behind": ", ".join(slow[item["rank"]]["words"]) if item["rank"] in slow else None,
                "slow": slow_path(slow.get(item["rank"], {}).get("parts", ()), begin, seconds),
                "next": bool(lanes) and lanes[-1]["node"] != item["node"],
                "words": ", ".join(words[kind] for kind in kinds) or "nothing is known of it",
            }
        )
    return {
        "begin": begin,
        "seconds": seconds,
        "ticks": ticks(seconds),
        "phases": [
            {"phase": kind, "words": WORDS[kind]}
            for kind in PHASES
            if any(phase["phase"] == kind for phase in phases)
        ],
        "fault": place(first["time"]) if first else None,
        "noted": bool(slow) or first is not None,
        "lanes": lanes,
        "marks": [
            dict(mark, at=place(mark["time"]), clock=clock(mark["time"] - begin))
            for mark in sorted(marks, key=lambda m: m["time"])
        ],
    }
