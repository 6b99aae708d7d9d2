# SPDX-License-Identifier: Apache-2.0
"""The choice of the runs that are to be removed, and the lines about a removal."""

from __future__ import annotations

from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.records import prune_rules

from . import prune_report

Arguments = dict[str, Any]
# Place to what it returned; None, or nothing, where it did not answer.
Looks = dict[str, Any]


def choose_runs(arguments: Arguments, now: float) -> dict[str, Any]:
    """Return what the rule removes at each place, and what stays all the same.

    arguments: of the action. now: unix seconds. Raises ValueError.
    """
    rule = read_rule(arguments)
    looks = read_looks(arguments["looks"])
    chosen = prune_rules.decide(rule, looks, arguments["site"], now)
    if chosen["unknown"]:
        raise ValueError(f"no place that was asked knows the run {rule['run']}")
    return chosen


def summarize_removal(arguments: Arguments, now: float) -> dict[str, Any]:
    """Return {summary, verdict} of a removal, or of one that was only shown.

    arguments: of the action. now: unix seconds. Raises ValueError.
    """
    rule, decided = read_rule(arguments), arguments["decided"]
    looks = read_looks(arguments["looks"])
    done = {
        place: result
        for place, result in arguments["done"].items()
        if result and "removed" in result
    }
    asked, confirmed = arguments["asked"], arguments["confirmed"]
    silent = [place for place, look in looks.items() if place in asked and look is None]
    problems = [f"{place}: {text}" for place, result in done.items() for text in result["problems"]]
    last = prune_report.verdict_line(looks, decided, done, confirmed, silent)
    lines = prune_report.describe_choice(rule, looks, decided, now, silent)
    lines += [f"not removed: {text}" for text in problems] + [last]
    outcome = "shown"
    if problems or silent:
        outcome = "problems"
    elif confirmed:
        outcome = "pruned"
    return {
        "summary": [printable(line) for line in lines],
        "verdict": {"outcome": outcome, "text": printable(last)},
    }


def read_rule(arguments: Arguments) -> dict[str, Any]:
    """Return the rule of the command line. Raises AttemptError."""
    rule = prune_rules.build_rule(arguments["keep"], arguments["older_than"], arguments["run"])
    if rule["run"]:
        attempt_dir.check_run_id(rule["run"])
    return rule


def read_looks(looks: Looks) -> Looks:
    """Return the usable part of what each place returned, None for a place without any."""
    return {
        place: prune_rules.valid_scan((said or {}).get("look")) for place, said in looks.items()
    }
