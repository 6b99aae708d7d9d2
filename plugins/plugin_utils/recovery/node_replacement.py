# SPDX-License-Identifier: Apache-2.0
"""The choice of the nodes with which a run goes on after one was lost.

Pure. They are the same, spares in the places of lost ones, or fewer. Each node of the run's first
attempt has a place, and the places' order is the rank order: the node that takes a place takes its
ranks. The node that holds a place keeps it as long as it can. A node that failed lately is taken
again only where no other is left, and a line reports that.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_duration

# An entry of failed_nodes.read: {time, cause, run}.
Failure = Mapping[str, Any]


class Obstacle(typing.NamedTuple):
    """The reason why a node cannot take part: a message code and a clause about the node."""

    code: str
    text: str


class _Line(typing.NamedTuple):
    """A line for people about the choice, with its message code."""

    code: str
    text: str


class NodeChoice(typing.TypedDict):
    """The nodes of the next attempt of a run."""

    nodes: list[str]  # names in rank order
    replaced: dict[str, str]  # node of the newest attempt: the node that takes its place
    dropped: list[str]  # nodes of the newest attempt whose places stay empty
    again: list[str]  # nodes that are taken although they failed lately
    why: list[str]  # lines for people
    refused: list[str]  # lines that say why nothing can go on, [] where it can
    codes: list[str]  # the message code of each line of `why`, or of `refused`


def choose(
    places: Sequence[str],
    current: Sequence[str],
    failed: Mapping[str, Failure],
    unfit: Mapping[str, Obstacle],
    spares: Sequence[str],
    min_nodes: int | None,
    cooldown: float,
    now: float,
    trainers: Iterable[str] = (),
) -> NodeChoice:
    """Return the choice of the nodes for the next attempt of a run.

    places: the nodes of the run's first attempt in rank order. current: those of its newest
    attempt. failed: the nodes that failed (unix seconds). unfit: the nodes that cannot be taken
    now. spares: names in the inventory's order. min_nodes: with so few the run may go on (None:
    only with every place filled). cooldown: seconds. now: unix seconds. trainers: the site's, for
    the remedies.
    """
    choice = _Choice(places, current, failed, unfit, spares, cooldown, now)
    choice.minimum = min(min_nodes or len(places), len(places))
    choice.fill_places()
    if len(choice.nodes()) < choice.minimum:
        refusal = choice.refusal(trainers)
        return {
            "nodes": [],
            "replaced": {},
            "dropped": [],
            "again": [],
            "why": [],
            "refused": [line.text for line in refusal],
            "codes": [line.code for line in refusal],
        }
    pairs = list(zip(choice.holders, choice.chosen))
    lines = choice.lines()
    return {
        "nodes": choice.nodes(),
        "replaced": {holder: name for holder, name in pairs if holder and name and name != holder},
        "dropped": [holder for holder, name in pairs if holder and name is None],
        "again": choice.failed_again(),
        "why": [line.text for line in lines],
        "refused": [],
        "codes": [line.code for line in lines],
    }


def occupants(places: Sequence[str], current: Sequence[str]) -> list[str | None]:
    """Return the node that holds each place in the newest attempt.

    None stands for an empty place. A node of the first attempt holds its own place. A spare holds
    the first one that is empty behind the node that stands before it, since the order of the ranks
    was kept.
    """
    if len(current) == len(places):
        return list(current)
    holders: list[str | None] = list(places)
    for index, name in enumerate(places):
        if name not in current:
            holders[index] = None
    for position, name in enumerate(current):
        if name not in holders:
            before = [holders.index(other) for other in current[:position] if other in holders]
            begin = max(before, default=-1) + 1
            empty = [index for index in range(begin, len(places)) if holders[index] is None]
            if empty:
                holders[empty[0]] = name
    return holders


class _Choice:
    """The places of a run, and the nodes that take them."""

    def __init__(
        self,
        places: Sequence[str],
        current: Sequence[str],
        failed: Mapping[str, Failure],
        unfit: Mapping[str, Obstacle],
        spares: Sequence[str],
        cooldown: float,
        now: float,
    ) -> None:
        self.places = places
        self.failed = failed
        self.unfit = unfit
        self.spares = spares
        self.cooldown = cooldown
        self.now = now
        self.holders = occupants(places, current)
        # (a controller's clock may have been set back meanwhile)
        self.cooling = {name for name in failed if abs(now - failed[name]["time"]) < cooldown}
        self.chosen: list[str | None] = [None] * len(places)
        self.minimum = len(places)

    def nodes(self) -> list[str]:
        """Return the nodes that were chosen, in rank order."""
        return [name for name in self.chosen if name]

    def failed_again(self) -> list[str]:
        """Return the nodes that were chosen although they failed lately."""
        return [name for name in self.nodes() if name in self.cooling]

    def fill_places(self) -> None:
        """Fill the places.

        Their holders come first, then their first nodes, spares, and failed nodes.
        """
        for index, holder in enumerate(self.holders):
            self._fill(index, [holder])
        for index, place in enumerate(self.places):
            self._fill(index, [place])
        for index in range(len(self.places)):
            self._fill(index, self.spares)
        while len(self.nodes()) < self.minimum and self._fill_with_failed():
            pass

    def _is_free(self, name: str | None) -> bool:
        """Return whether a node can be taken for a place."""
        return bool(name) and name not in self.unfit and name not in self.chosen

    def _fill(self, index: int, names: Iterable[str | None]) -> None:
        """Give an empty place to the first of these nodes that can be taken."""
        if self.chosen[index] is None:
            self.chosen[index] = next(
                (name for name in names if self._is_free(name) and name not in self.cooling), None
            )

    def _fill_with_failed(self) -> bool:
        """Give one empty place to the node whose failure is the longest ago.

        A place's own node comes before another one. Return whether there was any.
        """
        options = [
            (
                self.failed[name]["time"],
                name not in (self.holders[index], self.places[index]),
                name,
                index,
            )
            for index in range(len(self.places))
            if self.chosen[index] is None
            for name in [self.holders[index], self.places[index], *self.spares]
            if name and self._is_free(name)
        ]
        if not options:
            return False
        name, index = min(options)[2:]
        self.chosen[index] = name
        return True

    def obstacle(self, name: str) -> Obstacle:
        """Return the reason why a node is not taken."""
        if name in self.unfit:
            return self.unfit[name]
        if name not in self.cooling:
            return Obstacle("replacement.not_needed", "it is not needed")
        rest = format_duration(self.cooldown)
        text = f"it {self._describe_failure(name)}, and is not taken again for {rest}"
        return Obstacle("replacement.cooling_down", text)

    def _describe_failure(self, name: str) -> str:
        """Return the predicate about a node's last failure."""
        age = format_duration(abs(self.now - self.failed[name]["time"]))
        return f"failed {age} ago ({self.failed[name].get('cause') or 'unknown'})"

    def _idle_lines(self) -> list[_Line]:
        """Return one line per spare that was not taken and holds no place."""
        obstacles = {
            name: self.obstacle(name)
            for name in self.spares
            if name not in self.chosen and name not in self.holders
        }
        return [
            _Line(code, f"the spare {name} is not taken: {text}")
            for name, (code, text) in obstacles.items()
        ]

    def lines(self) -> list[_Line]:
        """Return the choice in lines for people, [] where all goes on as it was."""
        lines = []
        for holder, place, name in zip(self.holders, self.places, self.chosen):
            lines += self._place_lines(holder, place, name)
        lines += [
            _Line(
                "replacement.failed_again",
                f"{name} is taken again although it {self._describe_failure(name)}: no other node"
                " is left for its place; it is checked first, like the others",
            )
            for name in self.failed_again()
        ]
        count = len(self.nodes())
        before = len([holder for holder in self.holders if holder])
        if count < before:
            lines += self._idle_lines()
        if count != before:
            text = (
                f"the run goes on with {count} of its {len(self.places)} nodes instead of {before}:"
                f" a step sees {count}/{before} of the images it saw; for batch and learning rate"
                " see below"
            )
            lines.append(_Line("replacement.fewer_nodes", text))
        return lines

    def _place_lines(self, holder: str | None, place: str, name: str | None) -> list[_Line]:
        """Return the lines about one place, [] where its holder keeps it."""
        if holder and name is None:
            text = f"{holder} is left out: {self.obstacle(holder).text}"
            lines = [_Line("replacement.left_out", text)]
            if place != holder:
                code, text = self.obstacle(place)
                lines.append(_Line(code, f"{place} does not get its place back: {text}"))
            return lines
        if name == place and holder is None:
            return [_Line("replacement.place_returned", f"{name} has its place back")]
        if name and name != holder:
            lost = holder or place
            text = f"{name} takes the place of {lost}: {self.obstacle(lost).text}"
            return [_Line("replacement.place_taken", text)]
        return []

    def refusal(self, trainers: Iterable[str]) -> list[_Line]:
        """Return the lines that say why a run cannot go on, and what can be done."""
        nodes = self.nodes()
        pairs = zip(self.holders, self.places)
        lost = list(
            dict.fromkeys(name for pair in pairs for name in pair if name and name not in nodes)
        )
        count = f"{self.minimum} nodes"
        if self.minimum == 1:
            count = "1 node"
        text = f"the run needs {count}, and of them are available: {', '.join(nodes) or 'none'}"
        lines = [_Line("replacement.too_few_nodes", text)]
        for name in lost:
            code, text = self.obstacle(name)
            lines.append(_Line(code, f"{name} is lost: {text}"))
        lines += self._idle_lines()
        if not self.spares:
            lines.append(_Line("replacement.too_few_nodes", "the inventory has no spare"))
        spare = "list a machine in the inventory's group spares"
        others = [name for name in trainers if name not in self.places and name not in self.spares]
        if others:
            spare += f", such as {others[0]}, which this run does not use"
        remedies = [f"bring {' or '.join(lost)} back", spare]
        if nodes:
            remedies.append(f"go on with fewer: -e min_nodes={len(nodes)}, or min_nodes in the job")
        text = f"remedy: {'; or '.join(remedies)} (docs/runbooks/spares.md)"
        return [*lines, _Line("replacement.too_few_nodes", text)]
