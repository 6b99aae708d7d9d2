# SPDX-License-Identifier: Apache-2.0
"""Evidence of real machines for conform's lines.

That is the site's nodes as they answered just now, and the newest completed run of each suite.
Where nodes are silent or nothing has been run, such a line does not hold and says what to run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_json
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.compiler import short

from ..plan.readiness import required_trees
from .findings_check import Findings

TRUST = "run ansible-playbook playbooks/trust.yml"


class Tree(TypedDict):
    """A tree of code, data or weights."""

    kind: str
    digest: str


class Witness(TypedDict):
    """A completed run that is the evidence about real nodes.

    endpoints: whether the plan fixes the port of every rank.
    """

    run: str
    number: int
    suite: str
    job: str
    plan_sha256: str
    trees: list[Tree]
    endpoints: bool


class Answer(TypedDict):
    """Answers of one node: of ssh_mesh_check, of node_info, and {run: sha256 of its plan.json}."""

    proof: Mapping[str, Any] | None
    facts: dict[str, Any] | None
    plans: dict[str, str | None]


def witnesses(runs_dir: str, site: str, names: Collection[str]) -> list[Witness]:
    """Return the newest completed run of each suite on two or more of these nodes.

    The newest run is first.
    """
    if not os.path.isdir(runs_dir):
        return []
    by_suite: dict[str, Witness] = {}
    for run in sorted(os.listdir(runs_dir), reverse=True):
        if not RUN_ID.match(run):
            continue
        record = read_json(os.path.join(runs_dir, run, "run.json"))
        plan = read_json(os.path.join(runs_dir, run, "plan.json"))
        try:
            if plan["suite"]["name"] not in by_suite and _is_witness(record, plan, site, names):
                by_suite[plan["suite"]["name"]] = _witness(run, record, plan)
        except (KeyError, IndexError, TypeError):
            continue  # a run that never ended, or a record of another version, is no witness
    return sorted(by_suite.values(), key=lambda item: item["run"], reverse=True)


def _is_witness(record: Any, plan: Any, site: str, names: Collection[str]) -> bool:
    """Return whether a run completed on two or more of these nodes of the site."""
    nodes = [node["name"] for node in plan["nodes"]]
    return (
        record["attempts"][-1]["verdict"]["outcome"] == "completed"
        and plan["site"] == site
        and len(nodes) > 1
        and set(nodes) <= set(names)
    )


def _witness(run: str, record: Any, plan: Any) -> Witness:
    """Return what the checks need of a run."""
    endpoints = plan["endpoints"]
    return {
        "run": run,
        "number": record["attempts"][-1]["number"],
        "suite": plan["suite"]["name"],
        "job": plan["job"]["name"],
        "plan_sha256": record["plan_sha256"],
        "trees": [
            {"kind": kind, "digest": digest}
            for kind, digests in required_trees(plan).items()
            for digest in digests
        ],
        # With --master the launcher chooses its ports itself, so such a run proves nothing about
        # the start port.
        "endpoints": bool(endpoints) and not any(item.endswith(":*") for item in endpoints),
    }


def events_of(runs_dir: str, witness: Witness, node: str) -> list[dict[str, Any]]:
    """Return the events that a node's agent noted in a run, as they were fetched."""
    path = os.path.join(
        runs_dir, witness["run"], f"attempt-{witness['number']}", f"ranks.{node}.jsonl"
    )
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as handle:
        return [json.loads(line) for line in handle if line.strip()]


def answer(
    proof: Mapping[str, Any] | None,
    probe: Mapping[str, Any] | None,
    plans: Mapping[str, Any] | None,
) -> Answer:
    """Return the answers of one node from its registered results.

    A task that was not run, or got no answer, leaves None or nothing.
    """
    proof, probe = proof or {}, probe or {}
    if "failures" not in proof:
        proof = None
    digests = {
        item["item"]["run"]: item["stat"].get("checksum")
        for item in (plans or {}).get("results") or []
        if "stat" in item
    }
    return {"proof": proof, "facts": probe.get("facts"), "plans": digests}


class Site:
    """The site's nodes and runs, as conform's plays saw them."""

    def __init__(
        self, names: Sequence[str], answers: Mapping[str, Answer], runs_dir: str, site: str
    ) -> None:
        """Read the newest runs.

        names: the inventory's trainers. answers: by node.
        """
        self.names, self.answers, self.runs_dir = names, answers, runs_dir
        self.found = witnesses(runs_dir, site, names)

    def answer(self, name: str) -> Answer:
        """Return the answers of a node, empty ones if it has not answered."""
        return self.answers.get(name) or Answer(proof=None, facts=None, plans={})

    def logins(self, findings: Findings) -> None:
        """Check A4: every node logs in to every other one, and the right machine answers."""
        findings.true(
            "the site has two nodes or more",
            len(self.names) > 1,
            f"it has {len(self.names)}; passwordless SSH needs two",
        )
        proofs = [self.answer(name)["proof"] for name in self.names]
        silent = [name for name, proof in zip(self.names, proofs) if not proof]
        findings.true(
            "every node answers",
            not silent,
            f"{', '.join(silent)} did not; bring them back or see ansible-playbook"
            " playbooks/local.yml,"
            " then run this again",
        )
        failures = [failure for proof in proofs if proof for failure in proof["failures"]]
        text = "; ".join(
            "{from} -> {to}: {cause}; remedy: {remedy}".format(**failure) for failure in failures
        )
        findings.true("every login", not failures, text or f"no node could be asked; {TRUST}")
        logins = sum(proof["logins"] for proof in proofs if proof)
        findings.same("logins", len(self.names) * (len(self.names) - 1), logins)
        findings.say(f"{logins} logins between {len(self.names)} nodes just now")

    def witness(
        self, findings: Findings, suite: str | None, title: str, job: str
    ) -> tuple[Witness, dict[str, Any]] | None:
        """Return the newest completed run of a suite and its plan, or None.

        suite: None for a run that has endpoints.
        """
        if suite:
            runs = [item for item in self.found if item["suite"] == suite]
            demand = f"a completed run of {title} on two nodes of this site"
        else:
            runs = [item for item in self.found if item["endpoints"]]
            demand = "a completed run on two nodes of this site"
        run = next(iter(runs), None)
        advice = (
            f"no such run in {os.path.basename(self.runs_dir)}; run:"
            f" ansible-playbook playbooks/train.yml -e config={job}.yml"
        )
        findings.true(demand, run, advice)
        if run is None:
            return None
        path = os.path.join(self.runs_dir, run["run"], "plan.json")
        with open(path, "rb") as handle:
            raw = handle.read()
        findings.same(
            f"sha256 of runs/{run['run']}/plan.json",
            run["plan_sha256"],
            hashlib.sha256(raw).hexdigest(),
        )
        return run, json.loads(raw)

    def finished_run(self, findings: Findings, suite: str, title: str, job: str) -> None:
        """Check A5: all nodes have that run's plan, code, data and environment now.

        Its ranks started and ended well on every node.
        """
        witness = self.witness(findings, suite, title, job)
        if witness is None:
            return
        run, plan = witness
        nodes = [node["name"] for node in plan["nodes"]]
        for name in nodes:
            self.plan_and_trees(findings, run, name)
        self.environments(findings, plan, nodes)
        findings.same(
            "nodes with a command of their own",
            [],
            [node["name"] for node in plan["nodes"] if node.get("argv")],
        )
        self.ranks(findings, run, plan)
        findings.say(
            f"{run['run']}: plan {run['plan_sha256'][:8]}, code and data the same on"
            f" {', '.join(nodes)} now; {len(plan['ranks'])} ranks ran there"
        )

    def facts(self, name: str) -> dict[str, Any]:
        """Return the facts of a node's probe, {} for none."""
        return self.answer(name)["facts"] or {}

    def plan_and_trees(self, findings: Findings, run: Witness, name: str) -> None:
        """Check that a node has a run's plan and trees."""
        digest = self.answer(name)["plans"].get(run["run"])
        advice = (
            "it is not there any more; run: ansible-playbook playbooks/train.yml -e"
            f" config={run['job']}.yml"
        )
        findings.true(f"{run['run']} on {name}", digest, advice)
        findings.same("its plan there", run["plan_sha256"], digest)
        trees = self.facts(name).get("trees") or {}
        for tree in run["trees"]:
            kind, digest = tree["kind"], short(tree["digest"])
            state = trees.get(f"{kind}/{digest}") or {}
            findings.true(
                f"{kind} {digest} on {name}",
                state.get("ok"),
                "; ".join(state.get("differences") or ["missing"]),
            )

    def environments(self, findings: Findings, plan: Any, nodes: Sequence[str]) -> None:
        """Check that all nodes have the plan's environment, unless it is the user's own."""
        prints: dict[str, str] = {}
        if not plan["environment"].get("python"):
            digest = plan["environment"]["digest"]
            for name in nodes:
                environments = self.facts(name).get("environments") or {}
                prints[name] = environments.get(digest, f"missing on {name}")
        findings.true(
            "one environment on all",
            len(set(prints.values())) < 2
            and not any(str(text).startswith("missing") for text in prints.values()),
            prints,
        )

    def ranks(self, findings: Findings, run: Witness, plan: Any) -> None:
        """Check that every planned rank started on its node and ended with 0.

        It saw the planned endpoints.
        """
        for rank in plan["ranks"]:
            events = [
                event
                for event in events_of(self.runs_dir, run, rank["node"])
                if event.get("rank") == rank["rank"]
            ]
            started = [
                event.get("endpoints_as_planned") for event in events if event["event"] == "start"
            ]
            ended = [
                (event.get("exit_code"), event.get("signal"))
                for event in events
                if event["event"] == "end"
            ]
            findings.same(
                f"rank {rank['rank']} on {rank['node']}: start, with the planned endpoints; end",
                ([True], [(0, None)]),
                (started, ended),
            )

    def started_together(self, findings: Findings, variable: str, job: str) -> None:
        """Check E1 with the newest run that has endpoints.

        The pinned port was reported back, and every node's command began before any other's had
        ended.
        """
        witness = self.witness(findings, None, "", job)
        if witness is None:
            return
        run, plan = witness
        port = plan["env"].get(variable)
        findings.true(
            f"{variable} in the plan of {run['run']}",
            port and port == str(plan["ports"]["start"]),
            port,
        )
        self.ranks(findings, run, plan)
        starts: list[float] = []
        ends: list[float] = []
        for node in plan["nodes"]:
            times = {
                event["event"]: event["time"]
                for event in events_of(self.runs_dir, run, node["name"])
            }
            findings.true(
                f"the command began and ended on {node['name']}",
                "launched" in times and "launcher_end" in times,
                sorted(times),
            )
            starts.append(times.get("launched", float("inf")))
            ends.append(times.get("launcher_end", 0.0))
        findings.true(
            "all had begun before one ended",
            max(starts) < min(ends),
            f"the last began {max(starts) - min(ends):.1f} s after the first end",
        )
        findings.say(
            f"{run['run']}: port {port}, {len(starts)} nodes started within"
            f" {max(starts) - min(starts):.1f} s"
        )
