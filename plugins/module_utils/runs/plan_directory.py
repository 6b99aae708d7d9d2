# SPDX-License-Identifier: Apache-2.0
"""The plan and the job of a run that this controller did not start, from the nodes' bytes.
Controller only.

A plan that is here already stays: the controller made it. Another controller's is taken where most
nodes of the run say that they hold the same one, and where it is what a plan can be. What a suite's
lines look like is never taken from a node: an expression of a node's could run for hours here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os

from jsonschema import Draft202012Validator

from ..base import safe_names, safe_open
from ..base.sanitize import printable
from ..config import job as jobs
from ..logsync import collector
from ..plan import resume_inputs
from ..suites import suite_table
from . import plan_origin

PLAN_BYTES, JOB_BYTES = 16 << 20, 1 << 20
DEPTH, VALUES = 16, 1_000_000
# The longest name of a file.
NAME_CHARACTERS = 255


class PlanProblem(Exception):
    """A plan or job of a node that is not taken; the message is safe to show."""


def parse(data, limit):
    """Return what JSON bytes of a node hold; raise PlanProblem for what is too large, too deep or
    no JSON.
    """
    if len(data) > limit:
        raise PlanProblem("it is larger than %d bytes" % limit)
    # Brackets within texts are few: what is nested more deeply than this would cost the parser its
    # stack.
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise PlanProblem(f"it is not JSON: {printable(str(error), limit=200)}") from None
    count, waiting = 0, [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        count += 1
        if depth > DEPTH or count > VALUES:
            raise PlanProblem(
                "it is nested more deeply than %d, or holds more than %d values" % (DEPTH, VALUES)
            )
        if isinstance(item, int) and not isinstance(item, bool) and abs(item) > 1 << 63:
            raise PlanProblem("it holds a number that is too large")
        inside = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        waiting += [(one, depth + 1) for one in inside]
    return value


def _refuse(name):
    raise ValueError(f"{name} is no JSON")


def agreed(answers):
    """Return the sha256 of the plan that more than half of a run's nodes hold; raise PlanProblem.
    answers: {node: sha256 or ''}.
    """
    said = [digest for digest in answers.values() if digest]
    counts = sorted(((said.count(digest), digest) for digest in set(said)), reverse=True)
    if not counts or 2 * counts[0][0] <= len(said):
        raise PlanProblem(
            "the nodes do not agree on the plan: {}".format(
                printable(
                    ", ".join(
                        "{} {}".format(node, (digest or "none")[:12])
                        for node, digest in sorted(answers.items())
                    )
                )
            )
        )
    return counts[0][1]


def plan_of(data, digest, site):
    """Return the plan in a node's bytes, with the shipped tables of its suite; raise PlanProblem.

    digest: as `agreed` gives it. site: the names of the inventory's trainers and spares.
    """
    if hashlib.sha256(data[: PLAN_BYTES + 1]).hexdigest() != digest:
        raise PlanProblem("its sha256 is not the one that the nodes agree on")
    plan = parse(data, PLAN_BYTES)
    error = next(
        iter(
            sorted(
                Draft202012Validator(jobs.load_schema("plan")).iter_errors(plan),
                key=lambda one: list(map(str, one.path)),
            )
        ),
        None,
    )
    if error is not None:
        where = ".".join(map(str, error.absolute_path)) or "the whole"
        raise PlanProblem(
            f"{printable(where, limit=200)} is not as a plan has it ({error.validator})"
        )
    names = [node["name"] for node in plan["nodes"]]
    ranks = [rank["rank"] for rank in plan["ranks"]]
    places = [(rank["node"], rank["local_rank"]) for rank in plan["ranks"]]
    if len(set(names)) != len(names) or not set(names) <= set(site):
        raise PlanProblem("it names nodes that the inventory does not have, or one twice")
    if (
        sorted(ranks) != list(range(len(ranks)))
        or len(set(places)) != len(places)
        or {node for node, _local in places} != set(names)
    ):
        raise PlanProblem("its ranks are not numbered from 0 over its nodes")
    if (
        plan["suite"]["name"] not in suite_table.names()
        or plan["launcher"]["name"] not in jobs.LAUNCHERS
    ):
        raise PlanProblem("it names a suite or a launcher that there is no table for")
    return dict(plan, suite=shipped(plan["suite"]))


def shipped(suite):
    """Return a plan's entry of a suite with what the shipped table says; of its own, only folders
    and redirects stay. Unknown names give none.
    """
    name = suite.get("name")
    table = (
        suite_table.load(name) if isinstance(name, str) and name in suite_table.names() else None
    )
    if table is None:
        return {
            "name": name if isinstance(name, str) else None,
            "logs": {},
            "resume": {},
            "checkpoints": {},
            "redirects": {},
        }
    own = suite.get("checkpoints") if isinstance(suite.get("checkpoints"), dict) else {}
    folders = own.get("folders") if isinstance(own.get("folders"), list) else []
    return {
        "name": name,
        "logs": table["logs"],
        "redirects": suite.get("redirects") if isinstance(suite.get("redirects"), dict) else {},
        "resume": {
            key: table["resume"][key] for key in resume_inputs.RULE if key in table["resume"]
        },
        "checkpoints": dict(table["checkpoints"], folders=folders),
    }


def job_of(data):
    """Return the job in a node's bytes (job.json), held against the job schema; raise PlanProblem."""
    job, problems = jobs.recorded(parse(data, JOB_BYTES), "job.json of a node")
    if not problems and (len(job["name"]) > NAME_CHARACTERS or not job["name"].isprintable()):
        problems = ["its name holds what no name does"]
    if problems:
        raise PlanProblem(
            printable("it is no job: {}".format("; ".join(map(str, problems[:5]))), limit=2000)
        )
    return job


def job_in(content):
    """Return the job in what slurp brought (base64), or None where there is none that can be used."""
    try:
        return (
            job_of(base64.b64decode(content, validate=True))
            if isinstance(content, str) and len(content) <= 2 * JOB_BYTES
            else None
        )
    except (PlanProblem, binascii.Error, ValueError):
        return None


LIMITS = {"plan.json": PLAN_BYTES, "job.json": JOB_BYTES}


def lacking(attempt):
    """Return {file: most bytes} of what is not here. A run of version 1 has its plan in the run's
    directory alone.
    """
    run = os.path.dirname(os.path.abspath(attempt))
    here = {
        "plan.json": [os.path.join(attempt, "plan.json")],
        "job.json": [os.path.join(run, "job.json")],
    }
    here["plan.json"] += (
        [os.path.join(run, "plan.json")] if attempt.rstrip("/").endswith("/attempt-1") else []
    )
    return {
        name: LIMITS[name] for name, paths in here.items() if not any(map(os.path.isfile, paths))
    }


def take(attempt, digests, site):
    """Take what is not here from what was brought to .incoming/<node>/; return (changed, sentences
    on what is not taken).

    digests: {node: sha256 of its plan, or ''}. site: as `plan_of` has it.
    """
    changed, problems = False, []
    for name in sorted(lacking(attempt)):
        taken, said = _take(attempt, name, digests, site)
        changed, problems = changed or taken, problems + said
    return changed, problems


def _take(attempt, name, digests, site):
    """Take a file from the first node whose bytes can be it; return (whether one did, sentences)."""
    said = []
    try:
        digest = agreed(digests) if name == "plan.json" else None
    except PlanProblem as error:
        return False, [f"{name} is not taken: {error}"]
    for node, data in brought(attempt, digests, name):
        try:
            value = plan_of(data, digest, site) if name == "plan.json" else job_of(data)
        except PlanProblem as error:
            said.append(printable(f"{name} is not taken from {node}: {error}", limit=1000))
            continue
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        if name == "plan.json":
            collector.put(
                os.path.join(attempt, plan_origin.MARK), hashlib.sha256(text.encode()).hexdigest()
            )
        collector.put(
            os.path.join(
                attempt if name == "plan.json" else os.path.dirname(os.path.abspath(attempt)), name
            ),
            text,
        )
        return True, []
    return False, said


def brought(attempt, nodes, name):
    """Yield (node, bytes) of a file that came from the nodes; the copy is removed."""
    root = safe_open.open_root(attempt)
    try:
        for node in nodes:
            path = f"{collector.INCOMING}/{node}/{name}"
            if safe_names.problem(path):
                continue
            try:
                with os.fdopen(safe_open.open_below(root, path), "rb") as handle:
                    data = handle.read(LIMITS[name] + 1)
            except OSError:
                continue
            with contextlib.suppress(OSError), safe_open.parent_of(root, path) as (folder, last):
                os.unlink(last, dir_fd=folder)
            yield node, data
    finally:
        os.close(root)
