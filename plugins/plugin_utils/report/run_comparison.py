# SPDX-License-Identifier: Apache-2.0
"""Several runs on one page. Pure: dictionaries in, view out.

The page shows their curves over each other, how they ended, and the settings that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from .charts import curve_rows, curves, duration_text, number, unit_of, without_none
from .json_values import Json
from .report_view import MANY, href, main_figure, moment, safe, verdict


def labels(runs: Sequence[str]) -> list[str]:
    """Return a short name for each run id: the job and the id's last four characters.

    Where that is not enough to tell them apart, the names are the whole ids.
    """
    short = [f"{'-'.join(run.split('-')[2:-1])} {run[-4:]}" for run in runs]
    if len(set(short)) < len(short):
        return list(runs)
    return short


def first_curves(drawn: Json) -> list[Json]:
    """Return the curves of the first rank that prints any, one for each attempt."""
    ranks = [curve["rank"] for curve in drawn["curves"]]
    return [curve for curve in drawn["curves"] if curve["rank"] == ranks[0]]


def overlaid(all_facts: Sequence[Json], names: Sequence[str]) -> Json:
    """Return {curves, sums, evaluations} of all runs.

    They have one curve for each run (and attempt), named after the run.
    """
    merged: dict[str, list[Json]] = {"curves": [], "sums": [], "evaluations": []}
    for facts, name in zip(all_facts, names):
        drawn = curves(facts["series"])
        for kind, group in dict(drawn, curves=first_curves(drawn)).items():
            for index, curve in enumerate(group, 1):
                label = name
                if len(group) > 1:
                    label += f", attempt {index}"
                merged[kind].append(dict(curve, label=label, run=facts["run"], hot=False))
    return merged


def differing(settings: Sequence[Json]) -> tuple[list[tuple[str, list[Any]]], int]:
    """Return ([(name, [a value for each run])], number of settings).

    The rows are those of the settings that differ. The number counts all settings. A run without a
    setting has None.
    """
    names = list(dict.fromkeys(name for one in settings for name in one))
    rows = [(name, [one.get(name) for one in settings]) for name in names]
    rows = [(name, values) for name, values in rows if any(v != values[0] for v in values)]
    return rows, len(names)


def row(facts: Json, name: str, drawn: Json, units: Sequence[str]) -> Json:
    """Return one run's row in the table of results.

    drawn: curves' result. Its figures have the order of the view's `measures`. units: of all runs'
    speeds.
    """
    attempts = facts["record"].get("attempts") or [{}]
    figures = [
        moment(facts["record"].get("started")),
        duration_text(facts["record"], attempts),
        _size_text(facts["plan"]),
        _steps_text(drawn["curves"]),
        _last_loss(drawn),
        _best_text(facts["series"].get("best") or {}),
        _throughput_text(facts["plan"], drawn["sums"], units),
    ]
    href_of_report = None
    if facts["report"]:
        href_of_report = href(facts["run"] + "/report.html")
    return {
        "label": name,
        "href": href_of_report,
        "verdict": _linked_verdict(facts, attempts[-1]),
        "figures": figures,
    }


def _size_text(plan: Json) -> str:
    nodes, ranks = len(plan.get("nodes") or ()), len(plan.get("ranks") or ())
    return f"{nodes} x {ranks // max(1, nodes)}"


def _steps_text(rank_curves: Sequence[Json]) -> str | None:
    if not rank_curves:
        return None
    return str(max(without_none(step for curve in rank_curves for step in curve["s"])))


def _last_loss(drawn: Json) -> Any:
    losses = without_none(value for curve in first_curves(drawn) for value in curve["loss"])
    if not losses:
        return None
    return number(losses[-1])


def _best_text(best: Json) -> str | None:
    if best.get("value") is None:
        return None
    return f"{best['figure']} {number(best['value'])}"


def _throughput_text(plan: Json, sums: Sequence[Json], units: Sequence[str]) -> str | None:
    """Return the median speed, with its unit where the runs have several."""
    speeds = [value for curve in sums for value in curve["ips"] if value]
    if not speeds:
        return None
    text = str(number(median(speeds)))
    if len(units) != 1:
        text += " " + unit_of(plan)
    return text


def _linked_verdict(facts: Json, attempt: Json) -> Json:
    """Return an attempt's verdict with links for the comparison's page.

    That page lies one directory above the run's.
    """
    known = {item["path"] for item in facts["files"] if not item["folder"]}
    result = verdict(dict({"number": 1}, **attempt), facts, known)
    parts = []
    for part in result["text"]:
        link = part["href"]
        if link:
            link = f"./{facts['run']}{link[1:]}"
        parts.append(dict(part, href=link))
    result["text"] = parts
    return result


def view(all_facts: Sequence[Json], now: float, scaling: Json | None = None) -> Json:
    """Return all that the page of a comparison shows.

    all_facts: load.read's, one for each run, in the order of the request. now: unix
    seconds. scaling: the section of a benchmark, None without one.
    """
    all_facts = [safe(facts) for facts in all_facts]
    names = labels([facts["run"] for facts in all_facts])
    drawn = overlaid(all_facts, names)
    settings, count = differing([facts["series"].get("settings") or {} for facts in all_facts])
    units = list(dict.fromkeys(unit_of(facts["plan"]) for facts in all_facts))
    any_curve = any(drawn.values())
    sections = [("runs", "Runs")] + [("curves", "Curves")] * any_curve + [("settings", "Settings")]
    if scaling:
        sections = [("scaling", "Scaling"), *sections]
    return {
        "kind": "compare",
        "scaling": scaling,
        "title": f"Comparison of {len(names)} runs",
        "heading": f"Comparison of {len(names)} runs",
        "head": names,
        "sections": sections,
        "made": moment(now),
        "measures": [
            "started",
            "took",
            "nodes x devices",
            "steps",
            "last loss",
            "best evaluation",
            f"{'; '.join(units)}, all ranks",
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
