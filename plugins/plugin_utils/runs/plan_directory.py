# SPDX-License-Identifier: Apache-2.0
"""The plan and the job of a run that this controller did not start.

They are read from the nodes' bytes. A plan that is here already stays: the controller made it.
Another controller's is taken where most nodes of the run say that they hold the same one, and where
it is what a plan can be. What a suite's lines look like is never taken from a node: an expression
of a node's could run for hours here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names, safe_open
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import update_file
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import (
    compiler,
    resume_inputs,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites.launcher_table import (
    LAUNCHERS,
)
from jsonschema import Draft202012Validator

from ..config import job as jobs
from ..logsync import collector
from ..suites import suite_file
from . import plan_origin

PLAN_BYTES, JOB_BYTES = 16 << 20, 1 << 20
DEPTH, VALUES = 16, 1_000_000
# The longest name of a file.
NAME_CHARACTERS = 255


class PlanProblem(Exception):
    """A plan or job of a node that is not taken.

    The message is safe to show.
    """


def parse(data: bytes, limit: int) -> Any:
    """Return what JSON bytes of a node hold.

    limit: bytes. Raises PlanProblem for what is too large, too deep or no JSON.
    """
    if len(data) > limit:
        raise PlanProblem(f"it is larger than {limit} bytes")
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
                f"it is nested more deeply than {DEPTH}, or holds more than {VALUES} values"
            )
        if isinstance(item, int) and not isinstance(item, bool) and abs(item) > 1 << 63:
            raise PlanProblem("it holds a number that is too large")
        waiting += [(child, depth + 1) for child in _children(item)]
    return value


def _children(value: Any) -> Iterable[Any]:
    """Return the values inside an object or array of JSON."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list):
        return value
    return ()


def _refuse(name: str) -> None:
    """Raise ValueError for a constant that JSON does not have."""
    raise ValueError(f"{name} is no JSON")


def majority_digest(answers: Mapping[str, str]) -> str:
    """Return the sha256 of the plan that more than half of a run's nodes hold.

    answers: {node: sha256 or ''}. Raises PlanProblem.
    """
    digests = [digest for digest in answers.values() if digest]
    counts = sorted(((digests.count(digest), digest) for digest in set(digests)), reverse=True)
    if not counts or 2 * counts[0][0] <= len(digests):
        held = ", ".join(
            f"{node} {(digest or 'none')[:12]}" for node, digest in sorted(answers.items())
        )
        raise PlanProblem(f"the nodes do not agree on the plan: {printable(held)}")
    return counts[0][1]


def read_plan(data: bytes, digest: str, site: Collection[str]) -> dict[str, Any]:
    """Return the plan in a node's bytes, with the shipped tables of its suite.

    digest: as `majority_digest` gives it. site: the names of the inventory's trainers and spares.
    Raises PlanProblem.
    """
    if hashlib.sha256(data[: PLAN_BYTES + 1]).hexdigest() != digest:
        raise PlanProblem("its sha256 is not the one that the nodes agree on")
    plan = parse(data, PLAN_BYTES)
    _check_schema(plan)
    _check_ranks(plan, site)
    if plan["suite"]["name"] not in suite_file.names() or plan["launcher"]["name"] not in LAUNCHERS:
        raise PlanProblem("it names a suite or a launcher that there is no table for")
    return dict(plan, suite=shipped_suite(plan["suite"]))


def _check_schema(plan: Any) -> None:
    """Raise PlanProblem where a plan is not as the schema has it."""
    errors = sorted(
        Draft202012Validator(jobs.load_schema("plan")).iter_errors(plan),
        key=lambda error: list(map(str, error.path)),
    )
    if errors:
        where = ".".join(map(str, errors[0].absolute_path)) or "the whole"
        raise PlanProblem(
            f"{printable(where, limit=200)} is not as a plan has it ({errors[0].validator})"
        )


def _check_ranks(plan: dict[str, Any], site: Collection[str]) -> None:
    """Raise PlanProblem where a plan's nodes or ranks cannot be those of the site."""
    names = [node["name"] for node in plan["nodes"]]
    numbers = [rank["rank"] for rank in plan["ranks"]]
    slots = [(rank["node"], rank["local_rank"]) for rank in plan["ranks"]]
    if len(set(names)) != len(names) or not set(names) <= set(site):
        raise PlanProblem("it names nodes that the inventory does not have, or one twice")
    if (
        sorted(numbers) != list(range(len(numbers)))
        or len(set(slots)) != len(slots)
        or {node for node, _local_rank in slots} != set(names)
    ):
        raise PlanProblem("its ranks are not numbered from 0 over its nodes")


def shipped_suite(suite: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's entry of a suite with what the shipped table says.

    Of its own, only folders and redirects stay. An unknown name gives an entry without patterns.
    """
    name = suite.get("name")
    if not isinstance(name, str):
        name = None
    if name not in suite_file.names():
        return {"name": name, "logs": {}, "resume": {}, "checkpoints": {}, "redirects": {}}
    table = suite_file.load(name)
    folders = _mapping(suite.get("checkpoints")).get("folders")
    if not isinstance(folders, list):
        folders = []
    return {
        "name": name,
        "logs": table["logs"],
        "redirects": _mapping(suite.get("redirects")),
        "resume": {
            key: table["resume"][key] for key in resume_inputs.RULE_KEYS if key in table["resume"]
        },
        "checkpoints": dict(
            {key: table["checkpoints"][key] for key in compiler.CHECKPOINT_KEYS}, folders=folders
        ),
    }


def _mapping(value: Any) -> dict[str, Any]:
    """Return a value that is a mapping, else {}."""
    if isinstance(value, dict):
        return value
    return {}


def read_job(data: bytes) -> dict[str, Any]:
    """Return the job in a node's bytes (job.json), compared with the job schema.

    Raises PlanProblem.
    """
    job, problems = jobs.read_recorded_job(parse(data, JOB_BYTES), "job.json of a node")
    texts = [str(problem) for problem in problems]
    if not texts and job and not _is_name(job["name"]):
        texts = ["its name is too long or not printable"]
    if texts or job is None:
        text = "; ".join(texts[:5])
        raise PlanProblem(printable(f"it is no job: {text}", limit=2000))
    return job


def _is_name(text: str) -> bool:
    """Return whether a text can be the name of a job."""
    return len(text) <= NAME_CHARACTERS and text.isprintable()


LIMITS = {"plan.json": PLAN_BYTES, "job.json": JOB_BYTES}


def make_private(attempt: str) -> bool:
    """Let nobody else read the directories of an attempt and its run, and make them if need be.

    The plan holds the environment, and so the site's secrets. Return whether anything was changed.
    """
    changed = False
    for path in (os.path.dirname(os.path.abspath(attempt)), attempt):
        os.makedirs(path, mode=0o700, exist_ok=True)
        if stat.S_IMODE(os.stat(path).st_mode) != 0o700:
            os.chmod(path, 0o700)
            changed = True
    return changed


def missing_files(attempt: str) -> dict[str, int]:
    """Return {file: most bytes} of what the controller does not have of an attempt.

    attempt: the attempt's directory. A run of version 1 has its plan in the run's directory alone.
    """
    run_dir = os.path.dirname(os.path.abspath(attempt))
    plans = [os.path.join(attempt, "plan.json")]
    if attempt.rstrip("/").endswith("/attempt-1"):
        plans.append(os.path.join(run_dir, "plan.json"))
    paths_of = {"plan.json": plans, "job.json": [os.path.join(run_dir, "job.json")]}
    return {
        name: LIMITS[name]
        for name, paths in paths_of.items()
        if not any(map(os.path.isfile, paths))
    }


def read_digests(
    answers: Iterable[Mapping[str, Mapping[str, Any]]], attempt: str
) -> dict[str, str]:
    """Return {node: sha256 of its plan}, '' for a node that named none.

    answers: what attempt_monitor returned on every node, of each query; {} without an answer.
    attempt: the attempt's directory. A query may have been about a later attempt.
    """
    digests: dict[str, str] = {}
    name = os.path.basename(attempt.rstrip("/"))
    for statuses in answers:
        for node, status in statuses.items():
            digest = status.get("plan_sha256")
            if not isinstance(digest, str) or f"attempt-{status.get('attempt')}" != name:
                digest = ""
            digests[node] = max(digests.get(node, ""), digest)
    return digests


def take(attempt: str, digests: Mapping[str, str], site: Collection[str]) -> tuple[bool, list[str]]:
    """Take what the controller lacks from what was copied to .incoming/<node>/.

    Return (changed, sentences on what is not taken). digests: {node: sha256 of its plan, or ''}.
    site: as `read_plan` has it.
    """
    changed, problems = False, []
    for name in sorted(missing_files(attempt)):
        if name == "plan.json":
            taken, sentences = _take_plan(attempt, digests, site)
        else:
            taken, sentences = _take_job(attempt, digests)
        changed = changed or taken
        problems += sentences
    return changed, problems


def _take_plan(
    attempt: str, digests: Mapping[str, str], site: Collection[str]
) -> tuple[bool, list[str]]:
    """Take the plan from the first node whose bytes can be it.

    Return (taken, sentences).
    """
    try:
        digest = majority_digest(digests)
    except PlanProblem as error:
        return False, [f"plan.json is not taken: {error}"]
    text, problems = _read_first(
        attempt, digests, "plan.json", lambda data: read_plan(data, digest, site)
    )
    if text is None:
        return False, problems
    mark = hashlib.sha256(text.encode()).hexdigest()
    update_file(os.path.join(attempt, plan_origin.MARK), mark)
    update_file(os.path.join(attempt, "plan.json"), text)
    return True, []


def _take_job(attempt: str, nodes: Iterable[str]) -> tuple[bool, list[str]]:
    """Take the job from the first node whose bytes can be it.

    Return (taken, sentences).
    """
    text, problems = _read_first(attempt, nodes, "job.json", read_job)
    if text is None:
        return False, problems
    run_dir = os.path.dirname(os.path.abspath(attempt))
    update_file(os.path.join(run_dir, "job.json"), text)
    return True, []


def _read_first(
    attempt: str, nodes: Iterable[str], name: str, read: Callable[[bytes], Any]
) -> tuple[str | None, list[str]]:
    """Return (text, sentences) of the first node's file that can be read.

    text: its canonical JSON, or None. read: returns the value of a node's bytes, or raises
    PlanProblem.
    """
    problems = []
    for node, data in take_copies(attempt, nodes, name):
        try:
            value = read(data)
        except PlanProblem as error:
            problems.append(printable(f"{name} is not taken from {node}: {error}", limit=1000))
            continue
        return json.dumps(value, sort_keys=True, separators=(",", ":")), problems
    return None, problems


def take_copies(attempt: str, nodes: Iterable[str], name: str) -> Iterator[tuple[str, bytes]]:
    """Yield (node, bytes) of a file that came from the nodes.

    The copy is removed.
    """
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
