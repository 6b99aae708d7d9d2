# SPDX-License-Identifier: Apache-2.0
"""Several runs on one page: their curves over each other, how they ended, and the settings that
differ. Pure: dictionaries in, view out.
"""

from __future__ import annotations

from statistics import median

from ..base.text_layout import span as duration
from .charts import curve_rows, curves, number, unit_of
from .report_view import (
    MANY,
    href,
    main_figure,
    moment,
    safe,
    verdict,
)


def labels(runs):
    """Return a short name for each run id: the job and the id's last four characters, the whole id
    where that is not enough.
    """
    short = ["{} {}".format("-".join(run.split("-")[2:-1]), run[-4:]) for run in runs]
    return short if len(set(short)) == len(short) else list(runs)


def first_curves(drawn):
    """Return the curves of the first rank that prints any, one for each attempt."""
    ranks = [curve["rank"] for curve in drawn["curves"]]
    return [curve for curve in drawn["curves"] if curve["rank"] == ranks[0]]


def overlaid(all_facts, names):
    """Return {curves, sums, evaluations} of all runs: one curve a run (and attempt), named after
    the run.
    """
    merged = {"curves": [], "sums": [], "evaluations": []}
    for facts, name in zip(all_facts, names):
        drawn = curves(facts["series"])
        for kind, group in (
            ("curves", first_curves(drawn)),
            ("sums", drawn["sums"]),
            ("evaluations", drawn["evaluations"]),
        ):
            for number_, curve in enumerate(group):
                more = ", attempt %d" % (number_ + 1) if len(group) > 1 else ""
                merged[kind].append(dict(curve, label=name + more, run=facts["run"], hot=False))
    return merged


def differing(settings):
    """Return ([(name, [a value for each run])] of the settings that differ, how many there are in
    all); None where a run has none.
    """
    every = list(dict.fromkeys(name for one in settings for name in one))
    rows = [(name, [one.get(name) for one in settings]) for name in every]
    return [
        (name, values) for name, values in rows if any(value != values[0] for value in values)
    ], len(every)


def row(facts, name, drawn, units):
    """Return one run's row in the table of how they ended; the columns are MEASURES."""
    record, plan, series = facts["record"], facts["plan"], facts["series"]
    attempts = record.get("attempts") or [{}]
    ended = attempts[-1].get("ended")
    losses = [
        value for curve in first_curves(drawn) for value in curve["loss"] if value is not None
    ]
    speeds = [value for curve in drawn["sums"] for value in curve["ips"] if value]
    best = series.get("best") or {}
    values = [
        moment(record.get("started")),
        duration(ended - record["started"]) if ended and record.get("started") else None,
        "%d x %d"
        % (
            len(plan.get("nodes") or ()),
            len(plan.get("ranks") or ()) // max(1, len(plan.get("nodes") or ())),
        ),
        (
            str(max(step for curve in drawn["curves"] for step in curve["s"] if step is not None))
            if drawn["curves"]
            else None
        ),
        number(losses[-1]) if losses else None,
        (
            "{} {}".format(best["figure"], number(best["value"]))
            if best.get("value") is not None
            else None
        ),
        (
            "{}{}".format(number(median(speeds)), "" if len(units) == 1 else " " + unit_of(plan))
            if speeds
            else None
        ),
    ]
    known = {item["path"] for item in facts["files"] if not item["folder"]}
    said = verdict(dict({"number": 1}, **attempts[-1]), facts, known)
    said["text"] = [
        dict(part, href=part["href"] and "./{}{}".format(facts["run"], part["href"][1:]))
        for part in said["text"]
    ]
    return {
        "label": name,
        "href": href(facts["run"] + "/report.html") if facts["report"] else None,
        "verdict": said,
        "figures": values,
    }


def view(all_facts, now):
    """Return all that the page of a comparison shows; all_facts: report_facts.read's, one for each
    run, in the order asked for.
    """
    all_facts = [safe(facts) for facts in all_facts]
    names = labels([facts["run"] for facts in all_facts])
    drawn = overlaid(all_facts, names)
    settings, count = differing([facts["series"].get("settings") or {} for facts in all_facts])
    units = list(dict.fromkeys(unit_of(facts["plan"]) for facts in all_facts))
    any_curve = any(drawn.values())
    return {
        "kind": "compare",
        "title": "Comparison of %d runs" % len(names),
        "heading": "Comparison of %d runs" % len(names),
        "head": names,
        "sections": (
            [("runs", "Runs")] + [("curves", "Curves")] * any_curve + [("settings", "Settings")]
        ),
        "made": moment(now),
        "measures": [
            "started",
            "took",
            "nodes x devices",
            "steps",
            "last loss",
            "best evaluation",
            "{}, all ranks".format("; ".join(units)),
        ],
        "runs": [
            row(facts, name, curves(facts["series"]), units)
            for facts, name in zip(all_facts, names)
        ],
        "curves": curve_rows(drawn),
        "data": dict(drawn, main=main_figure(all_facts[0]["plan"]), many=MANY),
        "data_any": any_curve,
        "data_unit": "; ".join(units),
        "sum_note": "all ranks of each run",
        "rank_title": "Throughput, first rank that prints",
        "settings": settings,
        "settings_all": count,
        "notes": [
            f"{name}: {note}" for facts, name in zip(all_facts, names) for note in facts["notes"]
        ],
    }
