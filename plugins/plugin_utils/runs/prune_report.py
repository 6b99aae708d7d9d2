# SPDX-License-Identifier: Apache-2.0
"""Lines about what pruning would free, or has freed.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import (
    format_bytes,
    format_duration,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.records.prune_rules import (
    CONTROLLER,
    start_time,
)

MANY = 40  # runs and entries that are listed; the rest is counted
Json = Mapping[str, Any]
# Place to what prune_scan.scan_runs returned there, None where it did not answer.
Scans = Mapping[str, Any]


def describe_rule(rule: Json) -> str:
    """Return a rule as a sentence."""
    if rule["run"]:
        return f"the run {rule['run']} goes"
    parts = []
    if rule["keep"] is not None:
        parts.append(f"that are not among the newest {rule['keep']} of their job")
    if rule["older_than"] is not None:
        parts.append(f"that began more than {format_duration(rule['older_than'])} ago")
    return "runs go " + " and ".join(parts)


def _section(title: str, rows: Sequence[str], noun: str) -> list[str]:
    """Return a title with the first rows below it.

    Without rows there is no title.
    """
    if not rows:
        return []
    lines = [title, *rows[:MANY]]
    if len(rows) > MANY:
        lines.append(f"  and {len(rows) - MANY} more {noun}")
    return lines


def sum_bytes(scans: Scans, chosen: Mapping[str, Iterable[str]]) -> dict[str, tuple[int, int]]:
    """Return {place: (bytes of the runs that are chosen there, bytes of all)}.

    Only the places that answered are in it.
    """
    sizes = {}
    for place, scan in scans.items():
        if scan is not None:
            by_name = {run["run"]: run["bytes"] for run in scan["runs"]}
            part = sum(by_name[name] for name in chosen.get(place, ()) if name in by_name)
            sizes[place] = (part, scan["bytes"])
    return sizes


def _removed_names(choice: Json) -> set[str]:
    """Return the names of the runs that go at any place."""
    return {name for names in choice["remove"].values() for name in names}


def describe_choice(
    rule: Json, scans: Scans, choice: Json, now: float, silent: Sequence[str] = ()
) -> list[str]:
    """Return the lines about what would go, what stays all the same, and why.

    They go place by place and run by run, and name what is left because nothing in it is a run's.
    rule: from prune_rules.build_rule. scans, choice: as prune_rules.decide takes and returns them.
    now: unix seconds. silent: places that were asked and did not answer.
    """
    lines = [f"rule: {describe_rule(rule)}"]
    rows = _run_rows(scans, choice, now)
    lines += _section("goes:", rows, "runs") or ["nothing goes"]
    lines += _place_lines(scans, choice)
    kept = [
        f"  {item['run']} on {', '.join(item['places'])} {item['why']}" for item in choice["stay"]
    ]
    lines += _section("stays, although the rule would let it go:", kept, "runs")
    answers = [(place, scan) for place, scan in scans.items() if scan]
    odd = [
        f"  {place}: {item['name']} {item['why']}"
        for place, scan in answers
        for item in scan["strange"]
    ]
    lines += _section("left alone, because it is no run's directory:", odd, "entries")
    half = [f"  {place}: {name}" for place, scan in answers for name in scan["unfinished"]]
    lines += _section("left by a removal that was interrupted, goes too:", half, "entries")
    if choice["foreign"]:
        lines.append(f"{len(choice['foreign'])} runs of other sites stay")
    unasked = [place for place, scan in scans.items() if scan is None and place not in silent]
    if unasked:
        lines.append(f"not asked, because of --limit: {', '.join(unasked)}")
    lines += [f"{place} did not answer; nothing of it goes" for place in silent]
    lines.append(
        "code, data, weights and environments on the nodes stay; the next training of the same"
        " needs them"
    )
    return lines


def _run_rows(scans: Scans, choice: Json, now: float) -> list[str]:
    """Return one line per run that goes, with its size at each place."""
    entries = {
        (place, run["run"]): run
        for place, scan in scans.items()
        if scan is not None
        for run in scan["runs"]
    }
    rows = []
    for name in sorted(_removed_names(choice)):
        sizes = ", ".join(
            f"{place} {format_bytes(entries[place, name]['bytes'])}"
            for place, names in choice["remove"].items()
            if name in names
        )
        rows.append(
            f"  {name:<44} {format_duration(max(0, now - start_time(name))):<8} ago  {sizes}"
        )
    return rows


def _place_lines(scans: Scans, choice: Json) -> list[str]:
    """Return one line per place: how many of its runs and bytes go."""
    lines = []
    for place, (part, whole) in sum_bytes(scans, choice["remove"]).items():
        count = len(choice["remove"].get(place, ()))
        total = len(scans[place]["runs"])
        lines.append(
            f"  {place}: {count} of {total} runs, {format_bytes(part)} of {format_bytes(whole)}"
        )
    return lines


def _count_runs(count: int) -> str:
    """Return "1 run" or "2 runs"."""
    if count == 1:
        return "1 run"
    return f"{count} runs"


def verdict_line(
    scans: Scans, choice: Json, done: Json, confirmed: bool, silent: Sequence[str] = ()
) -> str:
    """Return the end in one line.

    done: {place: what prune_scan.remove_runs returned}, {} where nothing was removed. confirmed:
    whether it was to be removed.
    """
    if confirmed:
        text = _describe_removal(done)
    else:
        text = _describe_plan(scans, choice)
    if silent:
        text += f"; no answer from {', '.join(silent)}"
    return text


def _describe_plan(scans: Scans, choice: Json) -> str:
    """Return the words for what would go."""
    parts = {place: part for place, (part, _all) in sum_bytes(scans, choice["remove"]).items()}
    names = _removed_names(choice)
    if not names and not any(scan["unfinished"] for scan in scans.values() if scan):
        return "NOTHING to remove"
    sizes = ", ".join(f"{place} {format_bytes(part)}" for place, part in parts.items())
    total = format_bytes(sum(parts.values()))
    return (
        f"WOULD REMOVE {_count_runs(len(names))} and free {total} ({sizes});"
        " nothing was done, -e confirm=true does it"
    )


def _describe_removal(done: Json) -> str:
    """Return the words for what has gone."""
    names = {name for result in done.values() for name in result["removed"]}
    total = format_bytes(sum(result["freed"] for result in done.values()))
    sizes = ", ".join(f"{place} {format_bytes(result['freed'])}" for place, result in done.items())
    text = f"REMOVED {_count_runs(len(names))}, {total} freed ({sizes or CONTROLLER})"
    problems = sum(len(result["problems"]) for result in done.values())
    if problems:
        text += f"; {problems} not, see above"
    return text
