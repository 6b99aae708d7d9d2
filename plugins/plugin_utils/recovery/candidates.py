# SPDX-License-Identifier: Apache-2.0
"""The nodes of a site that could take part in the next attempt of a run.

It is judged by the answer of every node to node_owner_info. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..config import spares
from . import node_replacement
from .node_replacement import Failure, Obstacle

# Answers of the nodes by name. One that did not answer has `unreachable`.
Answers = Mapping[str, Mapping[str, Any]]


def silent_nodes(looks: Answers, nodes: Iterable[str]) -> dict[str, str]:
    """Return {node: 'unreachable'} of the attempt's nodes that do not answer.

    Where no node of the site answers, it may be the controller that is cut off: then it is {}.
    """
    quiet = [name for name, look in looks.items() if look.get("unreachable")]
    if len(quiet) == len(looks):
        return {}
    return {name: "unreachable" for name in nodes if name in quiet}


def find_obstacles(names: Iterable[str], arguments: Mapping[str, Any]) -> dict[str, Obstacle]:
    """Return the Obstacle of each node that cannot take part now.

    names: the nodes that are judged. arguments: {run_id, nodes (of the newest attempt), site, job,
    looks {node: what library/node_owner_info.py returned there, or how that failed}}.
    """
    known = {
        node["name"]: node for node in arguments["site"]["nodes"] + arguments["site"]["spares"]
    }
    example = next((known[name] for name in arguments["nodes"] if name in known), None)
    result = {}
    for name in names:
        obstacle = _find_obstacle(arguments["looks"].get(name), arguments["run_id"])
        if name not in known:
            obstacle = Obstacle("replacement.inventory", "it is no longer in the inventory")
        elif not obstacle and example:
            difference = spares.replacement_problem(arguments["job"], known[name], example)
            if difference:
                obstacle = Obstacle("replacement.unlike", difference)
        if obstacle:
            result[name] = obstacle
    return result


def _find_obstacle(look: Mapping[str, Any] | None, run_id: str) -> Obstacle | None:
    """Return the reason why a node cannot take part by its own answer, or None."""
    if look is None:
        return Obstacle("replacement.not_asked", "it was not asked (--limit)")
    if "held" in look and not _is_held_list(look["held"]):
        look = {"msg": "its answer is not valid"}
    if look.get("unreachable"):
        return Obstacle("replacement.no_answer", f"it does not answer{_quote(look)}")
    if "held" not in look:
        text = f"it cannot say whether it is free{_quote(look)}"
        return Obstacle("replacement.invalid_answer", text)
    for item in look["held"] or ():
        if not (item.get("mine") and item.get("run") == run_id):
            holder = item.get("run") or item.get("unit")
            text = f"it is held by {holder} of the user {item.get('user')}"
            return Obstacle("replacement.node_held", text)
    return None


def _is_held_list(value: Any) -> bool:
    """Return whether a value can be what holds a node."""
    return value is None or (
        isinstance(value, list) and all(isinstance(item, dict) for item in value)
    )


def _quote(look: Mapping[str, Any]) -> str:
    """Return the end of a sentence with a node's message, '' for none.

    It is the last line of the message.
    """
    lines = str(look.get("msg") or "").strip().splitlines()
    if not lines:
        return ""
    return f": {lines[-1].rpartition('via ssh: ')[2].strip()[:200]}"


def choose(
    arguments: Mapping[str, Any], failed: Mapping[str, Failure], now: float
) -> dict[str, Any]:
    """Return the NodeChoice, with `places`.

    Spares are the group's. Where a place's node is no longer in the inventory, also the trainers
    that the run does not use are spares. arguments: as `find_obstacles` has it, with places and
    cooldown_minutes. failed: failed_nodes.read's. now: unix seconds.
    """
    site, current = arguments["site"], arguments["nodes"]
    places = arguments["job"].get("places") or arguments["places"] or current
    trainers = [node["name"] for node in site["nodes"]]
    candidates = [node["name"] for node in site["spares"]]
    if any(name not in trainers + candidates for name in places):
        # a node that was taken out of the inventory was replaced there
        candidates += [name for name in trainers if name not in places]
    names = list(dict.fromkeys(current + places + candidates))
    choice = node_replacement.choose(
        places,
        current,
        failed,
        find_obstacles(names, arguments),
        candidates,
        arguments["job"].get("min_nodes"),
        60.0 * arguments["cooldown_minutes"],
        now,
        trainers,
    )
    return dict(choice, places=places)
