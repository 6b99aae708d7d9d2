# SPDX-License-Identifier: Apache-2.0
"""Which nodes a run goes on with after one was lost: the same, spares in the places of lost ones,
or fewer. Pure, controller only.

Each node of the run's first attempt has a place, and the places' order is the rank order; whoever
takes a place takes its ranks. Who holds a place keeps it while he can. A node that failed lately is
taken again only where nobody else is left, and that is said.
"""

from __future__ import annotations


def choose(places, current, failed, unfit, spares, min_nodes, cooldown, now, trainers=()):
    """Return {nodes, replaced, dropped, again, why, refused} for the next attempt of a run.

    places: the nodes of the run's first attempt in rank order. current: those of its newest
    attempt. failed: {node: {time, cause}}: who failed and when (unix seconds). unfit: {node: why it
    cannot be taken now}; a node that is not in it can be taken. spares: names in the inventory's
    order. min_nodes: with so few the run may go on (None: only with every place filled). cooldown:
    seconds. trainers: the site's, for the remedies. nodes: names in rank order. replaced: {node of
    the newest attempt: who takes its place}. dropped: nodes of the newest attempt whose places stay
    empty. again: nodes that are taken although they failed lately. why: lines for people. refused:
    lines that say why nothing can go on, [] where it can.
    """
    chosen = _Choice(places, current, failed, unfit, spares, cooldown, now)
    chosen.wanted = min(min_nodes or len(places), len(places))
    for index, holder in enumerate(chosen.holders):
        chosen.fill(index, [holder])
    for index, place in enumerate(places):
        chosen.fill(index, [place])
    for index in range(len(places)):
        chosen.fill(index, spares)
    while len(chosen.nodes()) < chosen.wanted and chosen.fill_again():
        pass
    if len(chosen.nodes()) < chosen.wanted:
        return {
            "nodes": [],
            "replaced": {},
            "dropped": [],
            "again": [],
            "why": [],
            "refused": chosen.refusal(trainers),
        }
    pairs = list(zip(chosen.holders, chosen.taken))
    return {
        "nodes": chosen.nodes(),
        "replaced": {holder: name for holder, name in pairs if holder and name and name != holder},
        "dropped": [holder for holder, name in pairs if holder and name is None],
        "again": chosen.again(),
        "why": chosen.why(),
        "refused": [],
    }


def occupants(places, current):
    """Return who holds each place in the newest attempt, None where nobody does.

    A node of the first attempt holds its own place; a spare the first one that is empty behind
    whoever stands before it, since the order of the ranks was kept.
    """
    if len(current) == len(places):
        return list(current)
    holders = [name if name in current else None for name in places]
    for position, name in enumerate(current):
        if name not in holders:
            begin = (
                max(
                    [holders.index(other) for other in current[:position] if other in holders],
                    default=-1,
                )
                + 1
            )
            empty = [index for index in range(begin, len(places)) if holders[index] is None]
            if empty:
                holders[empty[0]] = name
    return holders


class _Choice:
    def __init__(self, places, current, failed, unfit, spares, cooldown, now):
        self.places, self.failed, self.unfit, self.spares, self.cooldown, self.now = (
            places,
            failed,
            unfit,
            spares,
            cooldown,
            now,
        )
        self.holders = occupants(places, current)
        # (a controller's clock may have been set back meanwhile)
        self.cooling = {name for name in failed if abs(now - failed[name]["time"]) < cooldown}
        self.taken = [None] * len(places)
        self.wanted = len(places)

    def nodes(self):
        return [name for name in self.taken if name]

    def again(self):
        return [name for name in self.nodes() if name in self.cooling]

    def _free(self, name):
        return name and name not in self.unfit and name not in self.taken

    def fill(self, index, names):
        """Give a place that is empty still to the first of these nodes that can be taken."""
        if self.taken[index] is None:
            self.taken[index] = next(
                (name for name in names if self._free(name) and name not in self.cooling), None
            )

    def fill_again(self):
        """Give one empty place to the node whose failure is the longest ago, its own before
        another's; return whether there was any.
        """
        ways = [
            (
                self.failed[name]["time"],
                name not in (self.holders[index], self.places[index]),
                name,
                index,
            )
            for index in range(len(self.places))
            if self.taken[index] is None
            for name in [self.holders[index], self.places[index], *self.spares]
            if self._free(name)
        ]
        for _time, _strange, name, index in sorted(ways)[:1]:
            self.taken[index] = name
        return bool(ways)

    def reason(self, name):
        """Say why a node is not taken."""
        if name in self.unfit:
            return self.unfit[name]
        if name not in self.cooling:
            return "it is not needed"
        return f"it {self._failure(name)}, and is not taken again for {span(self.cooldown)}"

    def _failure(self, name):
        return "failed {} ago ({})".format(
            span(abs(self.now - self.failed[name]["time"])),
            self.failed[name].get("cause") or "unknown",
        )

    def idle(self):
        """Yield why the spares that nobody took were not taken."""
        for name in [
            name for name in self.spares if name not in self.taken and name not in self.holders
        ]:
            yield f"the spare {name} is not taken: {self.reason(name)}"

    def why(self):
        """Return the choice in lines for people; none where all goes on as it was."""
        lines, nodes = [], self.nodes()
        for holder, place, name in zip(self.holders, self.places, self.taken):
            if holder and name is None:
                lines.append(f"{holder} is left out: {self.reason(holder)}")
                lines += (
                    [f"{place} does not get its place back: {self.reason(place)}"]
                    if place != holder
                    else []
                )
            elif name == place and holder is None:
                lines.append(f"{name} has its place back")
            elif name and name != holder:
                lines.append(
                    f"{name} takes the place of {holder or place}: {self.reason(holder or place)}"
                )
        text = (
            "%s is taken again although it %s: nobody else is left for its place; it is proven"
            " first, like the others"
        )
        lines += [text % (name, self._failure(name)) for name in self.again()]
        before = len([holder for holder in self.holders if holder])
        if len(nodes) < before:
            lines += self.idle()
        if len(nodes) != before:
            text = (
                "the run goes on with %d of its %d nodes instead of %d: a step sees %d/%d of the"
                " images it saw; for batch and learning rate see below"
            )
            lines.append(text % (len(nodes), len(self.places), before, len(nodes), before))
        return lines

    def refusal(self, trainers):
        """Return the lines that say why a run cannot go on, and what can be done."""
        nodes = self.nodes()
        lost = [
            name
            for pair in zip(self.holders, self.places)
            for name in pair
            if name and name not in nodes
        ]
        lost = list(dict.fromkeys(lost))
        count = "%d node%s" % (self.wanted, "" if self.wanted == 1 else "s")
        lines = [
            "the run needs {}, and of them can be had: {}".format(count, ", ".join(nodes) or "none")
        ]
        lines += [f"{name} is lost: {self.reason(name)}" for name in lost] + list(self.idle())
        lines += [] if self.spares else ["the inventory has no spare"]
        others = [name for name in trainers if name not in self.places and name not in self.spares]
        more = f", such as {others[0]}, which this run does not use" if others else ""
        remedies = [
            "bring {} back".format(" or ".join(lost)),
            f"list a machine in the inventory's group spares{more}",
        ]
        if nodes:
            remedies.append(
                "go on with fewer: -e min_nodes=%d, or min_nodes in the job" % len(nodes)
            )
        return lines + ["remedy: {} (docs/runbooks/spares.md)".format("; or ".join(remedies))]


def span(seconds):
    """Return seconds as people say them."""
    seconds = int(seconds)
    return (
        "%d s" % seconds
        if seconds < 120
        else "%d min" % (seconds // 60)
        if seconds < 7200
        else "%d h" % (seconds // 3600)
    )
