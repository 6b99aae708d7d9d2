# SPDX-License-Identifier: Apache-2.0
"""What conform's lines about real machines stand on: the site's nodes as they answered just now,
and the newest run of each suite that completed.

Where nodes are silent or nothing has been run, such a line does not hold and says what to run.
Controller only.
"""

from __future__ import annotations

import hashlib
import json
import os

from ..attempts.attempt_dir import RUN_ID
from ..base import manifest
from ..plan.compiler import short
from ..plan.readiness import wanted_trees

TRUST = "run playbooks/trust.yml"


def witnesses(runs_dir, site, names):
    """Return the newest completed run of each suite on two or more of these nodes: [{run, number,
    suite, job, plan_sha256, trees, endpoints}].
    """
    found = {}
    for run in sorted(os.listdir(runs_dir), reverse=True) if os.path.isdir(runs_dir) else []:
        record, plan = (
            manifest.read_json(os.path.join(runs_dir, run, name)) if RUN_ID.match(run) else None
            for name in ("run.json", "plan.json")
        )
        try:
            last = record["attempts"][-1]
            fits = (
                last["verdict"]["outcome"] == "completed"
                and plan["site"] == site
                and plan["suite"]["name"] not in found
            )
            nodes = [node["name"] for node in plan["nodes"]]
            if fits and len(nodes) > 1 and set(nodes) <= set(names):
                found[plan["suite"]["name"]] = {
                    "run": run,
                    "number": last["number"],
                    "suite": plan["suite"]["name"],
                    "job": plan["job"]["name"],
                    "plan_sha256": record["plan_sha256"],
                    "trees": [
                        {"kind": kind, "digest": digest}
                        for kind, digests in wanted_trees(plan).items()
                        for digest in digests
                    ],
                    # with --master the launcher takes its ports by itself, so such a run says
                    # nothing of the start port
                    "endpoints": (
                        bool(plan["endpoints"])
                        and not any(endpoint.endswith(":*") for endpoint in plan["endpoints"])
                    ),
                }
        except (KeyError, IndexError, TypeError):
            continue  # a run that never ended, or a record of another version, is no witness
    return sorted(found.values(), key=lambda item: item["run"], reverse=True)


def events_of(runs_dir, witness, node):
    """Return what a node's agent noted in a run, as it was brought home."""
    path = os.path.join(
        runs_dir, witness["run"], "attempt-%d" % witness["number"], f"ranks.{node}.jsonl"
    )
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as handle:
        return [json.loads(line) for line in handle if line.strip()]


def answer(proof, probe, plans):
    """Return {proof, facts, plans} of what one node's tasks registered; a task that was not made,
    or got no answer, leaves None or nothing.
    """
    proof, probe = proof or {}, probe or {}
    digests = {
        item["item"]["run"]: item["stat"].get("checksum")
        for item in (plans or {}).get("results") or []
        if "stat" in item
    }
    return {
        "proof": proof if "failures" in proof else None,
        "facts": probe.get("facts"),
        "plans": digests,
    }


class Site:
    """The site's nodes and runs, as conform's plays found them."""

    def __init__(self, names, answers, runs_dir, site):
        """names: the inventory's trainers. answers: {name: {proof, facts, plans}}: what mesh_proof
        and node_probe said, {run: sha256 of its plan.json}.
        """
        self.names, self.answers, self.runs_dir = names, answers, runs_dir
        self.found = witnesses(runs_dir, site, names)

    def logins(self, found):
        """A4: every node logs in to every other one, and the right machine answers."""
        found.true(
            "the site has two nodes or more",
            len(self.names) > 1,
            "it has %d; passwordless SSH has nobody to reach" % len(self.names),
        )
        silent = [name for name in self.names if not (self.answers.get(name) or {}).get("proof")]
        found.true(
            "every node answers",
            not silent,
            "{} did not; bring them back or see playbooks/local.yml, then run this again".format(
                ", ".join(silent)
            ),
        )
        failures = [
            failure
            for name in self.names
            if name not in silent
            for failure in self.answers[name]["proof"]["failures"]
        ]
        told = "; ".join(
            "{from} -> {to}: {cause}; remedy: {remedy}".format(**failure) for failure in failures
        )
        found.true("every login", not failures, told or f"no node could be asked; {TRUST}")
        made = sum(
            self.answers[name]["proof"]["logins"] for name in self.names if name not in silent
        )
        found.same("logins", len(self.names) * (len(self.names) - 1), made)
        found.say("%d logins between %d nodes just now", made, len(self.names))

    def witness(self, found, suite, title, job):
        """Return the newest completed run (of a suite, or where none is named one with endpoints)
        and its plan, or (None, None).
        """
        run = next(
            (
                item
                for item in self.found
                if (item["suite"] == suite if suite else item["endpoints"])
            ),
            None,
        )
        told = (
            f"there is none in {os.path.basename(self.runs_dir)}; run: ansible-playbook"
            f" playbooks/train.yml -e config={job}.yml"
        )
        if not found.true(
            "a completed run%s on two nodes of this site" % (" of " + title if suite else ""),
            run,
            told,
        ):
            return None, None
        path = os.path.join(self.runs_dir, run["run"], "plan.json")
        with open(path, "rb") as handle:
            raw = handle.read()
        found.same(
            "sha256 of runs/{}/plan.json".format(run["run"]),
            run["plan_sha256"],
            hashlib.sha256(raw).hexdigest(),
        )
        return run, json.loads(raw)

    def finished_run(self, found, suite, title, job):
        """A5: all nodes hold that run's plan, code, data and environment now, and its ranks started
        and ended well on every node.
        """
        run, plan = self.witness(found, suite, title, job)
        if run is None:
            return
        nodes = [node["name"] for node in plan["nodes"]]
        prints = {}
        for name in nodes:
            answer = self.answers.get(name) or {}
            plans, facts = answer.get("plans") or {}, answer.get("facts") or {}
            told = (
                "it is not there any more; run: ansible-playbook playbooks/train.yml -e"
                " config={}.yml".format(run["job"])
            )
            found.true("{} on {}".format(run["run"], name), plans.get(run["run"]), told)
            found.same("its plan there", run["plan_sha256"], plans.get(run["run"]))
            for tree in run["trees"]:
                state = (facts.get("trees") or {}).get(
                    "{}/{}".format(tree["kind"], short(tree["digest"]))
                ) or {}
                found.true(
                    "{} {} on {}".format(tree["kind"], short(tree["digest"]), name),
                    state.get("ok"),
                    "; ".join(state.get("differences") or ["missing"]),
                )
            if not plan["environment"].get("python"):
                prints[name] = (facts.get("environments") or {}).get(
                    plan["environment"]["digest"], f"missing on {name}"
                )
        found.true(
            "one environment on all",
            len(set(prints.values())) < 2
            and not any(str(p).startswith("missing") for p in prints.values()),
            prints,
        )
        found.same(
            "nodes with a command of their own",
            [],
            [node["name"] for node in plan["nodes"] if node.get("argv")],
        )
        self.ranks(found, run, plan)
        found.say(
            "%s: plan %s, code and data the same on %s now; %d ranks ran there",
            run["run"],
            run["plan_sha256"][:8],
            ", ".join(nodes),
            len(plan["ranks"]),
        )

    def ranks(self, found, run, plan):
        """Every planned rank started on its node, saw the planned endpoints, and ended with 0."""
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
            found.same(
                "rank %d on %s: start, with the planned endpoints; end"
                % (rank["rank"], rank["node"]),
                ([True], [(0, None)]),
                (started, ended),
            )

    def started_together(self, found, variable, job):
        """E1: the newest run that has endpoints: the pinned port reported back, and every node's
        command begun before any other's had ended.
        """
        run, plan = self.witness(found, None, "", job)
        if run is None:
            return
        port = plan["env"].get(variable)
        found.true(
            "{} in the plan of {}".format(variable, run["run"]),
            port and port == str(plan["ports"]["start"]),
            port,
        )
        self.ranks(found, run, plan)
        begun, over = [], []
        for node in plan["nodes"]:
            times = {
                event["event"]: event["time"]
                for event in events_of(self.runs_dir, run, node["name"])
            }
            found.true(
                "the command began and ended on {}".format(node["name"]),
                "launched" in times and "launcher_end" in times,
                sorted(times),
            )
            begun.append(times.get("launched", float("inf")))
            over.append(times.get("launcher_end", 0.0))
        found.true(
            "all had begun before one ended",
            max(begun) < min(over),
            "the last began %.1f s after the first end" % (max(begun) - min(over)),
        )
        found.say(
            "%s: port %s, %d nodes started within %.1f s",
            run["run"],
            port,
            len(begun),
            max(begun) - min(begun),
        )
