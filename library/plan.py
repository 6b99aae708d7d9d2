#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Compile the plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Compile the plan of a job from site and probed facts
description:
  - Runs on the controller; a call into the pure C(plugins/module_utils/trainyard/plan.py). Fails with every reason why no plan can be made, and
    where a node is held by another run.
options:
  job: {description: As read_job gives it., type: dict, required: true}
  site: {description: As read_job gives it., type: dict, required: true}
  nodes: {description: The chosen nodes in rank order., type: list, elements: dict, required: true}
  facts: {description: Node name to what node_probe returned., type: dict, required: true}
  inputs: {description: As job_inputs gives it., type: dict, required: true}
  suite: {description: The suite's table., type: dict, required: true}
  source: {description: What the site says of the suite., type: dict, required: true}
  project: {description: The project's directory on the controller., type: path, required: true}
  repair: {description: "Leave it to the workspace role to replace a tree that differs, instead of failing.", type: bool, default: false}
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
plan: {description: The plan., type: dict, returned: success}
text: {description: "The plan's bytes: one line of canonical JSON (ASCII).", type: str, returned: success}
sha256: {description: Digest of these bytes., type: str, returned: success}
todo: {description: What is not ready yet and on which nodes., type: dict, returned: success}
summary: {description: "The plan in lines for people: commands, rank map, digests.", type: list, elements: str, returned: success}
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard import environment, plan, plan_text, readiness
from ansible.module_utils.trainyard.display import printable


def requirement_texts(names, project):
    """Return the contents of the site's pinned requirement lists."""
    texts = []
    for name in names:
        path = environment.requirement_path(name, os.path.join(project, "roles", "runtime", "files"), project)
        try:
            with open(path, encoding="utf-8") as handle:
                texts.append(handle.read())
        except FileNotFoundError as error:
            text = "the site's environment.requirements names %s, and %s is not there; write the list (docs/adding-a-suite.md, 4)"
            raise environment.EnvironmentRefused([text % (name, path)]) from error
    return texts


def compiled(given):
    """Return (plan, facts) of the module's arguments."""
    first = given["facts"][given["nodes"][0]["name"]]
    wanted = given["source"]["environment"]
    texts = requirement_texts(wanted.get("requirements") or [], given["project"])
    digest = environment.environment_digest(wanted, texts, first["python_version"], first["machine"])
    inputs = dict(given["inputs"], suite=given["suite"], environment=dict(wanted, digest=digest))
    return plan.compile_plan(given["job"], given["site"], given["nodes"], given["facts"], inputs)


def main():
    module = AnsibleModule(
        argument_spec={
            "job": {"type": "dict", "required": True},
            "site": {"type": "dict", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "facts": {"type": "dict", "required": True},
            "inputs": {"type": "dict", "required": True},
            "suite": {"type": "dict", "required": True},
            "source": {"type": "dict", "required": True},
            "project": {"type": "path", "required": True},
            "repair": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    facts = given["facts"]
    try:
        made = compiled(given)
    except plan.PlanError as error:
        module.fail_json(
            msg=printable("this job cannot start here:\n%s" % "\n".join("  " + text for text in error.problems), newlines=True)
        )
    except (environment.EnvironmentRefused, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))
    obstacles = readiness.obstacles(made, facts, given["repair"])
    if obstacles and not module.check_mode:
        module.fail_json(msg=printable("nothing was started:\n%s" % "\n".join("  " + text for text in obstacles), newlines=True))
    todo = readiness.todo(made, facts, time.time(), given["site"]["nodes"])
    text = plan.canonical(made).decode("ascii")
    module.exit_json(changed=False, plan=made, text=text, sha256=plan.sha256(made), todo=todo, summary=plan_text.summary(made, facts, todo))


if __name__ == "__main__":
    main()
