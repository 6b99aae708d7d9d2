# SPDX-License-Identifier: Apache-2.0
"""Nodes of a run that they restart themselves: the spares that stand by, the voters, the teams."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.supervisor_order import (
    MOST_SPARES,
    MOST_VOTERS,
    VOTERS_OF_MANY,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import python_env
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import (
    compiler,
    supervised,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import Plan

from ..config import spares
from ..config.config_types import Job, Node, Site
from ..plan import readiness
from ..preflight import checks

Findings = list[dict[str, Any]]
# Returns the plan of some nodes, and raises what the compiler raises.
Compile = Callable[[Sequence[Node]], Plan]
REMEDY = (
    "the run begins without it; after the remedy, stop the run and resume it to take the spare in"
)


class Standby(NamedTuple):
    """The spares of a run, and what is to be done with them."""

    nodes: list[Node]
    keys: dict[str, str]  # of all nodes of the run, the spares among them
    inputs: list[str]  # names of the spares that lack code, data or weights
    findings: Findings


def most_spares(count: int) -> int:
    """Return how many spares a run of so many nodes takes.

    The nodes of the first attempt alone have more than half of the votes, so that spares that are
    away never stop a run.
    """
    return max(0, min(MOST_SPARES, count - 1))


def candidates(job: Job, site: Site, nodes: Sequence[Node]) -> list[Node]:
    """Return the site's spares that could take a place in a job, with the devices it takes.

    nodes: the job's. A run that a controller restarts takes none: resume.yml chooses its nodes.
    """
    if not supervised.is_wanted(job) or not most_spares(len(nodes)):
        return []
    members = [node["name"] for node in nodes]
    known = {node["name"]: node for node in site["nodes"] + site["spares"]}
    return [
        {**spare, "devices": spares.job_devices(job, spare)}
        for spare in site["spares"]
        if spare["name"] not in members
        and not spares.replacement_problem(job, spare, known[members[0]])
    ]


def choose(plan: Plan, arguments: Mapping[str, Any], now: float, compile_for: Compile) -> Standby:
    """Return the first spares that are ready, and a warning about each one before them that is not.

    arguments: of the module plan. now: unix seconds.
    """
    facts = {**arguments["facts"], **arguments["spare_facts"]}
    known = [*arguments["site"]["nodes"], *arguments["site"].get("spares", [])]
    chosen: list[Node] = []
    keys = readiness.run_keys(plan, facts)[0]
    inputs: list[str] = []
    found: Findings = []
    for spare in arguments["spares"]:
        if len(chosen) == most_spares(len(plan["nodes"])):
            break
        name = spare["name"]
        if name not in facts:
            reasons = _texts(checks.judge_silent_nodes({name: arguments["spare_silent"][name]}))
        else:
            reasons = _obstacles(spare, arguments, facts, compile_for)
            wide: Any = {**plan, "nodes": [*plan["nodes"], *chosen, spare]}
            pending = readiness.pending_steps(wide, facts, now, known)
            more, wrong = readiness.run_keys(wide, facts)
            reasons += [*_missing_parts(name, pending), *(text for _node, text in wrong)]
        if reasons:
            text = f"does not stand by for this run: {reasons[0]}"
            found.append(findings.finding("spare.not_ready", text, REMEDY, name, level="warn"))
            continue
        chosen.append(spare)
        keys = more
        if any(name in pending[kind] for kind in ("code", "data", "weights")):
            inputs.append(name)
    return Standby(chosen, keys, inputs, found)


def _obstacles(
    spare: Node,
    arguments: Mapping[str, Any],
    facts: Mapping[str, Mapping[str, Any]],
    compile_for: Compile,
) -> list[str]:
    """Return what keeps a spare from a place in the run, as texts.

    It is judged as a trainer in the last one's place would be.
    """
    name, allowed = spare["name"], arguments["allowed"]
    own = {name: facts[name]}
    try:
        plan = compile_for([*arguments["nodes"][:-1], spare])
    except (compiler.PlanError, python_env.EnvironmentRefused, OSError) as error:
        return [str(error)]
    found = checks.judge_logins(own) + checks.judge_nodes([spare], own, allowed)
    found += [item for item in checks.judge_plan(plan, facts, allowed) if name in item["nodes"]]
    return _texts(findings.stops(found))


def _missing_parts(name: str, pending: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what a spare lacks that only provision.yml brings."""
    words = {
        "trust": "it has no SSH to and from the other nodes",
        "environment": "it lacks the Python environment",
    }
    remedy = "ansible-playbook playbooks/provision.yml brings it"
    return [f"{text}; {remedy}" for part, text in words.items() if name in pending[part]]


def _texts(items: Findings) -> list[str]:
    """Return the sentences of findings."""
    return [str(item["text"]) for item in items]


def voters(nodes: Sequence[Node], standing_by: Sequence[Node], least: int) -> list[str]:
    """Return the names of the nodes that vote on a run's attempts: the first nodes and spares.

    least: with so many nodes the run may go on. Of two nodes neither has more than half of the
    votes alone. So where one may go on alone, it is the one with rank 0.
    """
    names = [node["name"] for node in [*nodes, *standing_by]]
    if len(names) == 2 and least == 1:
        return names[:1]
    if len(nodes) > MOST_VOTERS:
        return names[:VOTERS_OF_MANY]
    return names[:MOST_VOTERS]


def teams(nodes: Sequence[Node], standing_by: Sequence[Node], least: int) -> Iterator[list[Node]]:
    """Yield the nodes of each attempt that the run may come to, in rank order.

    The first team is the job's own. Teams with fewer lost nodes come first. A spare takes the place
    of a node that it replaces, other places stay empty. least: the fewest nodes of a team.
    """
    for lost in range(len(nodes) + 1):
        for replaced in range(min(lost, len(standing_by)), -1, -1):
            if len(nodes) - lost + replaced < least:
                break
            for places in itertools.combinations(range(len(nodes)), lost):
                for chosen in itertools.combinations(standing_by, replaced):
                    by_place = dict(zip(places, chosen))
                    yield [
                        by_place.get(place, node)
                        for place, node in enumerate(nodes)
                        if place in by_place or place not in places
                    ]
