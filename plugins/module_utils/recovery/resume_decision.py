# SPDX-License-Identifier: Apache-2.0
"""Whether a run can be resumed, as which attempt, by what its nodes and this controller know of it.
Pure, but for `at_home`; controller only.
"""

from __future__ import annotations

import base64
import collections
import json
import os
import time

from ..base import manifest
from ..base.text_layout import span as duration
from ..config import job_env
from ..records import run_choice, run_json


class Refused(Exception):
    """Nothing is to be resumed; the message is for people."""


class NotYet(Exception):
    """Somebody else is about to start what is asked for; the message is for people."""


def at_home(runs_dir, run):
    """Return {record, numbers, job, plan, first}: what this controller has of a run; first: the
    names of its first attempt's nodes. Raises NewerRecord.
    """
    run_dir = os.path.join(runs_dir, run)
    numbers = run_json.numbers(run_dir)
    return {
        "record": run_json.read(run_dir),
        "numbers": numbers,
        "job": manifest.read_mapping(os.path.join(run_dir, "job.json")) or None,
        "nodes": _nodes(run_json.plan_of(run_dir, numbers[-1])) if numbers else [],
        "first": _nodes(run_json.plan_of(run_dir, 1)) if 1 in numbers else [],
    }


def _nodes(plan):
    return [node["name"] for node in (plan or {}).get("nodes") or ()]


# Characters of a job.json in base64 that a node may bring; a job is a page of text, and it is read
# again as one (read_job).
JOB_CHARACTERS = 1 << 20


def job_of(home, content):
    """Return the run's job: this controller's, else the one that most of the nodes have. Raises
    Refused.

    content: base64 of job.json, as each node that has one gave it.
    """
    if home["job"]:
        return home["job"]
    count = collections.Counter(
        text for text in ([content] if isinstance(content, str) else content) if text
    )
    best = [text for text in count if count[text] == max(count.values())]
    if len(best) > 1:
        raise Refused(
            "there is no job.json of this run here, and the nodes have different ones; resume it"
            " from the controller that started it"
        )
    try:
        job = json.loads(
            base64.b64decode(best[0] if best and len(best[0]) <= JOB_CHARACTERS else "").decode(
                "utf-8"
            )
        )
    except (ValueError, RecursionError):
        job = None
    if not isinstance(job, dict):
        raise Refused(
            "there is no job.json of this run: neither here nor on a node that answers; start it"
            " anew with playbooks/train.yml"
        )
    env = job.get("env")
    wrong = (
        sorted(name for name in env if job_env.job_problem(str(name)))
        if isinstance(env, dict)
        else []
    )
    if wrong:
        text = (
            "the copy of the run's job on the nodes sets %s, which a job may not set; resume it"
            " where it was started, or start it anew"
        )
        raise Refused(text % ", ".join(repr(name) for name in wrong[:5]))
    return job


def settle(run, home, answers, after=0, now=None):
    """Return {run, number, mode, nodes, places, unfinished, before, notes}: what is to be done for
    a run.

    home: as at_home gives it. answers: {node: what attempt_status said, or nothing where it did not
    answer}. after: the number of the attempt that a restart follows, 0 where a person asks. now:
    unix seconds.

    mode: `start` an attempt of this number, or `follow` the one that somebody else has begun
    meanwhile, or that goes on whole although the restart's own command took it for lost: it was the
    controller that was cut off (only where a restart is meant). nodes: of the newest attempt,
    places: of the first one, in rank order. unfinished: its newest attempt (before) has ended and
    nobody has recorded how. notes: lines about nodes whose word does not count. Raises Refused, and
    NotYet where somebody else is about to start it.
    """
    now = now or time.time()
    record = home["record"] or run_json.empty(run, None, None)
    answers = {node: status if isinstance(status, dict) else {} for node, status in answers.items()}
    members = {*home["nodes"], *home["first"]}
    found, notes = run_choice.believed(
        run_choice.claims(answers, list(answers), run), answers, home["numbers"], members
    )
    begun = [
        number
        for number in home["numbers"]
        if run_json.known(record, number)["reason"] != run_json.NOT_STARTED
    ]
    # (an attempt that was taken back on the nodes that had begun it is nobody's to follow)
    mine = [
        status["attempt"]
        for status in found.values()
        if not (after and status["ended"] and status.get("undone"))
    ]
    started = max(mine, default=0)
    newest = max([*begun, started]) if begun or started else 0
    if not newest and not home["numbers"]:
        raise Refused(_unknown(run, answers))
    of_newest = {node: status for node, status in found.items() if status["attempt"] == started}
    here = home["nodes"] if home["numbers"] and started <= home["numbers"][-1] else []
    nodes = here or (run_choice.agreed(of_newest, list(answers)) if of_newest else home["nodes"])
    members.update(nodes)
    result = {
        "run": run,
        "nodes": nodes,
        "places": home["first"] or nodes,
        "unfinished": False,
        "notes": notes,
    }
    if after and newest > after:
        if started < newest:
            raise NotYet(
                "attempt %d of %s has been begun by another command and is on no node yet"
                % (newest, run)
            )
        return dict(result, mode="follow", number=newest)
    # stop.yml leaves a note in the place of the next attempt where nothing of the run runs
    # (status.noted_of)
    noted = [
        number
        for node in members
        for number in (answers.get(node) or {}).get("noted") or ()
        if run_choice.is_attempt(number)
    ]
    if after and any(number > newest for number in noted):
        raise Refused(
            f"{run} was stopped while its restart waited; by hand: playbooks/resume.yml -e"
            f" run={run}"
        )
    running = {node: status for node, status in found.items() if not status["ended"]}
    if (
        after
        and newest == after
        and nodes
        and set(nodes)
        <= {node for node, item in of_newest.items() if item.get("state") == "running"}
    ):
        return dict(result, mode="follow", number=newest)
    if running:
        # a node that was cut off or frozen may be back with the old attempt, which its guard is
        # about to end
        raise (NotYet if after else Refused)(_running(run, running, now))
    entry = run_json.known(record, newest)
    verdict = entry["verdict"] or {}
    whole = set(of_newest) >= set(nodes) and all(
        status.get("state") == "completed" for status in of_newest.values()
    )
    if verdict.get("outcome") == "completed" or (
        of_newest and whole and started == newest and not verdict
    ):
        text = (
            "%s has completed (attempt %d%s): there is nothing to resume; playbooks/train.yml"
            " starts a new run"
        )
        raise Refused(
            text
            % (
                run,
                newest,
                ", {} ago".format(duration(now - entry["ended"])) if entry["ended"] else "",
            )
        )
    number = run_choice.next_number(
        home["numbers"], {node: status.get("attempts") for node, status in answers.items()}, newest
    )
    return dict(
        result,
        mode="start",
        number=number,
        unfinished=bool(of_newest) and started == newest and not verdict,
        before=newest,
    )


def _unknown(run, answers):
    known = run_choice.known_runs(answers)
    silent = [node for node, status in answers.items() if not status]
    parts = [f"no node knows the run {run}, and it is not at home"]
    parts += ["known: " + ", ".join(known[:5])] if known else []
    return "; ".join(parts + (["no answer from " + ", ".join(silent)] if silent else []))


def _time(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e11


def _running(run, running, now):
    """Say who holds a run that goes on, and since when."""
    first = min(
        running.values(),
        key=lambda status: status["started"] if _time(status.get("started")) else now,
    )
    since = ""
    if _time(first.get("started")) and _time(first.get("now")):
        since = ", started {} ago".format(duration(max(0.0, first["now"] - first["started"])))
    by = " by {}".format(first["by"]) if first.get("by") else ""
    text = (
        "%s goes on: attempt %d holds %s (%s)%s%s; follow it: playbooks/follow.yml -e run=%s, stop"
        " it: playbooks/stop.yml -e run=%s"
    )
    return text % (
        run,
        first["attempt"],
        ", ".join(sorted(running)),
        first.get("unit"),
        since,
        by,
        run,
        run,
    )
