# SPDX-License-Identifier: Apache-2.0
"""All checks of the nodes before a start, in one list of findings.

Each subject has its own module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import Finding
from ansible_collections.trainyard.cluster.plugins.module_utils.gate import isolation
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import placement
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import Plan
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import (
    devices,
    machine,
    orphans,
    software,
)

from ..base import connection_failure
from ..mesh import authority, certificate_term
from ..plan import readiness
from . import forced_interfaces, ports, rdma_ports

# Each has judge(nodes as read_site gives them, {node name: facts}, limits of the site), which
# returns findings. None of them needs a plan, so that they are reported even where no plan can be
# made. They ignore facts that a probe did not collect.
SUBJECTS = {
    "machines": machine,
    "devices": devices,
    "installed": software,
    "orphans": orphans,
    "placement": placement,
}


# Checks that keep sync.yml from copying to the nodes: a node that does not answer, no plan, one
# directory under two names, no room, a Python that differs, what root or another run has in hand
# (`ready`). Every other stop is about a start alone: a port or device that a colleague's training
# uses is free again when this job's turn comes, and its code and data can be there by then.
CHECKS_OF_SYNC = (
    "reach",
    "answer",
    "plan",
    "machine",
    "placement",
    "disk",
    "inodes",
    "environment",
    "ready",
)


def demote_for_sync(items: Sequence[Finding]) -> list[Finding]:
    """Return the findings as sync.yml counts them: it copies, and starts nothing.

    A stop that keeps only a start becomes a warning.
    """
    result = []
    for item in items:
        if item["level"] == "stop" and item["check"] not in CHECKS_OF_SYNC:
            item = dict(item, level="warn")
        result.append(item)
    return result


def judge_silent_nodes(reasons: Mapping[str, str]) -> list[Finding]:
    """Return a finding for each node that did not answer.

    reasons: {node name: the connection's own words}.
    """
    result = []
    words = {name: text.removeprefix("Task failed: ") for name, text in reasons.items()}
    common = Counter(map(connection_failure.without_address, words.values()))
    for name, text in words.items():
        cause = connection_failure.classify(text)
        if common[connection_failure.without_address(text)] > 1:
            text = connection_failure.without_address(text)  # one line for all of them
        sentence = f"did not answer: {text or 'no reason was given'}"
        if cause.code == "reach.login_prints":
            sentence = text  # it did
        result.append(findings.finding(cause.code, sentence, cause.remedy, name))
    return result


def judge_logins(facts: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return a finding for each node whose login shell prints text.

    facts: {node name: facts}. rsync and the stream of the logs cannot read their own output then.
    """
    result = []
    for name, fact in facts.items():
        if fact.get("login"):
            text = connection_failure.describe_login_output(str(fact["login"]))
            cause = connection_failure.classify(text)
            result.append(findings.finding(cause.code, text, cause.remedy, name))
    return result


def judge_nodes(
    nodes: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Mapping[str, Any]],
    allowed: Mapping[str, Any],
) -> list[Finding]:
    """Return the findings about the nodes that answered."""
    answered = [node for node in nodes if node["name"] in facts]
    result = []
    for key, subject in SUBJECTS.items():

        def judge_subject(known: dict[str, Any], subject: Any = subject) -> list[Finding]:
            return subject.judge(answered, known, allowed)

        result += _judge_apart(key, facts, judge_subject)
    return result


def _judge_apart(
    key: str,
    facts: Mapping[str, Mapping[str, Any]],
    judge: Callable[[dict[str, Any]], list[Finding]],
) -> list[Finding]:
    """Return the findings of one subject.

    A node whose facts of it cannot be judged gets a finding of its own, and hides no other's. key:
    the subject's name in the facts. judge(facts) returns findings. It ignores a node without this
    key.
    """

    def judge_some(names: Collection[str]) -> list[Finding]:
        known = dict(facts)
        for name, fact in facts.items():
            if name not in names:
                known[name] = {**fact, key: None}
        return judge(known)

    result, unusable = isolation.judge_apart(judge_some, facts)
    remedy = (
        "look which programs of the training account start with every Python there:"
        " docs/security.md"
    )
    return result + [
        findings.finding(
            "answer.unusable", f"what it says of its {key} cannot be judged", remedy, name
        )
        for name in unusable
    ]


def judge_trust(
    nodes: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Mapping[str, Any]],
    state_dir: str,
    now: float,
    report: bool = False,
) -> list[Finding]:
    """Return the findings about the mesh between the chosen nodes.

    state_dir: the controller's directory for the site. report: whether to say how long the mesh
    lasts.
    """
    names = [node["name"] for node in nodes]
    journal = {}
    try:
        if state_dir:
            journal = authority.read_journal(authority.folder_of(state_dir))
    except authority.AuthorityError as error:
        return [findings.finding("trust.journal_unreadable", str(error))]
    fingerprints = [item["fingerprint"] for item in journal.get("authorities", ())]
    result = certificate_term.judge_taken_back(names, journal.get("taken_back", {}))
    return result + certificate_term.judge_mesh(
        names, facts, now, readiness.CERTIFICATE_MARGIN, fingerprints, report
    )


def judge_rdma(plan: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return the findings about the RDMA ports that a plan's variables choose."""
    return _judge_apart("devices", facts, lambda known: rdma_ports.judge(plan, known))


def judge_plan(
    plan: Plan,
    facts: Mapping[str, Mapping[str, Any]],
    allowed: Mapping[str, Any],
    repair: bool = False,
) -> list[Finding]:
    """Return the findings about a plan before its start.

    plan: the plan. repair: see readiness.obstacles.
    """
    result = _judge_apart("ports", facts, lambda known: ports.judge(plan, known, allowed))
    result += forced_interfaces.judge_forced(plan, facts)
    result += judge_rdma(plan, facts)
    return result + [
        findings.finding(item.code, item.text, item.remedy, item.node)
        for item in readiness.obstacles(plan, facts, repair)
    ]


# Parts that may be missing and that a start copies to the nodes, in words.
PART_NAMES = {
    "trust": "the passwordless SSH between the nodes",
    "environment": "the Python environment",
    "code": "code",
    "data": "data",
    "weights": "weights",
    "checkpoints": "the checkpoint to resume from",
}


def describe_todo(todo: Mapping[str, Sequence[str]], earlier: Sequence[Finding]) -> list[Finding]:
    """Return notes of what train.yml copies automatically before the start.

    check.yml changes nothing and only reports it. earlier: the findings so far. An environment that
    a person has changed stops instead.
    """
    remedy = "train.yml brings it before the start, sync.yml brings it without a start"
    changed = set()
    for item in findings.stops(earlier):
        if item["check"] == "environment":
            changed.update(item["nodes"])
    parts_of: dict[tuple[str, ...], list[str]] = {}
    for kind, words in PART_NAMES.items():
        names = [
            name for name in todo.get(kind, ()) if kind != "environment" or name not in changed
        ]
        if names:
            parts_of.setdefault(tuple(names), []).append(words)
    return [
        findings.finding(
            "ready.not_there_yet", f"not there yet: {', '.join(parts)}", remedy, names, "note"
        )
        for names, parts in parts_of.items()
    ]


# Checks that are not repeated while their proof is young, in words.
PROOF_TEXTS = {
    "network": "latency, bandwidth and path MTU were proven",
    "rehearsal": "this plan was rehearsed",
}
# The code of such a check.
CODE_OF_PROOF = {"network": "network.proven_before", "rehearsal": "rehearsal.proven_before"}


def describe_proofs(
    proofs: Mapping[str, Mapping[str, Any] | None], rehearse: bool, now: float
) -> list[Finding]:
    """Return notes of what a check did not try, so that READY hides nothing.

    proofs: {kind: proof or None}, see proof_cache.read_proof. now: unix seconds.
    """
    result = []
    for kind, proof in proofs.items():
        if kind == "rehearsal" and not rehearse:
            code, text, remedy = "rehearsal.not_wanted", "not rehearsed, as was asked", ""
        elif proof:
            code = CODE_OF_PROOF[kind]
            text = f"{PROOF_TEXTS[kind]} {int((now - proof['time']) / 60)} min ago"
            remedy = f"-e preflight_{kind}_hours=0 tries it again"
        else:
            continue
        result.append(findings.finding(code, text, remedy, (), "note"))
    return result


def describe_plan_error(error: Exception) -> list[Finding]:
    """Return findings of the reasons why there is no plan."""
    if isinstance(error, compiler.PlanError):
        return [findings.finding("plan.impossible", text) for text in error.problems]
    return [findings.finding("plan.impossible", str(error))]
