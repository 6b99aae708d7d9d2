# SPDX-License-Identifier: Apache-2.0
"""The faults of playbooks/drill.yml as data (faults.yml), and what is made of what was seen:
seconds, right or wrong, the table. Pure, controller only.

A fault holds what faults.yml says and `name`; `needs` is added: what it wants of the site (docker:
containers of the embedded site that can be killed, frozen and entered as root; example: the code of
examples/, whose configs/faults do things from inside).

What was seen of a node is a list of looks {t, node, gone, attempts: {number: {...}}} as
drill_watch.py prints them, with t: seconds of the controller's steady clock at which they came, and
gone: True where the node did not answer.
"""

from __future__ import annotations

import copy
import os
import re

from ..base import yaml_source
from ..base.sanitize import printable

HERE = os.path.dirname(os.path.abspath(__file__))
STEP_KINDS = ("before", "then", "back", "heal")
# Seconds that robustness.md and the issue allow: from the fault to the first node that knows, from
# there to the last process, from a verdict to the next step.
BUDGET = {"detect": 10.0, "stop": 10.0, "resume": 60.0}
# An eye prints a look at least every two seconds.
SILENT = 5.0
# What a promise came to: held, broken, or None where this fault cannot show it.
PROMISES = ("N1", "N2", "N3", "N4", "N5", "N6", "N7", "N8")


class DrillError(Exception):
    """The drill cannot be made; the message is for the user."""


def load(path=None):
    """Return {"job": ..., "faults": {name: fault}}; raise DrillError where the file does not fit
    drills/schema.yml.
    """
    path = path or os.path.join(HERE, "faults.yml")
    value, lines, problems = yaml_source.read(path, os.path.basename(path))
    schema, _lines, wrong = yaml_source.read(os.path.join(HERE, "schema.yml"))
    problems = problems + wrong or yaml_source.check(value, schema, lines, os.path.basename(path))
    if problems:
        raise DrillError("; ".join(str(problem) for problem in problems))
    for name, fault in value["faults"].items():
        fault.update(name=name, needs=needs(fault), budget=dict(BUDGET, **fault.get("budget", {})))
    return value


def needs(fault):
    """Return what a fault wants of the site: a subset of docker, example."""
    steps = [step for kind in STEP_KINDS for step in fault.get(kind, ())]
    found = {"docker"} if any("docker" in step or "root" in step for step in steps) else set()
    job = fault.get("job", {})
    keys = set(job.get("overrides", {})) | ({"config"} if "config" in job else set())
    return sorted(found | ({"example"} if keys else set()))


def select(faults, only):
    """Return the names asked for, in the order of the file; only: a text of names with commas, ''
    for all. Raises DrillError for others.
    """
    wanted = [word.strip() for word in str(only or "").split(",") if word.strip()]
    groups = {fault["group"] for fault in faults.values()}
    for word in wanted:
        if word not in faults and word not in groups:
            known = sorted(groups) + list(faults)
            raise DrillError(
                "only: there is no fault {!r}{}; known: {}".format(
                    word, yaml_source.near(word, known), ", ".join(known)
                )
            )
    return [
        name
        for name, fault in faults.items()
        if not wanted or name in wanted or fault["group"] in wanted
    ]


def listed(faults):
    """Return the faults as lines: name, group, what is done, what it wants of the site."""
    width = max(len(name) for name in faults)
    return [
        "%-*s  %-10s  %s%s"
        % (
            width,
            name,
            fault["group"],
            fault["injected"],
            " ({})".format(", ".join(fault["needs"])) if fault["needs"] else "",
        )
        for name, fault in faults.items()
    ]


def unfit(fault, embedded, example, verbs):
    """Say why a fault cannot be done on this site, or return None. verbs: the playbooks' names."""
    if "docker" in fault["needs"] and not embedded:
        return "is done to containers of the embedded site only"
    if "example" in fault["needs"] and not example:
        return "needs the code of examples/paddledetection, and -e config names another job"
    lacking = sorted(
        {step["verb"] for kind in STEP_KINDS for step in fault.get(kind, ()) if "verb" in step}
        - set(verbs)
    )
    return f"this version has no playbooks/{lacking[0]}.yml" if lacking else None


def job_of(base, fault, secret):
    """Return the job of a fault as data for a job file. secret: put into the environment under a
    name that is secret, for N7.
    """
    job = merged(copy.deepcopy(base), fault.get("job", {}))
    job["env"] = dict(job.get("env") or {}, DRILL_SECRET_TOKEN=secret)
    return job


def merged(base, changes):
    """Return a mapping with changes in it, nested mappings merged; None takes a key away."""
    for key, value in changes.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            base[key] = merged(base[key], value)
        else:
            base[key] = value
    return base


# --- what the looks say


def of_attempt(look, number):
    return (look.get("attempts") or {}).get(str(number)) or {}


def knows(attempt):
    """Whether a node's files say that the attempt has gone wrong or been stopped there."""
    ending, stop = attempt.get("exit") or {}, attempt.get("stop") or {}
    bad = ending.get("service_result") not in (None, "success") or any(
        event.get("event") == "end" and (event.get("exit_code") or event.get("signal"))
        for event in attempt.get("events") or ()
    )
    return bool(bad or stop or attempt.get("stall") or attempt.get("loss"))


def began(looks, number, node, rank):
    """When a fault from inside was there: the first look at which the rank's log says the sign, or
    the rank is no longer there. None: never.
    """
    seen = False
    for look in looks:
        attempt = of_attempt(look, number)
        if look["node"] != node and node is not None:
            continue
        alive = [
            entry for entry in attempt.get("ranks") or () if rank is None or entry["rank"] == rank
        ]
        if attempt.get("sign") or (seen and alive and not all(entry["alive"] for entry in alive)):
            return look["t"]
        seen = seen or any(entry["alive"] for entry in alive)
    return None


def detected(looks, number, since):
    """When a node first knew of it, from `since` on; None: never."""
    return next(
        (look["t"] for look in looks if look["t"] >= since and knows(of_attempt(look, number))),
        None,
    )


def stopped(looks, number, since):
    """When no process of the attempt was left on any node that answers, for good; None where some
    are there to the end.

    A node that has said nothing for SILENT seconds does not answer: a frozen one closes no
    connection.
    """
    marked, heard, when = {}, {}, None
    for look in looks:
        marked[look["node"]] = 0 if look.get("gone") else of_attempt(look, number).get("marked", 0)
        heard[look["node"]] = look["t"]
        if any(count for node, count in marked.items() if look["t"] - heard[node] <= SILENT):
            when = None
        elif when is None and look["t"] >= since:
            when = look["t"]
    return when


def first_step(looks, number):
    """When an attempt's first rank printed its first step; None: never."""
    return next((look["t"] for look in looks if of_attempt(look, number).get("steps")), None)


def newest(looks, number, key):
    """Return the largest value of a count that any node has shown of an attempt, 0 without one."""
    return max([of_attempt(look, number).get(key) or 0 for look in looks] or [0])


# --- right or wrong


def judge(expect, verdict, places):
    """Return (right, wrong or unknown; why) for a verdict as run.json has it. places: {"first":
    (node, rank), "last": (node, rank)}.
    """
    if not verdict:
        return "unknown", "there is no verdict"
    wanted = {"outcome": expect.get("outcome"), "cause": expect.get("cause")}
    if expect.get("node"):
        wanted["node"] = [places[expect["node"]][0]]
    if expect.get("rank"):
        wanted["rank"] = [places[expect["rank"]][1]]
    wanted.update({key: [expect[key]] for key in ("exit_code", "signal") if key in expect})
    off = [
        "{} is {}, wanted: {}".format(key, verdict.get(key), " or ".join(map(str, good)))
        for key, good in wanted.items()
        if good and verdict.get(key) not in good
    ]
    if not off:
        return "right", ""
    # who says that he does not know, and accuses nobody, is not wrong
    silent = (
        verdict.get("node") is None
        and verdict.get("rank") is None
        and verdict.get("outcome") != "completed"
    )
    honest = silent and verdict.get("cause") in (
        None,
        "unknown",
        "connection_lost",
        "no_end_recorded",
        "no_step",
    )
    return ("unknown" if honest or verdict.get("outcome") == "unknown" else "wrong"), "; ".join(off)


def seconds(later, earlier):
    """Return later - earlier with one digit, never below 0; None where one of them is."""
    return None if later is None or earlier is None else max(0.0, round(later - earlier, 1))


def over(result, budget):
    """Return what came later than the budget allows, as texts."""
    names = (("detected", "detect"), ("stopped", "stop"), ("resumed", "resume"))
    return [
        f"{shown} after {result[shown]:.1f} s, allowed are {budget[key]:.0f}"
        for shown, key in names
        if result.get(shown) is not None and result[shown] > budget[key]
    ]


def held(result):
    """Whether a fault came out as promised: nothing to complain of, verdict right where one was
    expected, no promise broken.
    """
    return (
        not result.get("problems")
        and result.get("verdict") in ("right", None)
        and False not in result.get("promises", {}).values()
    )


# --- the table

HEAD = [
    "fault",
    "what was done",
    "known after",
    "all stopped",
    "verdict",
    "it says",
    "next step",
    "N1-N8",
    "note",
]


def cell(text, limit=160):
    """Return a text as one cell of a Markdown table."""
    text = " ".join(printable(str(text), limit=4000).split()).replace("|", "\\|")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def promise_cell(promises):
    """Return N1-N8 as one cell: the broken ones named, else those that were shown."""
    broken = [name for name, value in promises.items() if value is False]
    return (
        "broken: {}".format(", ".join(broken))
        if broken
        else "held"
        + (
            ""
            if None not in promises.values()
            else " (%d of 8 asked)" % sum(value is True for value in promises.values())
        )
    )


def row(result):
    """Return a result's line of the table as cells."""
    if result.get("skipped"):
        return [
            result["name"],
            result["injected"],
            "–",
            "–",
            "–",
            "–",
            "–",
            "–",
            "skipped: " + result["skipped"],
        ]

    def time(name):
        return "–" if result.get(name) is None else f"{result[name]:.1f} s"

    note = "; ".join(result.get("problems") or []) or result.get("note") or ""
    known = "goes on" if result.get("goes_on") else time("detected")
    return [
        result["name"],
        result["injected"],
        known,
        time("stopped"),
        result.get("verdict") or "–",
        result.get("says") or "–",
        time("resumed"),
        promise_cell(result.get("promises") or {}),
        note,
    ]


def table(results):
    """Return the Markdown table of all results."""
    lines = [HEAD, ["---"] * len(HEAD)] + [
        [cell(part) for part in row(result)] for result in results
    ]
    return "\n".join("| {} |".format(" | ".join(line)) for line in lines) + "\n"


def sums(results):
    """Return one line: how many were done, held, skipped; the worst and the middle of each time."""
    done = [result for result in results if not result.get("skipped")]
    parts = [
        "%d of %d faults came out as promised" % (sum(held(result) for result in done), len(done))
    ]
    for key, shown in (("detected", "known"), ("stopped", "stopped"), ("resumed", "next step")):
        times = sorted(result[key] for result in done if result.get(key) is not None)
        if times:
            parts.append(
                f"{shown} after {times[len(times) // 2]:.1f} s (middle), {times[-1]:.1f} s (worst)"
            )
    skipped = len(results) - len(done)
    return "; ".join(parts + (["%d skipped" % skipped] if skipped else []))


def find_refusal(expect, text):
    """Whether a command's output holds what the fault's refusal is to say; the output's line breaks
    are taken out.
    """
    return re.search(expect["refused"], " ".join(text.split())) is not None
