# SPDX-License-Identifier: Apache-2.0
"""Processes that earlier runs left on a node, and other trainings there.

Ours are processes that carry a run's mark while nothing of the run holds the node: stop.yml ends
them, and nothing starts before. Launchers of other users are named and never touched. A container
that is left over shows by its processes: the engines start them as the training user.
"""

from __future__ import annotations

import collections
import os
import re

from ..attempts import attempt_dir
from ..base import processes
from ..base.files import read_text
from ..base.findings import finding
from ..base.units import format_duration

# Programs and modules that start trainings, by the name in their command line.
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
# The number of processes to list of each kind; a broken node can have thousands.
LISTED = 20


def launches(words):
    """Return whether a command line starts a training.

    It does so as a launcher itself, a runner with a launcher's script, or python -m with its
    module.
    """
    names = [os.path.basename(word) for word in words[:2]]
    if not names:
        return False
    if names[0] in PROGRAMS:
        return True
    if len(names) > 1 and _RUNNERS.match(names[0]) and names[1] in PROGRAMS:
        return True
    return any(
        words[at] == "-m" and words[at + 1] in MODULES for at in range(1, min(len(words) - 1, 6))
    )


def look(run, base, questions):
    """Return {ours, foreign, more} of the processes of a node.

    ours: of this user's earlier runs. foreign: launchers of trainings that are not runs of this
    user. Each is as processes.describe has it, the oldest first. more: {ours: {run: how many are
    not listed}, foreign: how many are not listed}.
    """
    active = {item["unit"] for item in questions.get("units") or []}
    ours, foreign = [], []
    for pid in processes.pids():
        mark = processes.mark_of(pid)
        if mark:
            if not _is_in_unit(pid, attempt_dir.unit_name(*mark), active):
                process = processes.describe(pid)
                if process and process["uid"] == os.getuid() and process["run"]:
                    ours.append(process)
        elif launches(processes.words_of(pid)):
            process = processes.describe(pid)
            if process:
                foreign.append(process)
    ours.sort(key=lambda item: -item["age_s"])
    foreign.sort(key=lambda item: -item["age_s"])
    more = dict(collections.Counter(item["run"] for item in ours[LISTED:]))
    return {
        "ours": ours[:LISTED],
        "foreign": foreign[:LISTED],
        "more": {"ours": more, "foreign": len(foreign[LISTED:])},
    }


def _is_in_unit(pid, unit, active):
    """Return whether a process belongs to a unit.

    active: the user's units. Another user's run, as root sees it, stands in a unit of that user. A
    run that has started since the units were listed stands in its unit, too.
    """
    return unit in active or unit in re.split("[/\n]", read_text(f"/proc/{pid}/cgroup"))


# The fields that a finding needs: of this user's earlier runs, and of another user's training.
OURS = ("pid", "run", "attempt", "command", "age_s", "rss_mib")
FOREIGN = ("pid", "user", "command", "age_s")


def _complete_items(items, keys):
    """Return the processes that have a value for every key."""
    return [item for item in items if all(item.get(key) is not None for key in keys)]


def judge(nodes, facts, allowed):
    """Return findings about processes that do not belong to the job.

    There is a STOP for each run that has left processes, listed or not, and a NOTE for each
    training of another user.
    """
    findings = []
    for node in nodes:
        name = node["name"]
        state = facts[name].get("orphans") or {}
        more = state.get("more") or {"ours": {}, "foreign": 0}
        runs = {run_id: [] for run_id in more["ours"]}
        for item in _complete_items(state.get("ours", ()), OURS):
            runs.setdefault(item["run"], []).append(item)
        for run_id, items in sorted(runs.items()):
            findings.append(_run_finding(name, run_id, items, more["ours"].get(run_id, 0)))
        for item in _complete_items(state.get("foreign", ()), FOREIGN):
            text = (
                f"{item['user']} trains here beside this job: pid {int(item['pid'])}, for"
                f" {format_duration(item['age_s'])}: {item['command']}"
            )
            remedy = "it is left alone; ask its owner if it is not meant to be there"
            findings.append(finding("orphans.foreign_training", text, remedy, name, "note"))
        if more["foreign"]:
            text = (
                f"{int(more['foreign'])} more launchers of others' trainings run here beside this"
                " job"
            )
            findings.append(
                finding("orphans.foreign_training", text, "they are left alone", name, "note")
            )
    return findings


def _run_finding(name, run_id, items, unlisted):
    """Return the finding of one run that has left processes on a node.

    items: the listed processes. unlisted: the number of the others.
    """
    number = len(items) + unlisted
    text = "a process"
    if number > 1:
        text = f"{int(number)} processes"
    text += f" of the run {run_id} left"
    if items:
        text += f", up to {format_duration(max(item['age_s'] for item in items))} old"
    text += ", though no unit of it runs here"
    # int(): the gate lets fractions through.
    examples = [
        f"pid {int(item['pid'])} (attempt {int(item['attempt'])}, {int(item['rss_mib'])} MiB)"
        f" {item['command']}"
        for item in items[:3]
    ]
    if items and number > len(examples):
        examples.append(f"{int(number - len(examples))} more")
    if examples:
        text += ": " + "; ".join(examples)
    remedy = (
        f"ansible-playbook playbooks/stop.yml -e run={run_id} ends what bears that run's mark"
        " and nothing else"
    )
    return finding("orphans.processes_left", text, remedy, name)
