# SPDX-License-Identifier: Apache-2.0
"""Which runs may be removed, by a rule that somebody gave: a pure function over what every node and
the controller found.

A rule only chooses among what may go. What runs or is held, what nobody can judge, and a job's last
good checkpoint stay whatever the rule says.
"""

from __future__ import annotations

import calendar
import re
import time

from ..attempts.attempt_dir import RUN_ID

RULES = ("keep", "older_than", "run")
DISPUTED = "was another job's by what different nodes say"
HOME = "home"  # the place that is not a node: the controller's own directory of runs
UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"([1-9][0-9]{0,4})([hdw])\Z", re.ASCII)
_COUNT = re.compile(r"(0|[1-9][0-9]{0,5})\Z", re.ASCII)
# A run that has just ended is being collected by whoever follows it.
JUST_SECONDS = 600


def wrong(name, value):
    """Say why the value of one of RULES cannot be what is given, or return None; `run` is judged by
    who reads the command line.
    """
    if name == "keep" and (isinstance(value, bool) or not _COUNT.match(str(value))):
        return (
            "must be how many of each job's newest runs stay, a whole number from 0 up; got"
            f" {value!r}"
        )
    if name == "older_than" and not _AGE.match(str(value)):
        return f"must be an age with its unit: 12h, 30d or 8w; got {value!r}"
    return None


def contradiction(given):
    """Return (name, text) of what cannot be meant, for the names given on the command line; None
    where there is a rule.
    """
    if not any(name in given for name in RULES):
        text = (
            "is missing: say what may go: -e keep=5 (the newest 5 runs of each job stay), -e"
            " older_than=30d, or -e run=<run id>"
        )
        return "the rule", text
    both = [name for name in ("keep", "older_than") if name in given]
    if "run" in given and both:
        return "run", "names what goes, and {} chooses it; give one of them".format(
            " and ".join(both)
        )
    return None


def rule_of(keep=None, older_than=None, run=None):
    """Return the rule as {keep: number, older_than: seconds, run: id}, None where it is not given;
    the texts have passed `wrong`.
    """
    age = _AGE.match(str(older_than)) if older_than not in (None, "") else None
    return {
        "keep": int(keep) if keep not in (None, "") else None,
        "older_than": int(age.group(1)) * UNITS[age.group(2)] if age else None,
        "run": run or None,
    }


def sound(look):
    """Return what a place said of its runs as far as it names runs, None where it said nothing."""
    if not isinstance(look, dict) or not all(
        isinstance(look.get(key), list) for key in ("runs", "strange", "unfinished")
    ):
        return None
    return dict(
        look,
        runs=[
            run
            for run in look["runs"]
            if isinstance(run, dict) and RUN_ID.match(str(run.get("run")))
        ],
    )


def begun(run_id):
    """Return when a run was started (unix seconds), as its id says (UTC); never for an id that
    names no day.
    """
    try:
        return calendar.timegm(time.strptime(run_id[:15], "%Y%m%d-%H%M%S"))
    except ValueError:
        return float("inf")


def chosen(rule, jobs, now, sure=None):
    """Return the ids that the rule lets go. jobs: {run id: what the run trained}, of every place
    together, so that all places choose the same.

    sure: the runs that the controller or two nodes have; a run that one node alone names takes no
    other's place among the newest. None: all.
    """
    if rule["run"]:
        return {rule["run"]} & set(jobs)
    found = set(jobs)
    if rule["keep"] is not None:
        for job in set(jobs.values()):
            runs = sorted((run for run in jobs if jobs[run] == job), reverse=True)
            found -= set(runs[: rule["keep"]])
            found -= set([run for run in runs if sure is None or run in sure][: rule["keep"]])
    if rule["older_than"] is not None:
        found = {run for run in found if now - begun(run) > rule["older_than"]}
    return found if rule["keep"] is not None or rule["older_than"] is not None else set()


def last_good(runs):
    """Return {run id: why} of the runs of one place that hold a job's last good checkpoint.

    The newest that completed with one; and where a later one has one without having completed, that
    one, too: nobody has proven it, and it may be the better.
    """
    found = {}
    for job in {run["job"] for run in runs}:
        having = sorted(
            (run for run in runs if run["job"] == job and run["checkpoint"]),
            key=lambda run: run["run"],
            reverse=True,
        )
        complete = next((run for run in having if run["completed"]), None)
        for run in having[:1] + ([complete] if complete else []):
            how = (
                "of a run that completed" if run["completed"] else "of a run that did not complete"
            )
            found[run["run"]] = "holds the last good checkpoint of the job {} ({}, {})".format(
                run["job"].split("/")[0],
                run["checkpoint"],
                how,
            )
    return found


def decide(rule, looks, site, now):
    """Return {remove: {place: [run ids]}, stay: [{run, places, why}], chosen: [run ids], unknown:
    whether `run` is nowhere}.

    rule: from rule_of. looks: {place: what prune_look.look returned, or None for a node that was
    not asked or did not answer}. site: its name. now: unix seconds. Nothing is chosen at a place
    that did not answer.
    """
    answered = {place: look for place, look in looks.items() if look is not None}
    every = {place: {run["run"]: run for run in look["runs"]} for place, look in answered.items()}
    known, disputed = {}, set()
    for runs in every.values():
        for run in runs.values():
            # where one place does not understand a run, another one may
            before = known.get(run["run"], "?")
            disputed |= (
                {run["run"]} if "?" not in (before, run["job"]) and before != run["job"] else set()
            )
            known[run["run"]] = before if before != "?" else run["job"]
    home = every.get(HOME) or {}
    known.update({name: run["job"] for name, run in home.items() if run["job"] != "?"})
    disputed -= {name for name, run in home.items() if run["job"] != "?"}
    sure = set(home) | {name for name in known if sum(name in runs for runs in every.values()) > 1}
    foreign = {
        run["run"]
        for runs in every.values()
        for run in runs.values()
        if run["site"] not in (None, site)
    }
    jobs = {run: job for run, job in known.items() if run not in foreign}
    # What a place alone names counts at that place.
    by_place = {place: chosen(rule, jobs, now, sure | set(runs)) for place, runs in every.items()}
    wanted = {run for place, runs in every.items() for run in by_place[place] & set(runs)}
    remove, stay = {}, {}
    for place, runs in every.items():
        good = last_good(list(runs.values()))
        for name in sorted(by_place[place] & set(runs)):
            why = (
                _held(name, every)
                or (DISPUTED if name in disputed else None)
                or _unjudged(runs[name], place, looks, every, now)
                or good.get(name)
            )
            if why:
                stay.setdefault((name, why), []).append(place)
            else:
                remove.setdefault(place, []).append(name)
    return {
        "remove": remove,
        "stay": [
            {"run": name, "places": places, "why": why}
            for (name, why), places in sorted(stay.items())
        ],
        "chosen": sorted(wanted),
        "unknown": bool(rule["run"]) and not wanted and rule["run"] not in foreign,
        "foreign": sorted(foreign),
    }


def _held(name, every):
    """Say where a run runs or holds a node, or return None."""
    where = sorted(place for place, runs in every.items() if name in runs and runs[name]["held"])
    return (
        "is in use on {}: {}".format(", ".join(where), every[where[0]][name]["held"])
        if where
        else None
    )


def _unjudged(run, place, looks, every, now):
    """Say what nobody can tell of a run that does not run where it was looked for, or return None."""
    if run["odd"]:
        return run["odd"]
    home = (every.get(HOME) or {}).get(run["run"])
    settled = bool(home and home["settled"])
    begun = home and home.get("begun")
    if begun and now - begun < JUST_SECONDS and not settled:
        return (
            "was begun, or waits for its restart, since %d s; it may be on its way to the nodes"
            % max(0, now - begun)
        )
    silent = sorted(node for node in run["nodes"] if looks.get(node) is None)
    if silent and not settled and not (place != HOME and run["ended"]):
        return "nobody can tell whether it still runs on {}".format(", ".join(silent))
    ended = max(
        (runs[run["run"]]["ended"] or 0 for runs in every.values() if run["run"] in runs), default=0
    )
    if ended and now - ended < JUST_SECONDS and not settled:
        return "ended %d s ago; its logs may be on their way home" % max(0, now - ended)
    return None
