# SPDX-License-Identifier: Apache-2.0
"""Attempts and nodes that a stop is about, from the nodes' answers and the controller's record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Status = Mapping[str, Any]
# (run, number, nodes)
Attempt = tuple[str, int, list[str]]


class StopTarget(NamedTuple):
    """The subject of a stop.

    number: of the newest attempt that a node or the controller knows, 1 without a run. members: the
    nodes on which something of the run can be. also: further attempts to stop; one that has not
    started yet gets a note that prevents its start.
    """

    number: int
    members: list[str]
    also: list[Attempt]


def choose_stop_target(
    run: str,
    site: Sequence[str],
    record: Mapping[str, Any],
    statuses: Iterable[Status],
    choice: Mapping[str, Any],
    owners: Sequence[Attempt],
) -> StopTarget:
    """Return what has to be stopped, on every node where it can be.

    run: the id of the named run, or ''. site: names of trainers and spares. record: as run_info
    returned it. statuses: the nodes' answers about the run. choice: of run_choice.choose. owners:
    the attempts that own a node now.
    """
    if not run:
        running = {attempt[0] for attempt in owners}
        waiting = [attempt for attempt in record.get("waiting", ()) if attempt[0] not in running]
        return StopTarget(1, list(site), [*owners, *waiting])
    recorded = record if record.get("known") else {}
    number = max(1, recorded.get("number", 0), choice.get("number", 1))
    names = dict.fromkeys(
        [*recorded.get("nodes", ()), *choice.get("nodes", ()), *choice.get("claimed", ())]
    )
    members = [name for name in names if name in site]
    also: list[Attempt] = [(run, number, members)]
    if may_wait_for_restart(choice.get("run"), statuses):
        # A manual resume uses another directory.
        also.append((run, max(number + 1, choice.get("next", 1)), members))
    return StopTarget(number, members, also)


def may_wait_for_restart(run: str | None, statuses: Iterable[Status]) -> bool:
    """Return whether the run's attempt has ended everywhere, and not well on every node."""
    if not run:
        return False
    states = [status for status in statuses if status.get("found") and status.get("run") == run]
    has_ended = all(status.get("ended") for status in states)
    return has_ended and any(status.get("state") != "completed" for status in states)


def has_traces(statuses: Iterable[Status]) -> bool:
    """Return whether a node that knows no run still has processes of it, or a stop's note."""
    return any(
        status.get("processes") or status.get("stopped")
        for status in statuses
        if not status.get("found")
    )
