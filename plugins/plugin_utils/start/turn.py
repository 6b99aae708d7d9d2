# SPDX-License-Identifier: Apache-2.0
"""The turn of a start that waits, and the words about it. Pure.

plugins/module_utils/attempts/tickets.py says why no two starts block each other for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, TypedDict

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import tickets
from ansible_collections.trainyard.cluster.plugins.module_utils.base import units
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable

# An older look says nothing of a node.
FRESH_SECONDS = 30.0
# So many nodes a line names.
MOST_NODES = 5
_PLURAL = {"is": "are", "gives": "give"}


class Look(TypedDict):
    """The newest look at a node.

    held, tickets: as library/start_ticket.py returns them. at: seconds on the controller's clock.
    problem: why there is no answer, or ''. answered: whether the node ever gave one.
    """

    held: list[dict[str, Any]]
    tickets: list[dict[str, Any]]
    at: float
    problem: str
    answered: bool


Looks = Mapping[str, Look]


def is_turn(looks: Looks, ticket_id: str, now: float) -> bool:
    """Return whether all nodes are free and the ticket is the first one on each of them."""
    return all(
        not look["problem"]
        and now - look["at"] <= FRESH_SECONDS
        and not look["held"]
        and [item["id"] for item in look["tickets"][:1]] == [ticket_id]
        for look in looks.values()
    )


def is_free(looks: Looks) -> bool:
    """Return whether no node is held and no ticket lies there, for a start without a ticket."""
    return not any(look["problem"] or look["held"] or look["tickets"] for look in looks.values())


def never_answered(looks: Looks) -> list[str]:
    """Return the nodes that have given no answer yet but a failure."""
    return [name for name, look in looks.items() if look["problem"] and not look["answered"]]


def place_of(looks: Looks, ticket_id: str) -> tuple[int, int]:
    """Return (place, number of starts) among those that wait for any of the nodes."""
    place, number = tickets.place_of([look["tickets"] for look in looks.values()], ticket_id)
    return int(place), int(number)


def describe(looks: Looks, ticket_id: str) -> str:
    """Return what holds the nodes, and the place of the ticket. It is safe to show."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, look in looks.items():
        for reason in _reasons(look, ticket_id):
            found.setdefault(reason, []).append(name)
    parts = []
    for (verb, rest), names in found.items():
        if len(names) > 1:
            verb = _PLURAL[verb]
        more = "" if len(names) <= MOST_NODES else f" and {len(names) - MOST_NODES} more"
        parts.append(f"{', '.join(names[:MOST_NODES])}{more} {verb} {rest}")
    place, number = place_of(looks, ticket_id)
    return printable("; ".join([*parts, f"place {place} of {number}"]), limit=2000)


def describe_left(seconds: float | None) -> str:
    """Return the rest of the wait as words, '' without a limit."""
    if seconds is None:
        return ""
    return f"; at most {units.format_clock(seconds)}"


def _reasons(look: Look, ticket_id: str) -> list[tuple[str, str]]:
    """Return what a start waits for on a node, as verbs with the rest of a sentence."""
    if look["problem"]:
        return [("gives", f"no answer ({look['problem']})")]
    reasons = [
        ("is", f"held by {item['description']} ({item['state']}){_describe_start(item)}")
        for item in look["held"]
    ]
    if not reasons:
        for ticket in tickets.before(look["tickets"], ticket_id)[:1]:
            owner = f" of {ticket['by']}" if ticket["by"] else ""
            turn = "has its turn" if ticket["turn"] else "waits for its turn"
            reasons.append(("is", f"free, and {ticket['run']}{owner} comes first and {turn}"))
    return reasons


def _describe_start(item: Mapping[str, Any]) -> str:
    """Return since when and by whom a node is held. The age would make each line a new one."""
    text = ""
    if item.get("since") is not None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(item["since"]))
        text = f", started {stamp} UTC"
    if item.get("by"):
        text += f" by {item['by']}"
    return text
