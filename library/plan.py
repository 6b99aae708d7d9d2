#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Compile the plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Compile the plan of a job from site and probed facts
description:
  - Runs on the controller; a call into the pure C(plugins/module_utils/plan/compiler.py), and into C(checks.py), which judges what the nodes
    said. Fails with every reason why nothing may start, all at once, unless they are only to be reported.
options:
  job: {description: As read_job gives it., type: dict, required: true}
  site: {description: As read_job gives it., type: dict, required: true}
  nodes: {description: The chosen nodes in rank order., type: list, elements: dict, required: true}
  facts: {description: Node name to what node_probe returned., type: dict, required: true}
  inputs: {description: As job_inputs gives it., type: dict, required: true}
  resume: {description: "The checkpoint that the run is resumed from, as resume_point chose it.", type: dict, default: {}}
  suite: {description: The suite's table., type: dict, required: true}
  source: {description: What the site says of the suite., type: dict, required: true}
  project: {description: The project's directory on the controller., type: path, required: true}
  silent: {description: Node name to what the connection said of a node that did not answer., type: dict, default: {}}
  allowed: {description: What the site asks of its nodes (roles/preflight/defaults/main.yml)., type: dict, default: {}}
  report: {description: "Return the findings instead of failing with them (check.yml).", type: bool, default: false}
  state_dir: {description: What the controller keeps of the site; proofs lie there., type: path}
  rehearse: {description: Whether the plan is to be rehearsed., type: bool, default: true}
  repair: {description: "For sync.yml: trees that differ are replaced, what keeps only a start is warned of.", type: bool, default: false}
attributes:
  check_mode: {support: full, description: Computes only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Compile the plan
  plan:
    job: "{{ read.job }}"
    site: "{{ read.site }}"
    nodes: "{{ read.nodes }}"
    suite: "{{ read.suite }}"
    source: "{{ read.source }}"
    inputs: "{{ inputs }}"
    facts: "{{ facts }}"
    project: "{{ read.project }}"
  register: planned
"""

RETURN = r"""
plan: {description: The plan., type: dict, returned: where there is one}
text: {description: "The plan's bytes: one line of canonical JSON (ASCII).", type: str, returned: where there is a plan}
sha256: {description: Digest of these bytes., type: str, returned: where there is a plan}
todo:
  description: >-
    What is not ready yet and on which nodes; besides network (the nodes between which it is to be proven), depth (quick or full) and rehearsal
    (the nodes that rehearse).
  type: dict
  returned: success
findings: {description: "What was found, see findings.py.", type: list, elements: dict, returned: success}
refused: {description: "Nothing is left to train, and no further try will find any.", type: bool, returned: where it failed}
stops: {description: "Of what is in the way of a start: check and nodes.", type: list, elements: dict, returned: where it failed for that reason}
lines: {description: The same as a table for people., type: list, elements: str, returned: success}
listen: {description: Ports on which the network's proof listens., type: list, elements: int, returned: where there is a plan}
keys: {description: "Node name to the public key of this attempt, checked.", type: dict, returned: where there is a plan}
rehearsal: {description: "The rehearsal's plan: text, sha256.", type: dict, returned: where there is a plan}
summary: {description: "The plan in lines for people: commands, rank map, digests.", type: list, elements: str, returned: success}
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.network import (
    reachability,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import (
    compiler,
    readiness,
    render,
    resume_inputs,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import (
    checks,
    proof_cache,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.rehearsal import (
    outcome,
)

# What the ranks of a rehearsal run, below the project's directory.
REHEARSED = "plugins/module_utils/agent/rehearse.py"


def compiled(given):
    """Return (plan, facts) of the module's arguments."""
    name = given["nodes"][0]["name"]
    if given["inputs"].get("unread"):
        raise compiler.PlanError(
            [
                "{} has not told of the code that lies there: {}".format(
                    name, given["inputs"]["unread"]
                )
            ]
        )
    first = given["facts"][name]
    wanted = given["source"]["environment"]
    texts = python_env.requirement_texts(wanted.get("requirements") or [], given["project"])
    digest = python_env.environment_digest(wanted, texts, first["python_version"], first["machine"])
    inputs = dict(
        given["inputs"],
        suite=given["suite"],
        environment=dict(wanted, digest=digest),
        resume=given["resume"] or None,
    )
    return compiler.compile_plan(
        given["job"], given["site"], given["nodes"], given["facts"], inputs
    )


def to_prove(made, given, now):
    """Return what is to be proven before the start (nodes for network and rehearsal, and how deeply
    the network is looked at), and what is said of the proofs that are not repeated.

    That every node is reached is tried each time, since a firewall that has changed meanwhile costs
    nothing to find and half an hour to miss. What takes longer (bandwidth, path MTU, the rehearsal)
    is not repeated for a while.
    """
    names = [node["name"] for node in made["nodes"]]
    hours, keys = (
        given["allowed"].get("proof_hours") or {},
        proof_cache.keys(made, given["facts"], given["allowed"]),
    )
    kept = {
        kind: proof_cache.valid(
            given["state_dir"] or "", kind, keys[kind], float(hours.get(kind, 0)), now
        )
        for kind in proof_cache.KINDS
    }
    # Nobody's training is to share its wire with ours being measured; the run that holds a node is
    # a stop of its own.
    busy = any(given["facts"][name].get("units") for name in names)
    said = [
        item
        for proof in kept.values()
        if proof
        for item in (proof.get("result") or {}).get("findings", ())
        if item["level"] == "warn"
    ]
    todo = {
        "network": names if len(names) > 1 and not busy else [],
        "depth": "quick" if kept["network"] else "full",
        "rehearsal": names if given["rehearse"] and not kept["rehearsal"] else [],
    }
    return todo, said + (checks.remembered(kept, given["rehearse"], now) if given["report"] else [])


def shown(found):
    """Return the findings as a table that is safe to show; nodes' own words stand in it."""
    return [printable(line) for line in findings.lines(found)]


def result(given):
    """Return the module's result; see RETURN."""
    facts, now = given["facts"], time.time()
    found = checks.silent(given["silent"]) + checks.of_nodes(
        given["nodes"], facts, given["allowed"]
    )
    found += checks.of_trust(given["nodes"], facts, given["state_dir"], now, given["report"])
    made = None
    if not given["silent"]:
        try:
            made = compiled(given)
        except (compiler.PlanError, python_env.EnvironmentRefused, OSError) as error:
            found += checks.unplanned(error)
    found += checks.of_plan(made, facts, given["allowed"], given["repair"]) if made else []
    found = checks.of_bringing(found) if given["repair"] else found
    done = resume_inputs.complete(
        given["resume"], given["suite"], given["inputs"].get("config") or {}
    )
    # a node that does not answer now is not waited for with nothing to train
    found += (
        checks.unplanned(compiler.PlanError([done]))
        if done and done not in [item["text"] for item in found]
        else []
    )
    if not made:
        return {
            "changed": False,
            "findings": found,
            "lines": shown(found),
            "todo": {},
            "refused": bool(done),
        }
    proving, said = to_prove(made, given, now)
    todo = dict(
        readiness.todo(made, facts, now, given["site"]["nodes"] + given["site"].get("spares", [])),
        **proving,
    )
    keys, wrong = readiness.run_keys(made, facts)
    if not (
        given["report"] and todo["trust"]
    ):  # a look makes no key on a node that has no mesh yet
        found += [
            findings.finding("mesh", text, "run it again; docs/runbooks/trust.md", node)
            for node, text in wrong
        ]
    found += said
    found += checks.of_todo(todo, found) if given["report"] else []
    with open(os.path.join(given["project"], REHEARSED), encoding="utf-8") as handle:
        rehearsed = outcome.plan_of(
            made, handle.read(), given["allowed"].get("rehearsal_seconds", outcome.SECONDS)
        )
    if given["report"] and todo["rehearsal"]:
        unfit = outcome.unfit(todo, findings.stops(found))
        found, todo["rehearsal"] = found + unfit, [] if unfit else todo["rehearsal"]
    return {
        "changed": False,
        "plan": made,
        "text": compiler.canonical(made).decode("ascii"),
        "sha256": compiler.sha256(made),
        "todo": todo,
        "findings": found,
        "lines": shown(found),
        "summary": render.summary(made, facts, todo),
        "listen": reachability.planned(made),
        "keys": keys,
        "rehearsal": {
            "text": compiler.canonical(rehearsed).decode("ascii"),
            "sha256": compiler.sha256(rehearsed),
        },
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "job": {"type": "dict", "required": True},
            "site": {"type": "dict", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "facts": {"type": "dict", "required": True},
            "inputs": {"type": "dict", "required": True},
            "resume": {"type": "dict", "default": {}},
            "suite": {"type": "dict", "required": True},
            "source": {"type": "dict", "required": True},
            "project": {"type": "path", "required": True},
            "silent": {"type": "dict", "default": {}},
            "allowed": {"type": "dict", "default": {}},
            "report": {"type": "bool", "default": False},
            "state_dir": {"type": "path"},
            "rehearse": {"type": "bool", "default": True},
            "repair": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    found = result(module.params)
    stops, refused = findings.stops(found["findings"]), found.pop("refused", False)
    # --check goes on to show the plan with what is in its way, where there is a plan.
    if stops and not module.params["report"] and not (module.check_mode and "plan" in found):
        module.fail_json(
            msg="\n".join(["nothing was started:"] + ["  " + line for line in found["lines"]]),
            stops=findings.short(stops),
            refused=refused,
        )
    module.exit_json(**found)


if __name__ == "__main__":
    main()
