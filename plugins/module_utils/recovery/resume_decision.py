# SPDX-License-Identifier: Apache-2.0
"""The decision to resume a run: as which attempt and on which nodes.

It depends on what the nodes and this controller know of the run. All functions are pure, except
`read_controller_state`.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import json
import os
import time
import typing

from ..attempts.states import AttemptState, Outcome
from ..base.coded_error import CodedError
from ..base.files import read_mapping
from ..base.units import format_clock
from ..plan import job_env
from ..records import run_choice, run_json


class ResumeRefused(CodedError):
    """Nothing is to be resumed."""


class ResumePostponed(CodedError):
    """Another command is about to start the attempt, or the attempt before it is being ended."""


class ResumeMode(str, enum.Enum):
    """What is to be done for a run."""

    START = "start"  # start the next attempt
    FOLLOW = "follow"  # follow the newest attempt, which another command has begun


class ControllerState(typing.TypedDict):
    """The part of a run that this controller has."""

    record: dict[str, typing.Any] | None  # run.json
    numbers: list[int]  # of the attempts
    job: dict[str, typing.Any] | None
    nodes: list[str]  # names of the newest attempt's nodes
    first: list[str]  # names of the first attempt's nodes


class _Decision(typing.TypedDict):
    """The part that both kinds of a decision have."""

    run: str
    mode: str  # of ResumeMode
    number: int  # of the attempt that is started or followed
    nodes: list[str]  # the newest attempt's, in rank order
    places: list[str]  # the first attempt's nodes, in rank order
    unfinished: bool  # whether the newest attempt has ended and its end is not recorded
    notes: list[str]  # lines about nodes whose word does not count


class ResumeDecision(_Decision, total=False):
    """What is to be done for a run."""

    before: int  # the newest attempt so far (START only)


def read_controller_state(runs_dir, run):
    """Return the ControllerState of a run.

    Raises NewerRecord.
    """
    run_dir = os.path.join(runs_dir, run)
    numbers = run_json.attempt_numbers(run_dir)
    return {
        "record": run_json.read(run_dir),
        "numbers": numbers,
        "job": read_mapping(os.path.join(run_dir, "job.json")) or None,
        "nodes": _planned_nodes(run_dir, numbers, max(numbers, default=0)),
        "first": _planned_nodes(run_dir, numbers, 1),
    }


def _planned_nodes(run_dir, numbers, number):
    """Return the names of an attempt's nodes, none without its plan."""
    if number not in numbers:
        return []
    plan = run_json.read_plan(run_dir, number) or {}
    return [node["name"] for node in plan.get("nodes") or ()]


# Characters of a job.json in base64 that a node may bring; a job is a page of text, and it is read
# again as one (job_config).
JOB_CHARACTERS = 1 << 20


def choose_job(controller, content):
    """Return the run's job: this controller's, else that of most nodes.

    controller: its ControllerState. content: base64 of job.json, as each node that has one gave it.
    Raises ResumeRefused.
    """
    if controller["job"]:
        return controller["job"]
    copies = content
    if isinstance(content, str):
        copies = [content]
    job = _decode_job(_choose_copy(copies))
    if not isinstance(job, dict):
        raise ResumeRefused(
            "resume.no_job",
            "there is no job.json of this run: neither here nor on a node that answers; start it"
            " anew with ansible-playbook playbooks/train.yml",
        )
    forbidden = _forbidden_variables(job)
    if forbidden:
        names = ", ".join(repr(name) for name in forbidden[:5])
        raise ResumeRefused(
            "resume.forbidden_variable",
            f"the copy of the run's job on the nodes sets {names}, which a job may not set; resume"
            " it where it was started, or start it anew",
        )
    return job


def _choose_copy(copies):
    """Return the text that most nodes gave, '' for none.

    Raises ResumeRefused for a tie.
    """
    count = collections.Counter(text for text in copies if text)
    most = max(count.values(), default=0)
    best = [text for text in count if count[text] == most]
    if len(best) > 1:
        raise ResumeRefused(
            "resume.jobs_differ",
            "there is no job.json of this run here, and the nodes have different ones; resume it"
            " from the controller that started it",
        )
    return "".join(best)


def _decode_job(text):
    """Return the value of a job.json in base64, None for an invalid one.

    A text that is too long is invalid.
    """
    if len(text) > JOB_CHARACTERS:
        return None
    try:
        return json.loads(base64.b64decode(text).decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _forbidden_variables(job):
    """Return the environment variables of a job that a job may not set, sorted."""
    env = job.get("env")
    if not isinstance(env, dict):
        return []
    return sorted(name for name in env if job_env.job_problem(str(name)))


@dataclasses.dataclass(frozen=True)
class _Knowledge:
    """The state of a run, as far as its nodes and this controller know it."""

    run: str
    after: int  # number of the attempt that a restart follows, 0 where a person resumes the run
    answers: dict  # {node: status}, {} where the node did not answer
    claims: dict  # {node: status}, of the nodes whose word about the run counts
    notes: list  # lines about the nodes whose word does not count
    planned: list  # numbers of the attempts that this controller has
    started: int  # number of the newest attempt that a node has begun, 0 without one
    newest: int  # number of the newest attempt that a node or this controller has begun, 0 for none
    nodes: list  # names of the newest attempt's nodes in rank order
    places: list  # names of the first attempt's nodes in rank order
    members: set  # names of all nodes that have or had a part in the run
    entry: dict  # what the record has of the newest attempt

    @property
    def newest_claims(self):
        """Return {node: status} of the nodes with the newest attempt of all nodes."""
        return _claims_of(self.claims, self.started)

    @property
    def verdict(self):
        """Return the newest attempt's verdict, {} where none is recorded."""
        return self.entry["verdict"] or {}

    @property
    def is_newest_on_nodes(self):
        """Return whether the newest attempt is one that the nodes have begun."""
        return self.started == self.newest


def decide(run, controller, answers, after=0, now=None):
    """Return the ResumeDecision for a run.

    controller: its ControllerState. answers: {node: its AttemptStatus, or nothing where the node
    did not answer}. after: the number of the attempt that a restart follows, 0 where a person
    resumes the run. now: unix seconds.

    Only a restart follows an attempt, in two cases. Another command has begun it meanwhile. Or it
    runs on all its nodes although the restart's own command took it for lost, because it was the
    controller that was cut off.

    Raises ResumeRefused, and ResumePostponed where another command is about to start the attempt.
    """
    now = now or time.time()
    known = _gather_knowledge(run, controller, answers, after)
    if after and known.newest > after:
        _check_begun_on_nodes(known)
        return _follow(known)
    if after:
        _refuse_stopped(known)
        if known.newest == after and _runs_whole(known):
            return _follow(known)
    _refuse_running(known, now)
    _refuse_completed(known, now)
    _refuse_supervised(known)
    return _start(known)


def _gather_knowledge(run, controller, answers, after):
    """Put together what the nodes and this controller know.

    Raises ResumeRefused for an unknown run.
    """
    record = controller["record"] or run_json.new_record(run, None, None)
    answers = {node: _mapping(status) for node, status in answers.items()}
    members = {*controller["nodes"], *controller["first"]}
    claims, notes = run_choice.split_claims(
        run_choice.valid_claims(answers, list(answers), run),
        answers,
        controller["numbers"],
        members,
    )
    started = _newest_started(claims, after)
    newest = max([*_begun_numbers(controller["numbers"], record), started])
    if not newest and not controller["numbers"]:
        raise ResumeRefused("resume.unknown_run", _unknown(run, answers))
    nodes = _newest_nodes(controller, answers, claims, started)
    return _Knowledge(
        run=run,
        after=after,
        answers=answers,
        claims=claims,
        notes=notes,
        planned=controller["numbers"],
        started=started,
        newest=newest,
        nodes=nodes,
        places=controller["first"] or nodes,
        members={*members, *nodes},
        entry=run_json.attempt_entry(record, newest),
    )


def _mapping(status):
    """Return a node's answer, {} where it is not a mapping."""
    if isinstance(status, dict):
        return status
    return {}


def _claims_of(claims, number):
    """Return the claims about one attempt."""
    return {node: status for node, status in claims.items() if status["attempt"] == number}


def _newest_started(claims, after):
    """Return the number of the newest attempt on the nodes, 0 for none.

    A restart does not follow an attempt that was taken back on the nodes that had begun it.
    """
    numbers = [
        status["attempt"]
        for status in claims.values()
        if not (after and status["ended"] and status.get("undone"))
    ]
    return max(numbers, default=0)


def _begun_numbers(numbers, record):
    """Return the controller's attempts that were not refused at their start."""
    return [
        number
        for number in numbers
        if run_json.attempt_entry(record, number)["reason"] != run_json.NOT_STARTED
    ]


def _newest_nodes(controller, answers, claims, started):
    """Return the nodes of the newest attempt.

    The controller's plan counts before the nodes.
    """
    if controller["numbers"] and started <= controller["numbers"][-1] and controller["nodes"]:
        return controller["nodes"]
    newest_claims = _claims_of(claims, started)
    if newest_claims:
        return run_choice.majority_nodes(newest_claims, list(answers))
    return controller["nodes"]


def _check_begun_on_nodes(known):
    """Raise ResumePostponed where no node has begun the newest attempt."""
    if not known.is_newest_on_nodes:
        raise ResumePostponed(
            "resume.begun_elsewhere",
            f"attempt {known.newest} of {known.run} has been begun by another command and is on no"
            " node yet",
        )


def _refuse_stopped(known):
    """Raise ResumeRefused where stop.yml ran while the restart waited.

    It leaves a note in the place of the next attempt where nothing of the run runs
    (status.early_stops).
    """
    noted = [
        number
        for node in known.members
        for number in (known.answers.get(node) or {}).get("noted") or ()
        if run_choice.is_attempt(number)
    ]
    if any(number > known.newest for number in noted):
        raise ResumeRefused(
            "resume.stopped",
            f"{known.run} was stopped while its restart waited; by hand: ansible-playbook"
            " playbooks/resume.yml -e"
            f" run={known.run}",
        )


def _runs_whole(known):
    """Return whether the newest attempt runs on all its nodes."""
    running = {
        node
        for node, status in known.newest_claims.items()
        if status.get("state") == AttemptState.RUNNING
    }
    return bool(known.nodes) and set(known.nodes) <= running


def _refuse_running(known, now):
    """Raise ResumeRefused or ResumePostponed where a node still has a part of the run.

    It is ResumePostponed for a restart. A node that was cut off or frozen may be back with the old
    attempt, which its guard is about to end.
    """
    running = {node: status for node, status in known.claims.items() if not status["ended"]}
    if not running:
        return
    message = _running(known.run, running, now)
    if known.after:
        raise ResumePostponed("resume.still_running", message)
    raise ResumeRefused("resume.still_running", message)


def _refuse_supervised(known):
    """Raise ResumeRefused where the nodes still restart the run themselves."""
    if any((status.get("supervised") or {}).get("is_open") for status in known.claims.values()):
        raise ResumeRefused(
            "resume.supervised",
            f"the nodes of {known.run} restart it themselves: follow it, ansible-playbook"
            f" playbooks/follow.yml -e run={known.run}; or stop it first, ansible-playbook"
            f" playbooks/stop.yml -e run={known.run}",
        )


def _refuse_completed(known, now):
    """Raise ResumeRefused where the newest attempt has completed."""
    if known.verdict.get("outcome") != Outcome.COMPLETED and not _completed_unrecorded(known):
        return
    age = ""
    if known.entry["ended"]:
        age = f", {format_clock(now - known.entry['ended'])} ago"
    raise ResumeRefused(
        "resume.completed",
        f"{known.run} has completed (attempt {known.newest}{age}): there is nothing to resume;"
        " ansible-playbook playbooks/train.yml starts a new run",
    )


def _completed_unrecorded(known):
    """Return whether all nodes say that the newest attempt has completed.

    It has no verdict yet.
    """
    claims = known.newest_claims
    whole = set(claims) >= set(known.nodes) and all(
        status.get("state") == AttemptState.COMPLETED for status in claims.values()
    )
    return bool(claims) and whole and known.is_newest_on_nodes and not known.verdict


def _follow(known):
    """Return the decision to follow the newest attempt."""
    return dict(_decision(known), mode=ResumeMode.FOLLOW.value, number=known.newest)


def _start(known):
    """Return the decision to start the next attempt."""
    attempts = {node: status.get("attempts") for node, status in known.answers.items()}
    ended = bool(known.newest_claims) and known.is_newest_on_nodes
    return dict(
        _decision(known),
        mode=ResumeMode.START.value,
        number=run_choice.next_number(known.planned, attempts, known.newest),
        unfinished=ended and not known.verdict,
        before=known.newest,
    )


def _decision(known):
    """Return the part that both kinds of a decision have."""
    return {
        "run": known.run,
        "nodes": known.nodes,
        "places": known.places,
        "unfinished": False,
        "notes": known.notes,
    }


def _unknown(run, answers):
    """Return the message about an unknown run."""
    runs = run_choice.known_runs(answers)
    silent = [node for node, status in answers.items() if not status]
    parts = [f"no node knows the run {run}, and this controller has no record of it"]
    if runs:
        parts.append("known: " + ", ".join(runs[:5]))
    if silent:
        parts.append("no answer from " + ", ".join(silent))
    return "; ".join(parts)


def _is_time(value):
    """Return whether a value can be unix seconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e11


def _running(run, running, now):
    """Return the message about a run that goes on.

    It names the nodes, the command that holds them, and the time since when.
    """

    def begin(status):
        """Return the time when a node's attempt was started, else now."""
        if _is_time(status.get("started")):
            return status["started"]
        return now

    first = min(running.values(), key=begin)
    since = by = ""
    if _is_time(first.get("started")) and _is_time(first.get("now")):
        age = format_clock(max(0.0, first["now"] - first["started"]))
        since = f", started {age} ago"
    if first.get("by"):
        by = f" by {first['by']}"
    names = ", ".join(sorted(running))
    return (
        f"{run} goes on: attempt {first['attempt']} holds {names} ({first.get('unit')}){since}{by};"
        f" follow it: ansible-playbook playbooks/follow.yml -e run={run}, stop it:"
        f" ansible-playbook playbooks/stop.yml -e run={run}"
    )
