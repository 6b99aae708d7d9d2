# SPDX-License-Identifier: Apache-2.0
"""The choice of the run, the attempt and the nodes that a command is about.

It is made from what the nodes say. A node is not trusted. It may name a run that does not exist, or
the attempt and the nodes of another one. So a run or an attempt counts when the controller has it,
or when two nodes name it. What one node alone names is taken only where nothing else is known. The
controller's plan decides which nodes have a part. All nodes are those of the inventory.
"""

from __future__ import annotations

import collections
import os

from ..attempts.attempt_dir import RUN_ID
from . import run_json

MOST_ATTEMPTS = 999_999
# The most by which one node alone moves the number of the next attempt beyond what the others and
# the controller know.
LEAP = 50


def is_run(value):
    """Return whether a value is the id of a run."""
    return isinstance(value, str) and bool(RUN_ID.match(value))


def is_attempt(value):
    """Return whether a value is the number of an attempt."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_ATTEMPTS


def is_sound(status, run=""):
    """Return whether an answer says in a usable way that a node has a run.

    run: the one that was asked for, or ''.
    """
    return (
        isinstance(status, dict)
        and status.get("found") is True
        and isinstance(status.get("ended"), bool)
        and is_run(status.get("run"))
        and is_attempt(status.get("attempt"))
        and (not run or status["run"] == run)
    )


def valid_claims(answers, site, run=""):
    """Return {node: status} of the site's nodes that have a run.

    Only an answer that says so in a usable way counts.
    """
    return {
        node: status for node, status in answers.items() if node in site and is_sound(status, run)
    }


def known_runs(answers):
    """Return the ids of the runs that the nodes know, newest first."""
    lists = [status.get("known") for status in answers.values() if isinstance(status, dict)]
    return sorted(
        {name for names in lists if isinstance(names, list) for name in names if is_run(name)},
        reverse=True,
    )


def controller_attempts(runs_dir, run):
    """Return the numbers of a run's attempts that the controller has.

    A link is not one of its runs.
    """
    run_dir = os.path.join(runs_dir, run)
    if not is_run(run) or os.path.islink(run_dir):
        return []
    return run_json.attempt_numbers(run_dir)


def choose(runs_dir, site, answers, run=""):
    """Return the run, the attempt and the nodes that the answers name.

    It is {run, number, nodes, next, notes, claimed}, or None where no node has a run. site: names
    of the inventory's trainers and spares. answers: {node: what attempt_monitor said, or nothing}.
    run: the one that was asked for, or ''. next: the number of an attempt that is unused. claimed:
    the nodes that have this attempt. notes: lines about nodes that say otherwise.
    """
    statuses = valid_claims(answers, site, run)
    if not statuses:
        return None
    chosen = _newest(
        {node: status["run"] for node, status in statuses.items()},
        lambda name: controller_attempts(runs_dir, name),
    )
    of_run = {node: status for node, status in statuses.items() if status["run"] == chosen}
    planned = controller_attempts(runs_dir, chosen)
    number = _newest(
        {node: status["attempt"] for node, status in of_run.items()},
        lambda attempt: attempt in planned,
    )
    claimed = [node for node, status in of_run.items() if status["attempt"] == number]
    notes = [
        f"{node} alone says that it has the newer run {status['run']}; to take that one: -e"
        f" run={status['run']}"
        for node, status in statuses.items()
        if status["run"] > chosen
    ]
    notes += [
        _lone_claim(node, status) for node, status in of_run.items() if status["attempt"] > number
    ]
    used = {node: status.get("attempts") for node, status in of_run.items()}
    return {
        "run": chosen,
        "number": number,
        "nodes": attempt_nodes(runs_dir, site, of_run, chosen, number) or claimed,
        "next": next_number(planned, used, number),
        "notes": notes,
        "claimed": claimed,
    }


def _lone_claim(node, status):
    """Return the note about a node that alone names an attempt."""
    return f"{node} alone says that it has attempt {status['attempt']} of {status['run']}"


def _newest(named, is_planned):
    """Return the newest of {node: name} that is confirmed.

    The controller has it, or two nodes name it. Without a confirmed one, it is the newest of all.
    """
    count = collections.Counter(named.values())
    return max([name for name in count if count[name] > 1 or is_planned(name)] or list(count))


def attempt_nodes(runs_dir, site, statuses, run, number):
    """Return the nodes of an attempt in rank order.

    They are those of the controller's plan, else what most of its nodes say. statuses: {node:
    status} of nodes that have the run. Of two different lists that one node each gives, that one
    counts whose nodes have the attempt.
    """
    planned = []
    if number in controller_attempts(runs_dir, run):
        plan = run_json.read_plan(os.path.join(runs_dir, run), number) or {}
        planned = [node.get("name") for node in plan.get("nodes") or ()]
    nodes = [name for name in planned if name in site]
    if nodes:
        return nodes
    having = {node: status for node, status in statuses.items() if status["attempt"] == number}
    return majority_nodes(having, site)


def majority_nodes(having, site):
    """Return the nodes of an attempt as most of the nodes say that have it.

    having: {node: status}.
    """
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
    """Return those of a node's words that name nodes of the site, each once.

    A pattern or the controller is never among them.
    """
    if not isinstance(names, (list, tuple)):
        return []
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name in site))


def split_claims(statuses, answers, planned, members):
    """Return (the claims of a run that count, notes about the others).

    The controller may have the run itself. What one node alone says about an attempt counts only
    where the controller has that attempt, or where no other node that should have it answers
    otherwise. statuses: {node: status} of one run. answers: {node: what attempt_monitor said, or
    nothing}. planned: numbers of the controller's attempts. members: the run's nodes as far as the
    controller knows.
    """
    count = collections.Counter(status["attempt"] for status in statuses.values())
    kept, notes = {}, []
    for node, status in statuses.items():
        names = inventory_names(status.get("nodes"), list(answers))
        denied = any(answers[name] for name in names if name != node)
        denied = denied or (members and node not in members)
        if count[status["attempt"]] > 1 or status["attempt"] in planned or not denied:
            kept[node] = status
        else:
            notes.append(_lone_claim(node, status))
    return kept, notes


def next_number(planned, attempts, newest=0):
    """Return a number above all that the controller and the nodes have used.

    The nodes count as far as they can be believed. planned: numbers of the controller's attempts.
    attempts: {node: the numbers that a node has}. newest: one that is known to be used.
    """
    lists = [
        set(filter(is_attempt, numbers))
        for numbers in attempts.values()
        if isinstance(numbers, (list, tuple))
    ]
    count = collections.Counter(number for numbers in lists for number in numbers)
    sure = max([newest, *planned, *(number for number in count if count[number] > 1)], default=0)
    return max([sure, *(number for number in count if number <= sure + LEAP)]) + 1


def running_attempts(runs_dir, site, answers):
    """Return [[run, number, nodes]] of the attempts that hold a node.

    nodes: all on which the attempt is to be stopped.
    """
    running = {
        node: status for node, status in valid_claims(answers, site).items() if not status["ended"]
    }
    result = []
    for run in sorted({status["run"] for status in running.values()}):
        of_run = {node: status for node, status in running.items() if status["run"] == run}
        used = {node: [status["attempt"]] for node, status in of_run.items()}
        newest = next_number(controller_attempts(runs_dir, run), used) - 1
        for number in sorted({status["attempt"] for status in of_run.values()}):
            nodes = [node for node, status in of_run.items() if status["attempt"] == number]
            if number <= newest:
                planned = attempt_nodes(runs_dir, site, of_run, run, number)
                nodes = list(dict.fromkeys(planned + nodes))
            result.append([run, number, nodes])
    return result
