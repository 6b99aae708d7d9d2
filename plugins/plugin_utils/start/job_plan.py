# SPDX-License-Identifier: Apache-2.0
"""A job's plan, with its obstacles and the steps before the start."""

from __future__ import annotations

import os
import time
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import python_env
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler, resume_inputs
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import Plan
from ansible_collections.trainyard.cluster.plugins.module_utils.rehearsal import outcome

from ..network import reachability
from ..plan import readiness, render
from ..preflight import checks, proof_cache

# What the ranks of a rehearsal run, below the project's directory.
REHEARSED = "plugins/module_utils/agent/rehearsal_rank.py"
Given = dict[str, Any]
Findings = list[dict[str, Any]]


def plan_job(given: Given) -> dict[str, Any]:
    """Return plan, findings and what is to be done, `refused` where nothing is left to train."""
    facts, now = given["facts"], time.time()
    found = checks.judge_silent_nodes(given["silent"])
    found += checks.judge_nodes(given["nodes"], facts, given["allowed"])
    found += checks.judge_trust(given["nodes"], facts, given["state_dir"], now, given["report"])
    plan, more = _try_to_compile(given)
    found += more
    if given["repair"]:
        found = checks.demote_for_sync(found)
    done = resume_inputs.completion_problem(
        given["resume"], given["suite"], given["inputs"].get("config") or {}
    )
    # a node that does not answer now is not waited for with nothing to train
    if done and done not in [item["text"] for item in found]:
        found += checks.describe_plan_error(compiler.PlanError([done]))
    if not plan:
        lines = lines_of(found)
        return {
            "changed": False,
            "findings": found,
            "lines": lines,
            "todo": {},
            "refused": bool(done),
        }
    return _complete(plan, found, given, now)


def lines_of(found: Findings) -> list[str]:
    """Return the findings as a table that is safe to show. It has the nodes' own texts."""
    return [printable(line) for line in findings.lines(found)]


def _try_to_compile(given: Given) -> tuple[Plan | None, Findings]:
    """Return (plan, findings about it). There is no plan while a node is silent."""
    if given["silent"]:
        return None, []
    try:
        plan = _compile(given)
    except (compiler.PlanError, python_env.EnvironmentRefused, OSError) as error:
        return None, checks.describe_plan_error(error)
    return plan, checks.judge_plan(plan, given["facts"], given["allowed"], given["repair"])


def _compile(given: Given) -> Plan:
    """Return the plan of the arguments."""
    name = given["nodes"][0]["name"]
    unread = given["inputs"].get("unread")
    if unread:
        raise compiler.PlanError([f"{name} has not told of the code that lies there: {unread}"])
    first = given["facts"][name]
    wanted = given["source"]["environment"]
    texts = python_env.requirement_texts(wanted.get("requirements") or [], given["project"])
    digest = python_env.environment_digest(wanted, texts, first["python_version"], first["machine"])
    inputs = {
        **given["inputs"],
        "suite": given["suite"],
        "environment": {**wanted, "digest": digest},
        "resume": given["resume"] or None,
    }
    return compiler.compile_plan(
        given["job"], given["site"], given["nodes"], given["facts"], inputs
    )


def _complete(plan: Plan, found: Findings, given: Given, now: float) -> dict[str, Any]:
    """Return the result for a plan that was compiled."""
    facts, report = given["facts"], given["report"]
    proving, remembered = _to_prove(plan, given, now)
    known = given["site"]["nodes"] + given["site"].get("spares", [])
    todo = {**readiness.pending_steps(plan, facts, now, known), **proving}
    keys, wrong = readiness.run_keys(plan, facts)
    # a look makes no key on a node that has no mesh yet
    if not (report and todo["trust"]):
        found = found + [
            findings.finding("mesh.no_run_key", text, "run it again; docs/runbooks/trust.md", node)
            for node, text in wrong
        ]
    found = found + remembered
    if report:
        found = found + checks.describe_todo(todo, found)
    with open(os.path.join(given["project"], REHEARSED), encoding="utf-8") as handle:
        program = handle.read()
    seconds = given["allowed"].get("rehearsal_seconds", outcome.SECONDS)
    rehearsal = outcome.plan_of(plan, program, seconds)
    if report and todo["rehearsal"]:
        unfit = outcome.unfit(todo, findings.stops(found))
        found = found + unfit
        if unfit:
            todo["rehearsal"] = []
    return {
        "changed": False,
        "plan": plan,
        **_bytes_of(plan),
        "todo": todo,
        "findings": found,
        "lines": lines_of(found),
        "summary": render.summary(plan, facts, todo),
        "listen": reachability.listening_ports(plan),
        "keys": keys,
        "rehearsal": _bytes_of(rehearsal),
    }


def _bytes_of(plan: Plan) -> dict[str, str]:
    """Return the text that nodes get of a plan, and its digest."""
    return {"text": compiler.canonical_bytes(plan).decode("ascii"), "sha256": compiler.sha256(plan)}


def _to_prove(plan: Plan, given: Given, now: float) -> tuple[dict[str, Any], Findings]:
    """Return what is to be proven before the start, and the notes about kept proofs.

    That every node is reached is tried each time. A firewall that has changed meanwhile costs
    nothing to find and half an hour to miss. What takes longer (bandwidth, path MTU, the rehearsal)
    is not repeated for a while.
    """
    names = [node["name"] for node in plan["nodes"]]
    kept = _kept_proofs(plan, given, now)
    # No other training is to share its network with our measurement. The run that holds a node is a
    # stop of its own.
    busy = any(given["facts"][name].get("units") for name in names)
    todo: dict[str, Any] = {"network": [], "depth": "full", "rehearsal": []}
    if len(names) > 1 and not busy:
        todo["network"] = names
    if kept["network"]:
        todo["depth"] = "quick"
    if given["rehearse"] and not kept["rehearsal"]:
        todo["rehearsal"] = names
    remembered = [item for proof in kept.values() for item in _warnings_of(proof)]
    if given["report"]:
        remembered += checks.describe_proofs(kept, given["rehearse"], now)
    return todo, remembered


def _kept_proofs(plan: Plan, given: Given, now: float) -> dict[str, dict[str, Any] | None]:
    """Return the proof of each kind that need not be repeated, or None."""
    hours = given["allowed"].get("proof_hours") or {}
    keys = proof_cache.proof_keys(plan, given["facts"], given["allowed"])
    folder = given["state_dir"] or ""
    return {
        kind: proof_cache.read_proof(folder, kind, keys[kind], float(hours.get(kind, 0)), now)
        for kind in proof_cache.KINDS
    }


def _warnings_of(proof: dict[str, Any] | None) -> Findings:
    """Return the warnings of a proof that is kept."""
    found = ((proof or {}).get("result") or {}).get("findings", ())
    return [item for item in found if item["level"] == "warn"]
