# SPDX-License-Identifier: Apache-2.0
"""Choose the run, the attempt and the nodes that a command is about, from what the nodes say.
Controller only.

A node is not trusted. It may name a run that does not exist, or the attempt and the nodes of
another one. So a run or an attempt counts when the controller has it at home, or when two nodes
name it. What one node alone names is taken only where nothing else is known. The plan at home
decides which nodes have a part. All nodes are those of the inventory.
"""

from __future__ import annotations

import collections
import os

from ..attempts.attempt_dir import RUN_ID
from . import run_json

MOST_ATTEMPTS = 999_999
# One node alone moves the number of the next attempt no further than this beyond what the others
# and the controller know.
LEAP = 50


def is_run(value):
    """Return whether a value is the id of a run."""
    return isinstance(value, str) and bool(RUN_ID.match(value))


def check(run):
    """Raise ValueError where a run is named that cannot be one."""
    if run and not is_run(run):
        raise ValueError(f"{run!r} is no run id")


def is_attempt(value):
    """Return whether a value is the number of an attempt."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_ATTEMPTS


def sound(status, run=""):
    """Return whether an answer says in a usable way that a node has a run; run: the one that was
    asked for, or ''.
    """
    return (
        isinstance(status, dict)
        and status.get("found") is True
        and isinstance(status.get("ended"), bool)
        and is_run(status.get("run"))
        and is_attempt(status.get("attempt"))
        and (not run or status["run"] == run)
    )


def claims(answers, site, run=""):
    """Return {node: status} of the site's nodes that say in a usable way that they have a run."""
    return {node: status for node, status in answers.items() if node in site and sound(status, run)}


def known_runs(answers):
    """Return the ids of the runs that the nodes know, newest first."""
    said = [status.get("known") for status in answers.values() if isinstance(status, dict)]
    return sorted(
        {name for names in said if isinstance(names, list) for name in names if is_run(name)},
        reverse=True,
    )


def numbers_at_home(runs_dir, run):
    """Return the numbers of a run's attempts that the controller has; a link is not one of its
    runs.
    """
    run_dir = os.path.join(runs_dir, run)
    return [] if not is_run(run) or os.path.islink(run_dir) else run_json.numbers(run_dir)


def choose(runs_dir, site, answers, run=""):
    """Return {run, number, nodes, next, notes, claimed}, or None where no node says that it has a
    run.

    site: names of the inventory's trainers and spares. answers: {node: what attempt_status said, or
    nothing}. run: the one that was asked for, or ''. next: the number of an attempt that nobody has
    used. claimed: the nodes that have this attempt. notes: lines about nodes that say otherwise.
    """
    found = claims(answers, site, run)
    if not found:
        return None
    chosen = _newest(
        {node: status["run"] for node, status in found.items()},
        lambda name: numbers_at_home(runs_dir, name),
    )
    mine = {node: status for node, status in found.items() if status["run"] == chosen}
    home = numbers_at_home(runs_dir, chosen)
    number = _newest(
        {node: status["attempt"] for node, status in mine.items()}, lambda one: one in home
    )
    claimed = [node for node, status in mine.items() if status["attempt"] == number]
    notes = [
        "{} alone says that it has the newer run {}; to take that one: -e run={}".format(
            node, status["run"], status["run"]
        )
        for node, status in found.items()
        if status["run"] > chosen
    ]
    notes += [
        "%s alone says that it has attempt %d of %s" % (node, mine[node]["attempt"], chosen)
        for node in mine
        if mine[node]["attempt"] > number
    ]
    nodes = members(runs_dir, site, mine, chosen, number) or claimed
    following = next_number(
        home, {node: status.get("attempts") for node, status in mine.items()}, number
    )
    return {
        "run": chosen,
        "number": number,
        "nodes": nodes,
        "next": following,
        "notes": notes,
        "claimed": claimed,
    }


def _newest(named, at_home):
    """Return the newest of {node: name} that is at home or that two nodes name, else the newest of
    all.
    """
    count = collections.Counter(named.values())
    return max([name for name in count if count[name] > 1 or at_home(name)] or list(count))


def members(runs_dir, site, mine, run, number):
    """Return the nodes of an attempt in rank order: by the plan at home, else as most of its nodes
    say.

    mine: {node: status} of nodes that have the run. Of two different lists that one node each
    gives, that one counts whose nodes have the attempt.
    """
    if number in numbers_at_home(runs_dir, run):
        planned = [
            node.get("name")
            for node in (run_json.plan_of(os.path.join(runs_dir, run), number) or {}).get("nodes")
            or ()
        ]
        planned = [name for name in planned if name in site]
        if planned:
            return planned
    return agreed(
        {node: status for node, status in mine.items() if status["attempt"] == number}, site
    )


def agreed(having, site):
    """Return the nodes of an attempt as most of the nodes say that have it; having: {node: status}."""
    lists = [inventory_names(status.get("nodes"), site) for status in having.values()]
    count = collections.Counter(tuple(names) for names in lists if names)
    if not count:
        return list(having)
    return list(
        max(
            count,
            key=lambda names: (count[names], len(set(names) & set(having)), -len(names), names),
        )
    )


def inventory_names(names, site):
    """Return those of a node's words that name nodes of the site, each once: never a pattern, never
    the controller.
    """
    names = names if isinstance(names, (list, tuple)) else ()
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name in site))


def believed(found, answers, home, members):
    """Return (the claims of a run that count, notes about the others), for a controller that may
    have the run itself.

    What one node alone says about an attempt counts only where the controller has that attempt, or
    where no other node that should have it answers otherwise. found: {node: status} of one run.
    answers: {node: what attempt_status said, or nothing}. home: numbers at home. members: the run's
    nodes as far as the controller knows.
    """
    count, kept, notes = collections.Counter(status["attempt"] for status in found.values()), {}, []
    for node, status in found.items():
        others = [
            name for name in inventory_names(status.get("nodes"), list(answers)) if name != node
        ]
        denied = any(answers[name] for name in others) or (members and node not in members)
        if count[status["attempt"]] > 1 or status["attempt"] in home or not denied:
            kept[node] = status
        else:
            notes.append(
                "%s alone says that it has attempt %d of %s"
                % (node, status["attempt"], status["run"])
            )
    return kept, notes


def next_number(home, attempts, newest=0):
    """Return a number above all that were used: at home, and by the nodes as far as it can be
    believed.

    attempts: {node: the numbers that a node has}. newest: one that is known to be used.
    """
    said = {
        node: {one for one in numbers if is_attempt(one)}
        for node, numbers in attempts.items()
        if isinstance(numbers, (list, tuple))
    }
    count = collections.Counter(number for numbers in said.values() for number in numbers)
    sure = max([newest, *home, *(number for number in count if count[number] > 1)], default=0)
    return max([sure, *(number for number in count if number <= sure + LEAP)]) + 1


def holding(runs_dir, site, answers):
    """Return [[run, number, nodes]] of the attempts that hold a node, each with all nodes on which
    it is to be stopped.
    """
    going = {node: status for node, status in claims(answers, site).items() if not status["ended"]}
    found = []
    for run in sorted({status["run"] for status in going.values()}):
        mine = {node: status for node, status in going.items() if status["run"] == run}
        bound = (
            next_number(
                numbers_at_home(runs_dir, run),
                {node: [status["attempt"]] for node, status in mine.items()},
            )
            - 1
        )
        for number in sorted({status["attempt"] for status in mine.values()}):
            having = [node for node, status in mine.items() if status["attempt"] == number]
            nodes = (
                list(dict.fromkeys(members(runs_dir, site, mine, run, number) + having))
                if number <= bound
                else having
            )
            found.append([run, number, nodes])
    return found
