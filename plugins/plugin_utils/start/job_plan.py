# SPDX-License-Identifier: Apache-2.0
"""A job's plan, with its obstacles and the steps before the start."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import python_env
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import (
    compiler,
    next_plan,
    resume_inputs,
    supervised,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import Plan
from ansible_collections.trainyard.cluster.plugins.module_utils.rehearsal import outcome

from ..base import project
from ..config.config_types import Node
from ..network import reachability
from ..plan import readiness, render
from ..preflight import checks, proof_cache
from . import checkpoint_interval, code_history, pace_history, standby

# What the ranks of a rehearsal run, below the product's directory.
REHEARSED = "plugins/module_utils/agent/rehearsal_rank.py"
# Of all plans for the attempts that nodes begin themselves.
MOST_PLAN_BYTES = 8 << 20
Arguments = dict[str, Any]
Findings = list[dict[str, Any]]


def plan_job(arguments: Arguments) -> dict[str, Any]:
    """Return plan, findings and what is to be done, `refused` where nothing is left to train."""
    facts, now = arguments["facts"], time.time()
    all_findings = checks.judge_silent_nodes(arguments["silent"])
    all_findings += checks.judge_logins(facts)
    all_findings += checks.judge_nodes(arguments["nodes"], facts, arguments["allowed"])
    all_findings += checks.judge_trust(
        arguments["nodes"], facts, arguments["state_dir"], now, arguments["report"]
    )
    plan, more = _try_to_compile(arguments)
    pace = None
    if plan:
        pace = pace_history.find(arguments["runs_dir"], arguments["job"]["name"], plan)
        arguments, warning = _with_interval(arguments, pace)
        if arguments["job"].get("checkpoint_every") and not warning:
            plan, more = _try_to_compile(arguments)
        more = more + warning
    all_findings += more
    if arguments["repair"]:
        all_findings = checks.demote_for_sync(all_findings)
    done = resume_inputs.completion_problem(
        arguments["resume"], arguments["suite"], arguments["inputs"].get("config") or {}
    )
    # a node that does not answer now is not waited for with nothing to train
    if done and done not in [item["text"] for item in all_findings]:
        all_findings += checks.describe_plan_error(compiler.PlanError([done]))
    if not plan:
        lines = lines_of(all_findings)
        return {
            "changed": False,
            "findings": all_findings,
            "lines": lines,
            "todo": {},
            "refused": bool(done),
        }
    return _complete(plan, all_findings, arguments, now, pace)


def _with_interval(
    arguments: Arguments, pace: pace_history.Pace | None
) -> tuple[Arguments, Findings]:
    """Return the arguments with the job's checkpoint_every in the suite's unit, and findings."""
    every = arguments["job"].get("checkpoint_every")
    if not every:
        return arguments, []
    inputs = arguments["inputs"]
    interval = checkpoint_interval.translate(every, arguments["suite"], inputs, pace)
    if interval.warning:
        text = f"checkpoint_every {every} changes nothing: {interval.warning}"
        return arguments, [findings.finding("job.interval_not_set", text, level="warn")]
    changed = {
        **inputs,
        "overrides": interval.overrides,
        "arguments": interval.arguments,
        "config": {**inputs["config"], "save_interval": interval.number},
        "remarks": [*(inputs.get("remarks") or []), *interval.lines],
    }
    return {**arguments, "inputs": changed}, []


def lines_of(all_findings: Findings) -> list[str]:
    """Return the findings as a table that is safe to show. It has the nodes' own texts."""
    return [printable(line) for line in findings.lines(all_findings)]


def _try_to_compile(arguments: Arguments) -> tuple[Plan | None, Findings]:
    """Return (plan, findings about it). There is no plan while a node is silent."""
    if arguments["silent"]:
        return None, []
    try:
        plan = _compile(arguments)
    except (compiler.PlanError, python_env.EnvironmentRefused, OSError) as error:
        return None, checks.describe_plan_error(error)
    return plan, checks.judge_plan(
        plan, arguments["facts"], arguments["allowed"], arguments["repair"]
    )


def _compile(arguments: Arguments) -> Plan:
    """Return the plan of the arguments."""
    name = arguments["nodes"][0]["name"]
    unread = arguments["inputs"].get("unread")
    if unread:
        raise compiler.PlanError([f"{name} has not told of the code that lies there: {unread}"])
    first = arguments["facts"][name]
    environment = arguments["source"]["environment"]
    texts = python_env.requirement_texts(
        environment.get("requirements") or [], arguments["project"], project.PRODUCT
    )
    digest = python_env.environment_digest(
        environment, texts, first["python_version"], first["machine"]
    )
    inputs = {
        **arguments["inputs"],
        "suite": arguments["suite"],
        "environment": {**environment, "digest": digest},
        "resume": arguments["resume"] or None,
    }
    return compiler.compile_plan(
        arguments["job"], arguments["site"], arguments["nodes"], arguments["facts"], inputs
    )


def _complete(
    plan: Plan,
    all_findings: Findings,
    arguments: Arguments,
    now: float,
    pace: pace_history.Pace | None,
) -> dict[str, Any]:
    """Return the result for a plan that was compiled."""
    facts, report = arguments["facts"], arguments["report"]
    proving, remembered = _to_prove(plan, arguments, now)
    known = arguments["site"]["nodes"] + arguments["site"].get("spares", [])
    todo = {**readiness.pending_steps(plan, facts, now, known), **proving}
    keys, wrong = readiness.run_keys(plan, facts)
    # a look makes no key on a node that has no mesh yet
    if not (report and todo["trust"]):
        all_findings = all_findings + [
            findings.finding("mesh.no_run_key", text, "run it again; docs/runbooks/trust.md", node)
            for node, text in wrong
        ]
    all_findings = all_findings + remembered
    all_findings += _size_findings(plan, arguments["job"])
    spares = standby.choose(plan, arguments, now, lambda nodes: _compile_for(nodes, arguments))
    all_findings += spares.findings
    if spares.nodes:
        keys = spares.keys
        todo.update(standby=[node["name"] for node in spares.nodes], standby_inputs=spares.inputs)
    all_findings += code_history.judge(arguments["attempted"], arguments["inputs"]["code"])
    remarks = [
        printable(line, limit=render.LONGEST)
        for line in [
            *code_history.lines(arguments["attempted"]),
            *(arguments["inputs"].get("remarks") or []),
            *checkpoint_interval.describe_cost(
                arguments["suite"],
                arguments["inputs"]["config"],
                pace,
                arguments["site"]["fault_hours"],
                len(plan["ranks"]),
            ),
        ]
    ]
    if report:
        all_findings = all_findings + checks.describe_todo(todo, all_findings)
    with open(os.path.join(project.PRODUCT, REHEARSED), encoding="utf-8") as handle:
        program = handle.read()
    seconds = arguments["allowed"].get("rehearsal_seconds", outcome.SECONDS)
    rehearsal = outcome.plan_of(plan, program, seconds)
    if report and todo["rehearsal"]:
        unfit = outcome.unfit(todo, findings.stops(all_findings))
        all_findings = all_findings + unfit
        if unfit:
            todo["rehearsal"] = []
    return {
        "changed": False,
        "plan": plan,
        **_bytes_of(plan),
        "todo": todo,
        "findings": all_findings,
        "lines": lines_of(all_findings),
        "summary": render.summary(plan, todo, remarks, bool(findings.stops(all_findings))),
        "remarks": remarks,
        "listen": reachability.listening_ports(plan),
        "keys": keys,
        "replica_node": plan.get("replica", {}).get("node", ""),
        "supervise": _supervise(plan, arguments, spares.nodes),
        "rehearsal": _bytes_of(rehearsal),
    }


def _size_findings(plan: Plan, job: dict[str, Any]) -> Findings:
    """Return the warning that nobody restarts a run on so many nodes while nobody follows it."""
    if not supervised.is_wanted(job) or plan.get("supervised"):
        return []
    text = (
        f"{len(plan['nodes'])} nodes do not agree on restarts themselves, at most"
        f" {supervised.MOST_NODES} do; the run is restarted only while a command"
        " follows it"
    )
    return [findings.finding("job.too_many_to_supervise", text, level="warn")]


def _supervise(plan: Plan, arguments: Arguments, spares: list[Node]) -> str:
    """Return as JSON what the nodes need for later attempts, '' where a controller begins them."""
    job, nodes = arguments["job"], arguments["nodes"]
    if not supervised.is_supervised(job, len(nodes)):
        return ""
    least = job.get("min_nodes") or len(nodes)
    given = {
        "max_restarts": job["max_restarts"],
        "point": arguments["resume"] or {},
        "notify": arguments["site"]["notify_from_nodes"],
        "spares": [node["name"] for node in spares],
        "voters": standby.voters(nodes, spares, least),
        "plans": list(_plans_of_teams(standby.teams(nodes, spares, least), arguments)),
    }
    return json.dumps(given)


def _plans_of_teams(teams: Iterable[list[Node]], arguments: Arguments) -> Iterator[dict[str, Any]]:
    """Yield the plans of the job's own team and of the next ones, up to a length of all together.

    Every node gets all of them.
    """
    length = 0
    for number, team in enumerate(teams):
        try:
            plans = _plans_of(team, arguments)
        except compiler.PlanError:
            if not number:
                raise
            continue  # for example two spares that do not fit together
        length += len(plans["fresh"]) + len(plans["template"])
        if number and length > MOST_PLAN_BYTES:
            return
        yield plans


def _compile_for(nodes: Sequence[Node], arguments: Arguments) -> Plan:
    """Return the plan in which other nodes have the job's places."""
    facts = {**arguments["facts"], **arguments["spare_facts"]}
    return _compile({**arguments, "nodes": nodes, "facts": facts})


def _plans_of(nodes: list[Node], arguments: Arguments) -> dict[str, Any]:
    """Return a team's plans as the nodes keep them (supervision/planned_attempts.py)."""
    fresh, copy = {**arguments, "resume": {}}, arguments["inputs"].get("resumable_config")
    resumed = {
        **arguments,
        "resume": next_plan.PLACEHOLDER,
        "inputs": {**arguments["inputs"], "resume_config": copy},
    }
    try:
        template = _bytes_of(_compile_for(nodes, resumed))["text"]
    except compiler.PlanError:
        template = ""  # the suite cannot resume, so that every attempt begins anew
    return {
        "nodes": [node["name"] for node in nodes],
        "fresh": _bytes_of(_compile_for(nodes, fresh))["text"],
        "template": template,
    }


def _bytes_of(plan: Plan) -> dict[str, str]:
    """Return the text that nodes get of a plan, and its digest."""
    return {"text": compiler.canonical_bytes(plan).decode("ascii"), "sha256": compiler.sha256(plan)}


def _to_prove(plan: Plan, arguments: Arguments, now: float) -> tuple[dict[str, Any], Findings]:
    """Return what is to be proven before the start, and the notes about kept proofs.

    That every node is reached is tried each time. A firewall that has changed meanwhile costs
    nothing to find and half an hour to miss. What takes longer (bandwidth, path MTU, the rehearsal)
    is not repeated for a while.
    """
    names = [node["name"] for node in plan["nodes"]]
    proofs = _kept_proofs(plan, arguments, now)
    # No other training is to share its network with our measurement. The run that holds a node is a
    # stop of its own.
    busy = any(arguments["facts"][name].get("units") for name in names)
    todo: dict[str, Any] = {"network": [], "depth": "full", "rehearsal": []}
    if len(names) > 1 and not busy:
        todo["network"] = names
    if proofs["network"]:
        todo["depth"] = "quick"
    if arguments["rehearse"] and not proofs["rehearsal"]:
        todo["rehearsal"] = names
    remembered = [item for proof in proofs.values() for item in _warnings_of(proof)]
    if arguments["report"]:
        remembered += checks.describe_proofs(proofs, arguments["rehearse"], now)
    return todo, remembered


def _kept_proofs(plan: Plan, arguments: Arguments, now: float) -> dict[str, dict[str, Any] | None]:
    """Return the proof of each kind that need not be repeated, or None."""
    hours = arguments["allowed"].get("proof_hours") or {}
    keys = proof_cache.proof_keys(plan, arguments["facts"], arguments["allowed"])
    folder = arguments["state_dir"] or ""
    return {
        kind: proof_cache.read_proof(folder, kind, keys[kind], float(hours.get(kind, 0)), now)
        for kind in proof_cache.KINDS
    }


def _warnings_of(proof: dict[str, Any] | None) -> Findings:
    """Return the warnings of a proof that is kept."""
    entries = ((proof or {}).get("result") or {}).get("findings", ())
    return [item for item in entries if item["level"] == "warn"]
