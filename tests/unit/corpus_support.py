# SPDX-License-Identifier: Apache-2.0
"""Replay the corpus: what the product finds on each node's copy of an attempt, its verdict on that,
and whether the verdict is right.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import verdict
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import record_attempt

CASES = Path(__file__).resolve().parents[1] / "corpus" / "cases"

# Causes that say how an attempt ended and not why: where they are not the right ones they accuse
# nobody of anything.
VAGUE = frozenset(
    [
        "unknown",
        "connection_lost",
        "aborted",
        "terminated",
        "killed",
        "silent_exit",
        "silent_end",
        "launcher_failed",
        "python_exception",
        "cpp_exception",
        "unreachable",
        "no_end_recorded",
        "no_step",
        "rank_missing",
        "stopped_by_peer",
        "seen_by_launcher",
        "mpi_runtime",
    ]
)


def names():
    """The cases of the corpus, in order."""
    return sorted(path.parent.name for path in CASES.glob("*/answer.yml"))


def answer(case):
    """A case's answer."""
    return yaml.safe_load((CASES / case / "answer.yml").read_text())


def unpack(case, folder):
    """Lay a case's nodes below a folder, with the times of their files."""
    subprocess.run(
        ["tar", "-C", str(folder), "-xJf", str(CASES / case / "nodes.tar.xz")], check=True
    )


def pass_gate(node):
    """Fail where the controller would refuse what a node says of a real end."""
    answer_gate.validate("rank_logs_info", json.loads(json.dumps(node)), {"node": node["node"]})


def decide(folder, unreachable=None, clocks=None):
    """The verdict on folder/<node>/, as record.ended makes it; unreachable: {node: reason} of nodes
    that could not be asked; clocks: {node: its time when it is asked}, else this machine's.
    """
    places = sorted(path for path in folder.iterdir() if path.is_dir())
    plan = json.loads((places[0] / "plan.json").read_text())
    nodes = [evidence.collect(str(place), place.name) for place in places]
    for node in nodes:
        pass_gate(node)
    for node in nodes:
        node["now"] = (clocks or {}).get(node["node"], node["now"])
        node["epochs"] = plan.get("epochs")  # as record_attempt gives them
    nodes += [{"node": node, "unreachable": reason} for node, reason in (unreachable or {}).items()]
    return judge_nodes(plan, nodes)


def judge_nodes(plan, nodes):
    """The verdict on what the nodes of an attempt answered."""
    found = [node for node in nodes if "ranks" in node]
    decided = verdict.decide(plan["ranks"], nodes)
    mismatch = record_attempt.endpoint_mismatch(plan.get("endpoints"), found)
    if mismatch:
        decided = dict(decided, outcome="failed", cause="endpoints", text=mismatch)
    return (
        record_attempt.judge_untrained(
            decided, [rank for node in found for rank in node["ranks"]], False, plan
        )
        or decided
    )


def grade(decided, right):
    """`right`, `unknown` (it names nobody, or no cause, though there is one) or `wrong` (a false
    accusation), and why.
    """
    outcome, cause = decided["outcome"], decided["cause"]
    if outcome not in right["outcome"]:
        return ("unknown" if outcome == "unknown" else "wrong"), "outcome"
    named = decided["rank"] is not None or (decided["node"] is not None and outcome == "failed")
    if decided["rank"] is not None:
        fits = decided["rank"] in right.get("ranks", [])
    else:
        fits = decided["node"] in right.get("nodes", [])
    if named and not fits:
        return "wrong", "who"
    if (
        cause is not None
        and cause not in right["causes"]
        and cause not in VAGUE
        and cause not in right.get("symptoms", [])
    ):
        return "wrong", "cause"
    if outcome == "failed" and not named and not right.get("unknown"):
        return "unknown", "who"
    if (
        right["causes"]
        and cause not in right["causes"]
        and not (right.get("unknown") and not named and cause in VAGUE)
    ):
        return "unknown", "cause"
    return "right", ""
