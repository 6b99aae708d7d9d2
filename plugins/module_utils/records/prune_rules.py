# SPDX-License-Identifier: Apache-2.0
"""The choice of the runs that may be removed by a given rule.

A pure function over what every node and the controller found. A rule only chooses among what may
go. What runs or is held, what cannot be judged, and a job's last good checkpoint stay whatever the
rule says.
"""

from __future__ import annotations

import calendar
import re
import time

from ..attempts.attempt_dir import RUN_ID

RULES = ("keep", "older_than", "run")
DISPUTED = "was another job's by what different nodes say"
CONTROLLER = "home"  # the place that is not a node: the controller's own directory of runs
UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"([1-9][0-9]{0,4})([hdw])\Z", re.ASCII)
_COUNT = re.compile(r"(0|[1-9][0-9]{0,5})\Z", re.ASCII)
# Seconds after its end during which a run may still be collected by the command that follows it.
JUST_SECONDS = 600


def value_problem(name, value):
    """Return the reason why a value cannot be that of one of RULES, or None.

    `run` is judged where the command line is read.
    """
    if name == "keep" and (isinstance(value, bool) or not _COUNT.match(str(value))):
        return (
            "must be how many of each job's newest runs stay, a whole number from 0 up; got"
            f" {value!r}"
        )
    if name == "older_than" and not _AGE.match(str(value)):
        return f"must be an age with its unit: 12h, 30d or 8w; got {value!r}"
    return None


def find_contradiction(given):
    """Return (name, text) of what cannot be meant, None where there is a rule.

    given: the names given on the command line.
    """
    if not any(name in given for name in RULES):
        text = (
            "is missing: say what may go: -e keep=5 (the newest 5 runs of each job stay), -e"
            " older_than=30d, or -e run=<run id>"
        )
        return "the rule", text
    both = [name for name in ("keep", "older_than") if name in given]
    if "run" in given and both:
        names = " and ".join(both)
        return "run", f"names what goes, and {names} chooses it; give one of them"
    return None


def build_rule(keep=None, older_than=None, run=None):
    """Return the rule as {keep: number, older_than: seconds, run: id}.

    A value that is not given is missing (None). The texts have passed `value_problem`.
    """
    rule = {"keep": None, "older_than": None, "run": run or None}
    if keep not in (None, ""):
        rule["keep"] = int(keep)
    if older_than not in (None, ""):
        age = _AGE.match(str(older_than))
        if age:
            rule["older_than"] = int(age.group(1)) * UNITS[age.group(2)]
    return rule


def valid_scan(scan):
    """Return a place's answer about its runs, None without an answer.

    Only what names a run stays.
    """
    if not isinstance(scan, dict) or not all(
        isinstance(scan.get(key), list) for key in ("runs", "strange", "unfinished")
    ):
        return None
    runs = [
        run for run in scan["runs"] if isinstance(run, dict) and RUN_ID.match(str(run.get("run")))
    ]
    return dict(scan, runs=runs)


def start_time(run_id):
    """Return the time when a run was started, in unix seconds, as its id says (UTC).

    For an id that names no day it is infinity.
    """
    try:
        return calendar.timegm(time.strptime(run_id[:15], "%Y%m%d-%H%M%S"))
    except ValueError:
        return float("inf")


def select_runs(rule, jobs, now, sure=None):
    """Return the ids of the runs that the rule lets go.

    jobs: {run id: what the run trained}, of every place together, so that all places choose the
    same. now: unix seconds. sure: the runs that the controller or two nodes have. A run that one
    node alone names takes no other's place among the newest. None: all.
    """
    if rule["run"]:
        return {rule["run"]} & set(jobs)
    if rule["keep"] is None and rule["older_than"] is None:
        return set()
    ids = set(jobs)
    if rule["keep"] is not None:
        for job in set(jobs.values()):
            runs = sorted((run for run in jobs if jobs[run] == job), reverse=True)
            sure_runs = [run for run in runs if sure is None or run in sure]
            ids -= set(runs[: rule["keep"]])
            ids -= set(sure_runs[: rule["keep"]])
    if rule["older_than"] is not None:
        ids = {run for run in ids if now - start_time(run) > rule["older_than"]}
    return ids


def last_checkpoints(runs):
    """Return {run id: why} of the runs with a job's last good checkpoint.

    They are the runs of one place. It is the newest run that completed with a checkpoint. Where a
    later one has one without having completed, that one counts, too: it is not proven, and it may
    be the better.
    """
    good = {}
    for job in {run["job"] for run in runs}:
        having = sorted(
            (run for run in runs if run["job"] == job and run["checkpoint"]),
            key=lambda run: run["run"],
            reverse=True,
        )
        completed = [run for run in having if run["completed"]]
        for run in having[:1] + completed[:1]:
            origin = "of a run that did not complete"
            if run["completed"]:
                origin = "of a run that completed"
            name = run["job"].split("/")[0]
            good[run["run"]] = (
                f"holds the last good checkpoint of the job {name} ({run['checkpoint']}, {origin})"
            )
    return good


def decide(rule, scans, site, now):
    """Return {remove, stay, chosen, unknown, foreign}.

    remove: {place: [run ids]}. stay: [{run, places, why}]. chosen: [run ids]. unknown: whether
    `run` is nowhere. foreign: [run ids] of other sites. rule: from build_rule. scans: {place:
    what prune_scan.scan_runs returned, or None for a node that was not asked or did not answer}.
    site: its name. now: unix seconds. Nothing is chosen at a place that did not answer.
    """
    runs_at = {
        place: {run["run"]: run for run in scan["runs"]}
        for place, scan in scans.items()
        if scan is not None
    }
    jobs, disputed = _collect_jobs(runs_at)
    foreign = {run["run"] for run in _all_runs(runs_at) if run["site"] not in (None, site)}
    candidates = _choose_by_place(rule, runs_at, jobs, foreign, now)
    remove, stay = {}, {}
    for place, runs in runs_at.items():
        good = last_checkpoints(list(runs.values()))
        for name in sorted(candidates[place]):
            why = (
                _describe_use(name, runs_at)
                or (name in disputed and DISPUTED)
                or _describe_doubt(runs[name], place, scans, runs_at, now)
                or good.get(name)
            )
            if why:
                stay.setdefault((name, why), []).append(place)
            else:
                remove.setdefault(place, []).append(name)
    names = set().union(*candidates.values())
    return {
        "remove": remove,
        "stay": [
            {"run": name, "places": places, "why": why}
            for (name, why), places in sorted(stay.items())
        ],
        "chosen": sorted(names),
        "unknown": bool(rule["run"]) and not names and rule["run"] not in foreign,
        "foreign": sorted(foreign),
    }


def _all_runs(runs_at):
    """Return the runs of all places, each once per place."""
    return [run for runs in runs_at.values() for run in runs.values()]


def _collect_jobs(runs_at):
    """Return ({run id: its job}, the ids of the runs about whose job nodes differ).

    Where one place does not understand a run ("?"), another one may. The controller's word counts
    before that of the nodes.
    """
    jobs, disputed = {}, set()
    for run in _all_runs(runs_at):
        name = run["run"]
        if jobs.get(name, "?") == "?":
            jobs[name] = run["job"]
        elif run["job"] not in ("?", jobs[name]):
            disputed.add(name)
    for name, run in runs_at.get(CONTROLLER, {}).items():
        if run["job"] != "?":
            jobs[name] = run["job"]
            disputed.discard(name)
    return jobs, disputed


def _choose_by_place(rule, runs_at, jobs, foreign, now):
    """Return {place: ids of its runs that the rule lets go}.

    What a place alone names counts at that place.
    """
    sure = set(runs_at.get(CONTROLLER, {}))
    sure |= {name for name in jobs if sum(name in runs for runs in runs_at.values()) > 1}
    of_site = {name: job for name, job in jobs.items() if name not in foreign}
    return {
        place: select_runs(rule, of_site, now, sure | set(runs)) & set(runs)
        for place, runs in runs_at.items()
    }


def _describe_use(name, runs_at):
    """Return the words for the places where a run runs or holds a node, or None."""
    places = sorted(place for place, runs in runs_at.items() if name in runs and runs[name]["held"])
    if not places:
        return None
    return f"is in use on {', '.join(places)}: {runs_at[places[0]][name]['held']}"


def _describe_doubt(run, place, scans, runs_at, now):
    """Return the doubt about a run that does not run, or None.

    It does not run where it was looked for.
    """
    if run["odd"]:
        return run["odd"]
    record = runs_at.get(CONTROLLER, {}).get(run["run"], {})
    is_open = not record.get("settled")
    start = record.get("begun")
    if is_open and _is_recent(start, now):
        seconds = int(max(0, now - start))
        return (
            f"was begun, or waits for its restart, since {seconds} s; it may be on its way to the"
            " nodes"
        )
    silent = sorted(node for node in run["nodes"] if scans.get(node) is None)
    if is_open and silent and (place == CONTROLLER or not run["ended"]):
        return f"nobody can tell whether it still runs on {', '.join(silent)}"
    ends = [runs[run["run"]]["ended"] or 0 for runs in runs_at.values() if run["run"] in runs]
    end = max(ends, default=0)
    if is_open and _is_recent(end, now):
        return f"ended {int(max(0, now - end))} s ago; its logs may be on their way home"
    return None


def _is_recent(when, now):
    """Return whether a time is known and less than JUST_SECONDS ago."""
    return bool(when) and now - when < JUST_SECONDS
