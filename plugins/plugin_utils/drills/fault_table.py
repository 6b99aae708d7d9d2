# SPDX-License-Identifier: Apache-2.0
"""Faults of playbooks/drill.yml as data, and the judgement of what was observed.

Pure. A fault has the keys of faults.yml and `name`. `needs` is added, its requirements on the site.
docker: containers of the embedded site that can be killed, frozen and entered as root. example: the
code of examples/, whose configs/faults do things from inside. The judgement is in seconds, right or
wrong, and a table.

An observation is {t, node, gone, attempts: {number: {...}}}, as drill_probe.py prints it. t: the
seconds of the controller's steady clock at which it came. gone: True where the node did not answer.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.base import value_text
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable

from ..base import yaml_source

HERE = os.path.dirname(os.path.abspath(__file__))
STEP_KINDS = ("before", "then", "back", "heal")
# Seconds that docs/drills.md allows: from the fault to the first node that knows, from there to the
# last process, from a verdict to the next step.
BUDGET = {"detect": 10.0, "stop": 10.0, "resume": 60.0}
# drill_probe.py prints an observation at least every two seconds.
SILENT = 5.0
# Each is kept, broken, or None where this fault cannot show it.
PROMISES = ("N1", "N2", "N3", "N4", "N5", "N6", "N7", "N8")


# Parsed YAML and JSON: a fault of faults.yml, one of its steps, a job, a verdict of run.json.
Fault = dict[str, Any]
Step = dict[str, Any]
Job = dict[str, Any]
Verdict = Mapping[str, Any] | None
# What drill_probe.py shows of a node at one time.
Observation = dict[str, Any]
Observations = Sequence[Observation]
# The result of one fault, as drill.json has it.
Result = dict[str, Any]


class DrillProblem(NamedTuple):
    """What did not come out as promised: a message code and a text."""

    code: str
    text: str


class DrillError(Exception):
    """The drill cannot be made, with a message for the user."""


def load(path: str | None = None) -> dict[str, Any]:
    """Return {"job": ..., "faults": {name: fault}} of a file.

    path: None for faults.yml. Raise DrillError where the file does not fit drills/schema.yml.
    """
    path = path or os.path.join(HERE, "faults.yml")
    value, lines, problems = yaml_source.read(path, os.path.basename(path))
    schema, _lines, wrong = yaml_source.read(os.path.join(HERE, "schema.yml"))
    problems = problems + wrong or yaml_source.validate(
        value, schema, lines, os.path.basename(path)
    )
    if problems:
        raise DrillError("; ".join(str(problem) for problem in problems))
    for name, fault in value["faults"].items():
        fault.update(
            name=name, needs=list_needs(fault), budget=dict(BUDGET, **fault.get("budget", {}))
        )
    return value


def list_needs(fault: Fault) -> list[str]:
    """Return the requirements of a fault on the site, of docker and example."""
    requirements = []
    if any("docker" in step or "root" in step for step in _steps(fault)):
        requirements.append("docker")
    job = fault.get("job", {})
    if job.get("overrides") or "config" in job:
        requirements.append("example")
    return requirements


def _steps(fault: Fault) -> list[Step]:
    """Return the steps of a fault of all kinds."""
    return [step for kind in STEP_KINDS for step in fault.get(kind, ())]


def select(faults: Mapping[str, Fault], only: str) -> list[str]:
    """Return the selected names, in the order of the file.

    only: a text of names or groups with commas, '' for all. Raises DrillError for unknown ones.
    """
    words = [word.strip() for word in str(only or "").split(",") if word.strip()]
    groups = {fault["group"] for fault in faults.values()}
    for word in words:
        if word not in faults and word not in groups:
            known = sorted(groups) + list(faults)
            raise DrillError(
                f"only: there is no fault {word!r}{value_text.suggest(word, known)};"
                f" known: {', '.join(known)}"
            )
    return [
        name
        for name, fault in faults.items()
        if not words or name in words or fault["group"] in words
    ]


def list_faults(faults: Mapping[str, Fault]) -> list[str]:
    """Return the faults as lines: name, group, description and requirements."""
    width = max(len(name) for name in faults)
    lines = []
    for name, fault in faults.items():
        line = f"{name:<{width}}  {fault['group']:<10}  {fault['injected']}"
        if fault["needs"]:
            line += f" ({', '.join(fault['needs'])})"
        lines.append(line)
    return lines


def find_obstacle(
    fault: Fault, embedded: bool, example: bool, verbs: Collection[str]
) -> str | None:
    """Return the reason why a fault cannot be injected on this site, or None.

    embedded: the site is the embedded one. example: the job is that of the example. verbs: the
    playbooks' names.
    """
    if "docker" in fault["needs"] and not embedded:
        return "is done to containers of the embedded site only"
    if "example" in fault["needs"] and not example:
        return "needs the code of examples/paddledetection, and -e config names another job"
    lacking = {step["verb"] for step in _steps(fault) if "verb" in step} - set(verbs)
    if lacking:
        return f"this version has no playbooks/{min(lacking)}.yml"
    return None


def make_job(base: Job, fault: Fault, secret: str) -> Job:
    """Return the job of a fault as data for a job file.

    secret: a value for a variable of the environment whose name is secret, for N7.
    """
    job = merge(copy.deepcopy(base), fault.get("job", {}))
    job["env"] = dict(job.get("env") or {}, DRILL_SECRET_TOKEN=secret)
    return job


def merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with changes in it, and nested mappings merged.

    The value None removes a key.
    """
    for key, value in changes.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            base[key] = merge(base[key], value)
        else:
            base[key] = value
    return base


# --- the observation


def attempt_part(observation: Any, number: int) -> dict[str, Any]:
    """Return an observation's part about an attempt, {} for none."""
    return (observation.get("attempts") or {}).get(str(number)) or {}


def has_failed(attempt: Mapping[str, Any]) -> bool:
    """Return whether a node's files report a failure or a stop of the attempt."""
    result = (attempt.get("exit") or {}).get("service_result")
    failed = result not in (None, "success") or any(
        event.get("event") == "end" and (event.get("exit_code") or event.get("signal"))
        for event in attempt.get("events") or ()
    )
    return failed or any(attempt.get(key) for key in ("stop", "stall", "loss"))


def find_begin(
    observations: Observations, number: int, node: str | None, rank: int | None
) -> float | None:
    """Return the time at which a fault from inside began, or None.

    It is that of the first observation at which the rank's log has the sign, or the rank is gone.
    node, rank: None for any.
    """
    was_alive = False
    for observation in observations:
        attempt = attempt_part(observation, number)
        if observation["node"] != node and node is not None:
            continue
        ranks = [
            entry for entry in attempt.get("ranks") or () if rank is None or entry["rank"] == rank
        ]
        died = was_alive and not all(entry["alive"] for entry in ranks)
        if attempt.get("sign") or died:
            return observation["t"]
        was_alive = was_alive or any(entry["alive"] for entry in ranks)
    return None


def find_detection(observations: Observations, number: int, since: float) -> float | None:
    """Return the time at which a node first knew of a failure since `since`, or None."""
    return next(
        (
            observation["t"]
            for observation in observations
            if observation["t"] >= since and has_failed(attempt_part(observation, number))
        ),
        None,
    )


def find_stop(observations: Observations, number: int, since: float) -> float | None:
    """Return the time since which no node that answers has a process of the attempt.

    None where some are there to the end. A node that was silent for SILENT seconds does not answer:
    a frozen one closes no connection.
    """
    marked: dict[str, int] = {}
    last_seen: dict[str, float] = {}
    end = None
    for observation in observations:
        node, now = observation["node"], observation["t"]
        marked[node], last_seen[node] = _processes(observation, number), now
        if any(count for name, count in marked.items() if now - last_seen[name] <= SILENT):
            end = None
        elif end is None and now >= since:
            end = now
    return end


def _processes(observation: Any, number: int) -> int:
    """Return the number of an attempt's processes that an observation shows."""
    if observation.get("gone"):
        return 0
    return attempt_part(observation, number).get("marked", 0)


def find_first_step(observations: Observations, number: int) -> float | None:
    """Return the time at which a rank of an attempt printed its first step, or None."""
    return next(
        (
            observation["t"]
            for observation in observations
            if attempt_part(observation, number).get("steps")
        ),
        None,
    )


def largest_count(observations: Observations, number: int, key: str) -> int:
    """Return the largest value of a count that any node has shown, 0 for none."""
    return max(
        (attempt_part(observation, number).get(key) or 0 for observation in observations), default=0
    )


# --- right or wrong


def judge(
    expect: Mapping[str, Any], verdict: Verdict, places: Mapping[str, tuple[str, int | None]]
) -> tuple[str, str]:
    """Return (right, wrong or unknown, reason) of a verdict as run.json has it.

    expect: the fault's. places: {"first": (node, rank), "last": (node, rank)}.
    """
    if not verdict:
        return "unknown", "there is no verdict"
    expected = {"outcome": expect.get("outcome"), "cause": expect.get("cause")}
    if expect.get("node"):
        expected["node"] = [places[expect["node"]][0]]
    if expect.get("rank"):
        expected["rank"] = [places[expect["rank"]][1]]
    expected.update({key: [expect[key]] for key in ("exit_code", "signal") if key in expect})
    wrong = [
        f"{key} is {verdict.get(key)}, wanted: {' or '.join(map(str, values))}"
        for key, values in expected.items()
        if values and verdict.get(key) not in values
    ]
    if not wrong:
        return "right", ""
    if verdict.get("outcome") == "unknown" or _accuses_none(verdict):
        return "unknown", "; ".join(wrong)
    return "wrong", "; ".join(wrong)


def _accuses_none(verdict: Mapping[str, Any]) -> bool:
    """Return whether a verdict names no node and no rank, and no known cause.

    Such a verdict is not wrong.
    """
    return (
        verdict.get("node") is None
        and verdict.get("rank") is None
        and verdict.get("outcome") != "completed"
        and verdict.get("cause")
        in (None, "unknown", "connection_lost", "no_end_recorded", "no_step")
    )


def seconds_between(later: float | None, earlier: float | None) -> float | None:
    """Return later - earlier with one digit, never below 0, or None if one is missing."""
    if later is None or earlier is None:
        return None
    return max(0.0, round(later - earlier, 1))


def find_delays(result: Result, budget: Mapping[str, float]) -> list[DrillProblem]:
    """Return a problem for each time of a result that passes the budget."""
    names = (("detected", "detect"), ("stopped", "stop"), ("resumed", "resume"))
    return [
        DrillProblem(
            "drill.late", f"{shown} after {result[shown]:.1f} s, allowed are {budget[key]:.0f}"
        )
        for shown, key in names
        if result.get(shown) is not None and result[shown] > budget[key]
    ]


def add_problems(result: Result, problems: Sequence[DrillProblem]) -> None:
    """Add problems to a result: their texts to `problems`, their codes to `codes`."""
    result["problems"] += [problem.text for problem in problems]
    result.setdefault("codes", []).extend(problem.code for problem in problems)


def is_kept(result: Result) -> bool:
    """Return whether a fault came out as promised.

    Then there is no problem, the verdict is right where one was expected, and no promise is broken.
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


def cell(text: object, limit: int = 160) -> str:
    """Return a text as one cell of a Markdown table."""
    text = " ".join(printable(str(text), limit=4000).split()).replace("|", "\\|")
    if len(text) > limit:
        return text[: limit - 1] + "…"
    return text


def promise_cell(promises: Mapping[str, bool | None]) -> str:
    """Return N1-N8 as one cell: the broken ones, else the number of checked ones."""
    broken = [name for name, value in promises.items() if value is False]
    if broken:
        return f"broken: {', '.join(broken)}"
    if None in promises.values():
        return f"held ({sum(value is True for value in promises.values())} of 8 asked)"
    return "held"


def make_row(result: Result) -> list[str]:
    """Return a result's line of the table as cells."""
    if result.get("skipped"):
        cells = [result["name"], result["injected"], *["–"] * 6]
        return [*cells, "skipped: " + result["skipped"]]
    note = "; ".join(result.get("problems") or []) or result.get("note") or ""
    known = _time_cell(result.get("detected"))
    if result.get("goes_on"):
        known = "goes on"
    return [
        result["name"],
        result["injected"],
        known,
        _time_cell(result.get("stopped")),
        result.get("verdict") or "–",
        result.get("says") or "–",
        _time_cell(result.get("resumed")),
        promise_cell(result.get("promises") or {}),
        note,
    ]


def _time_cell(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.1f} s"


def table(results: Sequence[Result]) -> str:
    """Return the Markdown table of all results."""
    lines = [HEAD, ["---"] * len(HEAD)]
    lines += [[cell(part) for part in make_row(result)] for result in results]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def summarize(results: Sequence[Result]) -> str:
    """Return one line about all results.

    It has the numbers of faults that came out as promised and that were skipped, and the worst and
    the middle of each time.
    """
    done = [result for result in results if not result.get("skipped")]
    successes = sum(is_kept(result) for result in done)
    parts = [f"{successes} of {len(done)} faults came out as promised"]
    for key, shown in (("detected", "known"), ("stopped", "stopped"), ("resumed", "next step")):
        times = sorted(result[key] for result in done if result.get(key) is not None)
        if times:
            parts.append(
                f"{shown} after {times[len(times) // 2]:.1f} s (middle), {times[-1]:.1f} s (worst)"
            )
    skipped = len(results) - len(done)
    if skipped:
        parts.append(f"{skipped} skipped")
    return "; ".join(parts)


def find_refusal(expect: Mapping[str, Any], text: str) -> bool:
    """Return whether a command's output has the refusal that a fault expects.

    The output's line breaks are ignored.
    """
    return re.search(expect["refused"], " ".join(text.split())) is not None
