# SPDX-License-Identifier: Apache-2.0
"""The choice of the nodes with which a run goes on after one was lost.

Pure. They are the same, spares in the places of lost ones, or fewer. Each node of the run's first
attempt has a place, and the places' order is the rank order: the node that takes a place takes its
ranks. The node that holds a place keeps it as long as it can. A node that failed lately is taken
again only where no other is left, and a line reports that.
"""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_duration


def choose(places, current, failed, unfit, spares, min_nodes, cooldown, now, trainers=()):
    """Return the choice of the nodes for the next attempt of a run.

    It is {nodes, replaced, dropped, again, why, refused}. places: the nodes of the run's first
    attempt in rank order. current: those of its newest attempt. failed: {node: {time, cause}} of
    the nodes that failed (unix seconds). unfit: {node: why it cannot be taken now}. A node that is
    not in it can be taken. spares: names in the inventory's order. min_nodes: with so few the run
    may go on (None: only with every place filled). cooldown: seconds. now: unix seconds. trainers:
    the site's, for the remedies.

    nodes: names in rank order. replaced: {node of the newest attempt: the node that takes its
    place}. dropped: nodes of the newest attempt whose places stay empty. again: nodes that are
    taken although they failed lately. why: lines for people. refused: lines that say why nothing
    can go on, [] where it can.
    """
    choice = _Choice(places, current, failed, unfit, spares, cooldown, now)
    choice.wanted = min(min_nodes or len(places), len(places))
    choice.fill_places()
    if len(choice.nodes()) < choice.wanted:
        return {
            "nodes": [],
            "replaced": {},
            "dropped": [],
            "again": [],
            "why": [],
            "refused": choice.refusal(trainers),
        }
    pairs = list(zip(choice.holders, choice.taken))
    return {
        "nodes": choice.nodes(),
        "replaced": {holder: name for holder, name in pairs if holder and name and name != holder},
        "dropped": [holder for holder, name in pairs if holder and name is None],
        "again": choice.again(),
        "why": choice.why(),
        "refused": [],
    }


def occupants(places, current):
    """Return the node that holds each place in the newest attempt.

    None stands for an empty place. A node of the first attempt holds its own place. A spare holds
    the first one that is empty behind the node that stands before it, since the order of the ranks
    was kept.
    """
    if len(current) == len(places):
        return list(current)
    holders = list(places)
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

    def __init__(self, places, current, failed, unfit, spares, cooldown, now):
        self.places = places
        self.failed = failed
        self.unfit = unfit
        self.spares = spares
        self.cooldown = cooldown
        self.now = now
        self.holders = occupants(places, current)
        # (a controller's clock may have been set back meanwhile)
        self.cooling = {name for name in failed if abs(now - failed[name]["time"]) < cooldown}
        self.taken = [None] * len(places)
        self.wanted = len(places)

    def nodes(self):
        """Return the nodes that were taken, in rank order."""
        return [name for name in self.taken if name]

    def again(self):
        """Return the nodes that were taken although they failed lately."""
        return [name for name in self.nodes() if name in self.cooling]

    def fill_places(self):
        """Fill the places.

        Their holders come first, then their first nodes, spares, and failed nodes.
        """
        for index, holder in enumerate(self.holders):
            self._fill(index, [holder])
        for index, place in enumerate(self.places):
            self._fill(index, [place])
        for index in range(len(self.places)):
            self._fill(index, self.spares)
        while len(self.nodes()) < self.wanted and self._fill_again():
            pass

    def _is_free(self, name):
        """Return whether a node can be taken for a place."""
        return name and name not in self.unfit and name not in self.taken

    def _fill(self, index, names):
        """Give an empty place to the first of these nodes that can be taken."""
        if self.taken[index] is None:
            self.taken[index] = next(
                (name for name in names if self._is_free(name) and name not in self.cooling), None
            )

    def _fill_again(self):
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
            if self.taken[index] is None
            for name in [self.holders[index], self.places[index], *self.spares]
            if self._is_free(name)
        ]
        if not options:
            return False
        name, index = min(options)[2:]
        self.taken[index] = name
        return True

    def reason(self, name):
        """Return the reason why a node is not taken."""
        if name in self.unfit:
            return self.unfit[name]
        if name not in self.cooling:
            return "it is not needed"
        pause = format_duration(self.cooldown)
        return f"it {self._describe_failure(name)}, and is not taken again for {pause}"

    def _describe_failure(self, name):
        """Return the words for a node's last failure."""
        age = format_duration(abs(self.now - self.failed[name]["time"]))
        return f"failed {age} ago ({self.failed[name].get('cause') or 'unknown'})"

    def idle(self):
        """Return lines that say why the spares were not taken that no place has."""
        return [
            f"the spare {name} is not taken: {self.reason(name)}"
            for name in self.spares
            if name not in self.taken and name not in self.holders
        ]

    def why(self):
        """Return the choice in lines for people.

        None where all goes on as it was.
        """
        lines = []
        for holder, place, name in zip(self.holders, self.places, self.taken):
            lines += self._describe_place(holder, place, name)
        lines += [
            f"{name} is taken again although it {self._describe_failure(name)}: nobody else is left"
            " for its place; it is proven first, like the others"
            for name in self.again()
        ]
        count = len(self.nodes())
        before = len([holder for holder in self.holders if holder])
        if count < before:
            lines += self.idle()
        if count != before:
            lines.append(
                f"the run goes on with {count} of its {len(self.places)} nodes instead of {before}:"
                f" a step sees {count}/{before} of the images it saw; for batch and learning rate"
                " see below"
            )
        return lines

    def _describe_place(self, holder, place, name):
        """Return the lines about one place.

        None where its holder keeps it.
        """
        if holder and name is None:
            lines = [f"{holder} is left out: {self.reason(holder)}"]
            if place != holder:
                lines.append(f"{place} does not get its place back: {self.reason(place)}")
            return lines
        if name == place and holder is None:
            return [f"{name} has its place back"]
        if name and name != holder:
            lost = holder or place
            return [f"{name} takes the place of {lost}: {self.reason(lost)}"]
        return []

    def refusal(self, trainers):
        """Return the lines that say why a run cannot go on, and what can be done."""
        nodes = self.nodes()
        pairs = zip(self.holders, self.places)
        lost = dict.fromkeys(name for pair in pairs for name in pair if name and name not in nodes)
        count = f"{self.wanted} nodes"
        if self.wanted == 1:
            count = "1 node"
        lines = [f"the run needs {count}, and of them can be had: {', '.join(nodes) or 'none'}"]
        lines += [f"{name} is lost: {self.reason(name)}" for name in lost]
        lines += self.idle()
        if not self.spares:
            lines.append("the inventory has no spare")
        spare = "list a machine in the inventory's group spares"
        others = [name for name in trainers if name not in self.places and name not in self.spares]
        if others:
            spare += f", such as {others[0]}, which this run does not use"
        remedies = [f"bring {' or '.join(lost)} back", spare]
        if nodes:
            remedies.append(f"go on with fewer: -e min_nodes={len(nodes)}, or min_nodes in the job")
        lines.append(f"remedy: {'; or '.join(remedies)} (docs/runbooks/spares.md)")
        return lines
