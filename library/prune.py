#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Remove old runs by a rule."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prune
short_description: Look at the runs of a place, judge them by a rule, remove what the rule lets go
description:
  - C(looked) runs at every place (a node, or home on the controller) and says what its runs are. C(decided) runs once on the controller and removes
    nothing. C(removed) runs at every place, looks once more, and removes. C(told) puts the end into words.
  - Never goes what runs or is held, a job's last good checkpoint, or what is not understood from top to bottom.
options:
  state: {description: What is done., type: str, choices: [looked, decided, removed, told], required: true}
  folder:
    description: "At home: the directory of runs. On a node: the product's directory; relative paths start at the user's home."
    type: str
    default: .trainyard
  home: {description: Whether the place is the controller's., type: bool, default: false}
  site: {description: The site's name; runs of other sites stay., type: str, default: ""}
  keep: {description: "So many of each job's newest runs stay; empty for no such rule.", type: str, default: ""}
  older_than: {description: "Only runs that began longer ago go: V(12h), V(30d), V(8w).", type: str, default: ""}
  run: {description: The one run that goes., type: str, default: ""}
  looks: {description: "{place: what C(looked) returned there, if anything}.", type: dict, default: {}}
  asked: {description: Places that were asked; some may not have answered (C(told) only)., type: list, elements: str, default: []}
  decided: {description: What C(decided) returned (C(told) only)., type: dict, default: {}}
  names: {description: Runs to remove here (C(removed) only)., type: list, elements: str, default: []}
  done: {description: "{place: what C(removed) returned there, if anything} (C(told) only).", type: dict, default: {}}
  confirmed: {description: Whether something was to be removed (C(told) only)., type: bool, default: false}
attributes:
  check_mode: {support: full, description: Removes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Look at the node's runs
  prune:
    state: looked
  register: looked

- name: Remove what may go
  prune:
    state: removed
    names: "{{ decided.remove[inventory_hostname] | default([]) }}"
"""

RETURN = r"""
look: {description: "runs, strange, unfinished, bytes; see plugins/module_utils/runs/prune_scan.py.", type: dict, returned: looked}
remove: {description: "{place: [run ids]}.", type: dict, returned: decided}
stay: {description: "[{run, places, why}]: what the rule would let go and what keeps it.", type: list, elements: dict, returned: decided}
removed: {description: Runs that are gone., type: list, elements: str, returned: removed}
freed: {description: Bytes., type: int, returned: removed}
problems: {description: What was left, and why., type: list, elements: str, returned: removed}
summary: {description: The end in lines for people., type: list, elements: str, returned: told}
verdict: {description: "outcome (pruned, shown, problems) and text, the last line.", type: dict, returned: told}
"""

import contextlib
import functools
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.records import prune_rules
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import (
    prune_report,
    prune_scan,
)


def at_place(given, run, write):
    """Return the result of C(looked) and C(removed)."""
    base = os.path.join(os.path.expanduser("~"), os.path.expanduser(given["folder"]))
    folder = base if given["home"] else os.path.join(base, "runs")
    describe = functools.partial(prune_scan.at_home if given["home"] else prune_scan.on_node, base)

    def held():
        return prune_scan.held_at_home(base) if given["home"] else prune_scan.held_here(run)

    if given["state"] == "looked":
        running = held()
        return {
            "changed": False,
            "look": printable_data(prune_scan.look(folder, lambda name: describe(name, running))),
        }
    if not write:
        return {"changed": bool(given["names"]), "removed": [], "freed": 0, "problems": []}
    # on a node no start may come between the look and the removal
    with contextlib.nullcontext() if given["home"] else attempt_dir.hold(base):
        found = prune_scan.remove(folder, given["names"], lambda name: describe(name, {}), held)
    return dict(printable_data(found), changed=bool(found["removed"]))


def judged(given, now):
    """Return the result of C(decided) and C(told)."""
    rule, decided = (
        prune_rules.rule_of(given["keep"], given["older_than"], given["run"]),
        given["decided"],
    )
    if rule["run"] and not attempt_dir.RUN_ID.match(rule["run"]):
        raise ValueError("{!r} is no run id".format(rule["run"]))
    looks = {
        place: prune_rules.sound((said or {}).get("look")) for place, said in given["looks"].items()
    }
    if given["state"] == "decided":
        found = prune_rules.decide(rule, looks, given["site"], now)
        if found["unknown"]:
            raise ValueError("no place that was asked knows the run {}".format(rule["run"]))
        return dict(found, changed=False)
    done = {
        place: result for place, result in given["done"].items() if result and "removed" in result
    }
    silent = [place for place, look in looks.items() if place in given["asked"] and look is None]
    problems = [f"{place}: {text}" for place, result in done.items() for text in result["problems"]]
    last = prune_report.last_line(looks, decided, done, given["confirmed"], silent)
    lines = (
        prune_report.plan_lines(rule, looks, decided, now, silent)
        + ["not removed: " + text for text in problems]
        + [last]
    )
    outcome = "problems" if problems or silent else "pruned" if given["confirmed"] else "shown"
    return {
        "changed": False,
        "summary": [printable(line) for line in lines],
        "verdict": {"outcome": outcome, "text": printable(last)},
    }


def main():
    text = {"type": "str", "default": ""}
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["looked", "decided", "removed", "told"], "required": True},
            "folder": {"type": "str", "default": ".trainyard"},
            "home": {"type": "bool", "default": False},
            "site": text, "keep": text, "older_than": text, "run": text,
            "looks": {"type": "dict", "default": {}},
            "asked": {"type": "list", "elements": "str", "default": []},
            "decided": {"type": "dict", "default": {}},
            "names": {"type": "list", "elements": "str", "default": []},
            "done": {"type": "dict", "default": {}},
            "confirmed": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )  # fmt: skip

    def run(argv):
        return module.run_command(
            argv,
            environ_update=dict(attempt_dir.user_environment(os.getuid()), LANG="C", LC_ALL="C"),
        )

    given = module.params
    try:
        if given["state"] in ("looked", "removed"):
            module.exit_json(**at_place(given, run, not module.check_mode))
        module.exit_json(**judged(given, time.time()))
    except (attempt_dir.AttemptError, OSError, ValueError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
