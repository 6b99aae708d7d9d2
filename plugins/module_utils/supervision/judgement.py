# SPDX-License-Identifier: Apache-2.0
"""Verdict on an attempt and decision on a restart, by the code that a controller uses.

Pure. The leader of a run's supervisors judges by what each member found. The committed entry has
the whole decision, so that every node and a controller that comes later know it.
"""

from __future__ import annotations

from ..attempts import supervisor_order as orders
from ..base.sanitize import printable_data
from ..checkpoints import point_check
from ..diagnosis import own_ranks, verdict
from ..recovery import machine_faults, restart_policy
from . import node_attempts

SILENT = "it did not answer the other nodes of the run"
LONGEST = 2000  # characters of a sentence
_KEPT = ("outcome", "code", "cause", "rank", "node", "text")


def judge(order, planned_ranks, run, found):
    """Return the entry `verdict` of the newest attempt.

    order: the Order. planned_ranks: of the attempt's plan. run: the RunState. found: {node: what it
    found}.
    """
    verdict_found, ranks = _decide(planned_ranks, found)
    newer = find_newer(order, run, found)
    if newer or run.written_by == run.attempt:
        # The log that says so may be lost with its node.
        step = (newer or {"step": run.step})["step"]
        ranks = [*ranks, {"last_step": {"step": step}, "saved_count": 1}]
    kept = {key: verdict_found.get(key) for key in _KEPT}
    decided = printable_data(kept, limit=LONGEST)
    entry = {
        "number": run.attempt,
        "verdict": decided,
        "ranks": ranks,
        "resume": run.began_from and {"digest": run.began_from.get("digest")},
        "started": True,
    }
    earlier = [_entry_of(value) for value in run.verdicts]
    decision = restart_policy.decide({"attempts": [*earlier, entry]}, order.max_restarts) or {}
    instead, delay = _instead(order, run, found), _delay(decision)
    culprits = machine_faults.culprits(verdict_found, run.members)
    broken = [node for node, cause in culprits.items() if cause not in machine_faults.AWAY]
    if instead:
        delay = 0.0  # the older checkpoint removes what kept the attempt from its start
    return {
        "kind": "verdict",
        "attempt": run.attempt,
        "again": bool(decision.get("again")),
        "delay": delay,
        "verdict": decided,
        "decision": decision,
        "trained": restart_policy.has_trained(entry),
        "saved": restart_policy.has_saved(entry),
        "resume": entry["resume"],
        "newer": newer,
        "instead": instead,
        "failed": sorted(culprits),
        "broken": sorted(broken),
    }


def find_newer(order, run, found):
    """Return {step, point} of a newer checkpoint that the attempt has left, None without one.

    order: the Order. found: {node: its finding}.

    A member looks for it after the attempt's end there, so that the training changes nothing. What
    another attempt has left does not count: it was superseded, and may have gone on.
    """
    points = [finding.get(key) for finding in found.values() for key in ("holds", "saved")]
    points = [p for p in points if _is_sound(order, p) and p["attempt"] == run.attempt]
    newest = max(points, key=node_attempts.order_of, default=None)
    if newest is None or node_attempts.order_of(newest) <= run.step:
        return None
    return {"step": node_attempts.order_of(newest), "point": newest}


def _instead(order, run, found):
    """Return {step, point} of the checkpoint to go on from where no member has the newest one.

    Return None where one has it for the others, also beside a newer one of a superseded attempt,
    where one does not answer, or where none has missed it.
    """
    findings = list(found.values())
    if not run.point or not set(run.members) <= set(found):
        return None
    if not any(finding.get("lacks") for finding in findings):
        return None
    if any(finding.get("serves") for finding in findings):
        return None
    points = [p for p in (finding.get("holds") for finding in findings) if _is_sound(order, p)]
    if any(point["digest"] == run.point.get("digest") for point in points):
        return None
    older = [point for point in points if node_attempts.order_of(point) < run.step]
    if not older:
        return {"step": 0, "point": None}
    newest = max(older, key=node_attempts.order_of)
    return {"step": node_attempts.order_of(newest), "point": newest}


def _is_sound(order, point):
    """Return whether a value of a peer describes a checkpoint of this run."""
    if not isinstance(point, dict) or point.get("source") not in orders.nodes_of(order):
        return False
    return not point_check.point_problem(point)


def _decide(planned_ranks, found):
    """Return (the verdict, the ranks that it was decided by)."""
    names = list(dict.fromkeys(rank["node"] for rank in planned_ranks))
    sound = [
        dict(found[name], node=name)
        for name in names
        if isinstance(found.get(name), dict)
        and isinstance(found[name].get("ranks"), list)
        and _can_be_judged(planned_ranks, dict(found[name], node=name))
    ]
    own = {node["node"]: node for node in own_ranks.select(sound, planned_ranks)}
    nodes = []
    for name in names:
        reason = str((found.get(name) or {}).get("unreachable") or SILENT)
        nodes.append(own.get(name) or {"node": name, "unreachable": reason[:LONGEST]})
    ranks = [rank for node in own.values() for rank in node["ranks"]]
    return verdict.decide(planned_ranks, nodes), ranks


def _can_be_judged(planned_ranks, answer):
    """Return whether the code of the verdict reads an answer. A peer may have sent anything."""
    try:
        verdict.decide(planned_ranks, own_ranks.select([answer], planned_ranks))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False
    return True


def _entry_of(value):
    """Return a committed verdict as an attempt of run.json, as far as the policy reads it."""
    rank = {"last_step": value.get("trained") or None, "saved_count": int(bool(value.get("saved")))}
    return {
        "number": value["attempt"],
        "verdict": value["verdict"],
        "ranks": [rank],
        "resume": value.get("resume"),
        "started": True,
        "again": value.get("decision"),
    }


def _delay(decision):
    """Return the seconds before the next attempt.

    The first restart does not wait: its nodes agree that everything has ended.
    """
    delay = decision.get("delay") or 0
    if delay <= restart_policy.FIRST_DELAY_SECONDS:
        return 0.0
    return float(delay)
