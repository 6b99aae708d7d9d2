# SPDX-License-Identifier: Apache-2.0
"""What earlier runs left on a node, and who else trains there.

Ours are processes that carry a run's mark while nothing of the run holds the node: stop.yml ends
them, and nothing starts before. Others' launchers are named and never touched. A container that is
left over shows by its processes: the engines start them as the training user.
"""

from __future__ import annotations

import collections
import os
import re

from ..attempts import attempt_dir
from ..base import processes
from ..base.findings import finding
from ..base.unit_limits import text_of

# Programs and modules that start trainings, by the word that is run.
PROGRAMS = (
    "fleetrun",
    "msrun",
    "mpirun",
    "mpiexec",
    "orterun",
    "prterun",
    "torchrun",
    "deepspeed",
    "horovodrun",
)
MODULES = (
    "paddle.distributed.launch",
    "paddle.distributed.fleet.launch",
    "torch.distributed.launch",
    "torch.distributed.run",
)
_RUNNERS = re.compile(r"(python[0-9.]*|pypy[0-9.]*|sh|bash|dash|env)\Z")
# So many are listed of each kind; a broken node can have thousands.
LISTED = 20


def launches(words):
    """Return whether these words start a training: a launcher itself, a runner with a launcher's
    script, or python -m with its module.
    """
    names = [os.path.basename(word) for word in words[:2]]
    if not names:
        return False
    if names[0] in PROGRAMS or (
        len(names) > 1 and _RUNNERS.match(names[0]) and names[1] in PROGRAMS
    ):
        return True
    return any(
        words[at] == "-m" and words[at + 1] in MODULES for at in range(1, min(len(words) - 1, 6))
    )


def look(run, base, asked):
    """Return {ours, foreign, more}: processes of this user's earlier runs, and launchers of
    trainings that are none of this user's runs.

    Each is as processes.describe has it, the oldest first; more: {ours: {run: how many are not
    listed}, foreign: how many are not listed}.
    """
    active, mine = {item["unit"] for item in asked.get("units") or []}, os.getuid()
    ours, foreign = [], []
    for pid in processes.pids():
        mark = processes.mark_of(pid)
        if mark:
            unit = attempt_dir.unit_name(*mark)
            # Somebody else's run, seen by root, stands in a unit of its user's; so does one that
            # has started since the units were listed.
            if unit not in active and unit not in re.split(
                "[/\n]", text_of("/proc/%d/cgroup" % pid)
            ):
                found = processes.describe(pid)
                ours += [found] if found and found["uid"] == mine and found["run"] else []
        elif launches(processes.words_of(pid)):
            found = processes.describe(pid)
            foreign += [found] if found else []
    for found in (ours, foreign):
        found.sort(key=lambda item: -item["age_s"])
    more = dict(collections.Counter(item["run"] for item in ours[LISTED:]))
    return {
        "ours": ours[:LISTED],
        "foreign": foreign[:LISTED],
        "more": {"ours": more, "foreign": len(foreign[LISTED:])},
    }


# What is said of a process of this user's earlier runs, and of somebody else's training.
OURS = ("pid", "run", "attempt", "command", "age_s", "rss_mib")
FOREIGN = ("pid", "user", "command", "age_s")


def _seen(items, needs):
    """Return the processes of which a node tells all that is needed, as processes.describe does."""
    return [item for item in items if all(item.get(key) is not None for key in needs)]


def judge(nodes, facts, allowed):
    """Return findings: a stop for each run that has left processes, listed or not, a note for each
    training of somebody else's.
    """
    found = []
    for node in nodes:
        told = facts[node["name"]].get("orphans") or {}
        more = told.get("more") or {"ours": {}, "foreign": 0}
        runs = {run_id: [] for run_id in more["ours"]}
        for item in _seen(told.get("ours", ()), OURS):
            runs.setdefault(item["run"], []).append(item)
        for run_id, items in sorted(runs.items()):
            words = [
                "pid %(pid)d (attempt %(attempt)d, %(rss_mib)d MiB) %(command)s" % item
                for item in items[:3]
            ]
            number = len(items) + more["ours"].get(run_id, 0)
            words += ["%d more" % (number - len(words))] if items and number > len(words) else []
            age = (
                ", up to {} old".format(processes.age(max(item["age_s"] for item in items)))
                if items
                else ""
            )
            count = "%d processes" % number if number > 1 else "a process"
            text = "%s of the run %s left%s, though no unit of it runs here%s"
            remedy = (
                f"playbooks/stop.yml -e run={run_id} ends what bears that run's mark and nothing"
                " else"
            )
            found.append(
                finding(
                    "orphans",
                    text % (count, run_id, age, ": " + "; ".join(words) if words else ""),
                    remedy,
                    node["name"],
                )
            )
        for item in _seen(told.get("foreign", ()), FOREIGN):
            text = "%s trains here beside this job: pid %d, for %s: %s" % (
                item["user"],
                item["pid"],
                processes.age(item["age_s"]),
                item["command"],
            )
            found.append(
                finding(
                    "orphans",
                    text,
                    "it is left alone; ask its owner if it is not meant to be there",
                    node["name"],
                    "note",
                )
            )
        if more["foreign"]:
            text = "%d more launchers of others' trainings run here beside this job"
            found.append(
                finding(
                    "orphans", text % more["foreign"], "they are left alone", node["name"], "note"
                )
            )
    return found
