# SPDX-License-Identifier: Apache-2.0
"""What is known of a run from looking at it again and again: pace, loss so far, time left, who
lags. Pure, controller only.

Statuses are what library/attempt_status.py returns. Times of one node are compared with each other
only; `seconds` are the controller's own.
"""

from __future__ import annotations

import collections
import functools
import statistics

from ..base.sanitize import printable
from ..base.text_layout import Samples

# What is read of a status and of its ranks; the rest is not carried along for every node.
KEEP = frozenset(
    [
        "found",
        "run",
        "attempt",
        "node",
        "ranks",
        "job",
        "state",
        "ended",
        "started",
        "now",
        "exit",
        "nodes",
        "epochs",
        "first_step",
        "unit_of_speed",
    ]
) | frozenset(
    ["accelerator", "ranks_in_all", "only_first_prints", "main_figure", "disk", "lost", "guard"]
)
KEEP_OF_RANK = (
    "rank",
    "state",
    "exit_code",
    "signal",
    "step",
    "evaluation",
    "nan",
    "log_time",
    "fraction",
)
# Nodes are asked every few seconds; ssh itself gives up after about 14 s (ansible.cfg).
ANSWER_SECONDS = 20
_NO_FIGURE = frozenset(
    ("line", "epoch", "step", "global_step", "samples", "fps", "best_of", "best_epoch")
)


def number(value):
    """Return value as a float, or None for what is no number (a log's text that only looks like
    one).
    """
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@functools.lru_cache(maxsize=8192)
def _shown(text, secrets):
    return printable(text, *secrets, limit=200)


def _safe(value, secrets):
    """`printable_data` for what comes again with every look."""
    if isinstance(value, str):
        return _shown(value, secrets)
    if isinstance(value, dict):
        return {_safe(key, secrets): _safe(item, secrets) for key, item in value.items()}
    return [_safe(item, secrets) for item in value] if isinstance(value, list) else value


def kept(status, secrets=((), ())):
    """Return what the live view needs of a status, its texts safe to show. secrets: (names, values)
    that display.printable masks.
    """
    found = {
        key: _safe(value, secrets)
        for key, value in status.items()
        if key in KEEP and key != "ranks"
    }
    found["ranks"] = [
        {key: _safe(rank[key], secrets) for key in KEEP_OF_RANK if key in rank}
        for rank in status.get("ranks", ())
    ]
    return found


class Pace:
    """When a rank's log showed a new step, by its node's clock."""

    def __init__(self):
        self.key, self.place, self.jump, self.changed, self.gaps = (
            None,
            None,
            0,
            None,
            collections.deque(maxlen=15),
        )

    def see(self, step, now, written):
        """Take a step record; return whether it is new. written: when the log was last written, or
        None.
        """
        key = tuple(step.get(name) for name in ("epoch", "step", "global_step"))
        if key == self.key:
            return False
        place = _place(step)
        if self.key is None:
            self.changed = min(now, written or now)
        else:
            self.gaps.append(now - self.changed)
            self.changed, self.jump = now, max(0, (place or 0) - (self.place or 0))
        self.key, self.place = key, place
        return True

    def usual(self):
        """The usual time between two looks that saw a new step, or None before there were three."""
        return statistics.median(self.gaps) if len(self.gaps) >= 3 else None


def place_words(step, epochs=None, first=None):
    """Return where a step record is, as words for people, who count from 1: ['epoch 1/3', 'step
    3/8']; only what the log says.

    first: what the suite counts epochs and steps from, such as {epoch: 0, step: 0}.
    """
    words, first = [], first or {}
    if step.get("epoch") is not None:
        total = step.get("epochs") or epochs
        words.append(
            "epoch {}{}".format(
                step["epoch"] + 1 - first.get("epoch", 1), f"/{total}" if total else ""
            )
        )
    if step.get("step") is not None:
        words.append(
            "step {}{}".format(
                step["step"] + 1 - first.get("step", 1),
                "/{}".format(step["steps"]) if step.get("steps") else "",
            )
        )
    elif step.get("global_step") is not None:
        words.append(
            "step {}{}".format(
                step["global_step"],
                "/{}".format(step["total_steps"]) if step.get("total_steps") else "",
            )
        )
    return words


def _place(step):
    """Steps counted over epochs, as far as the line says."""
    if step.get("global_step") is not None:
        return step["global_step"]
    if step.get("step") is None:
        return step.get("epoch")
    return (step.get("epoch") or 0) * (step.get("steps") or 0) + step["step"]


class Watch:
    """One run as its nodes told of it, from the first look to the last."""

    def __init__(self):
        self.run, self.secrets, self.nodes = None, ((), ()), {}
        self._begin()

    def _begin(self):
        # a node that knows no run may have been asked first
        self.nodes = {
            name: node for name, node in self.nodes.items() if not node["status"].get("found")
        }
        self.paces, self.losses, self.lead = {}, Samples(), None
        self._known = self._ranks = self._patience = None
        self.evaluation = self.nan = self._first_fraction = None

    def add(self, name, status, seconds, clock=None):
        """Take what a node said, and return whether it is of the newest attempt: a node whose place
        another one took knows older ones only.

        seconds: a clock that only goes forward; clock: the controller's time of day, to hold the
        node's against.
        """
        name = _shown(name, self.secrets)
        status = dict(kept(status, self.secrets), node=name)
        if status.get("found"):
            asked = (status["run"], status.get("attempt") or 0)
            if self.run and asked < self.run:
                return False
            if asked != self.run:
                self.run = asked
                self._begin()
            for rank in status["ranks"]:
                self._rank(name, status, rank)
        ahead = (
            status["now"] - clock
            if clock is not None and status.get("now") and not status.get("ended")
            else None
        )
        self._known = self._ranks = self._patience = None
        gap = seconds - self.nodes[name]["heard"] if name in self.nodes else 0
        self.nodes[name] = {
            "name": name,
            "status": status,
            "heard": seconds,
            "gap": gap,
            "unreachable": False,
            "ahead": ahead,
        }
        return True

    def lose(self, name):
        """Note that a node could not be asked."""
        name = _shown(name, self.secrets)
        if name in self.nodes:
            self.nodes[name]["unreachable"] = True

    def _rank(self, name, status, rank):
        if rank.get("evaluation") and (
            self.evaluation is None or rank["rank"] <= self.evaluation["rank"]
        ):
            self.evaluation = {"rank": rank["rank"], "figures": rank["evaluation"]}
            self.evaluation.update(main=status.get("main_figure"), first=status.get("first_step"))
        if rank.get("nan") and self.nan is None:
            at = place_words(rank["nan"], status.get("epochs"), status.get("first_step")) or [
                "a step"
            ]
            self.nan = {
                "at": " ".join(at),
                "loss": str(rank["nan"].get("loss", "nan")).rstrip("x"),
                "rank": rank["rank"],
                "node": name,
            }
        step = rank.get("step")
        if not step:
            return
        new = self.paces.setdefault(rank["rank"], Pace()).see(
            step, status["now"], rank.get("log_time")
        )
        if self.lead is None or rank["rank"] < self.lead:
            self.lead, self.losses, self._first_fraction, new = rank["rank"], Samples(), None, True
        if rank["rank"] == self.lead and new:
            if "loss" in step:
                self.losses.add(number(step["loss"]))
            if rank.get("fraction") is not None and self._first_fraction is None:
                self._first_fraction = (self.paces[self.lead].changed, rank["fraction"])

    # --- what can be said now

    def status(self, name):
        """What a node said last."""
        return self.nodes[_shown(name, self.secrets)]["status"]

    def known(self):
        """The statuses of the nodes that know the run, in the run's order."""
        if self._known is None:
            found = {
                name: node["status"]
                for name, node in self.nodes.items()
                if node["status"].get("found")
            }
            order = dict.fromkeys(
                [*next((status["nodes"] for status in found.values()), []), *found]
            )
            self._known = [found[name] for name in order if name in found]
        return self._known

    def order(self):
        """The names of the nodes to show: the run's, else those that were asked."""
        known = self.known()
        return list(known[0]["nodes"]) if known else sorted(self.nodes)

    def silent(self, name, seconds):
        """For how long a node has not answered: 0 for one that has lately, or that needs to say no
        more.
        """
        node = self.nodes[name]
        since = 0 if node["status"].get("ended") or node["unreachable"] else seconds - node["heard"]
        if self._patience is None:  # a site may ask its nodes less often
            self._patience = max(
                ANSWER_SECONDS, *(3 * other["gap"] for other in self.nodes.values())
            )
        return since if since > self._patience else 0

    def ranks(self):
        """[(node's name, its status, rank)] of all nodes heard of, by rank."""
        if self._ranks is None:
            found = (
                (status["node"], status, rank)
                for status in self.known()
                for rank in status["ranks"]
            )
            self._ranks = sorted(found, key=lambda item: item[2]["rank"])
        return self._ranks

    def training(self):
        """`ranks`, those that showed a step and train, on nodes that answer."""
        last = max((node["heard"] for node in self.nodes.values()), default=0)
        deaf = {
            name
            for name, node in self.nodes.items()
            if node["unreachable"] or self.silent(name, last)
        }
        return [
            item
            for item in self.ranks()
            if item[2].get("step") and item[2]["state"] == "training" and item[0] not in deaf
        ]

    def leading(self):
        """(status, rank) of the first rank that shows steps, or None."""
        return next(
            (
                (status, rank)
                for _node, status, rank in self.ranks()
                if rank["rank"] == self.lead and rank.get("step")
            ),
            None,
        )

    def fraction(self):
        """How much is done, 0 to 1, or None."""
        known = self.known()
        if (
            known
            and len(known) == len(known[0]["nodes"])
            and all(status["state"] == "completed" for status in known)
        ):
            return 1.0
        return max(
            (
                rank["fraction"]
                for _node, _status, rank in self.ranks()
                if rank.get("fraction") is not None
            ),
            default=None,
        )

    def elapsed(self, seconds):
        """Seconds since the attempt began on its first node; of one that is over, until its end."""
        status = self.known()[0]
        ended = number((status.get("exit") or {}).get("time")) if status["ended"] else None
        if ended is not None:
            return ended - status["started"]
        return (
            status["now"]
            - status["started"]
            + (0 if status["ended"] else seconds - self.nodes[status["node"]]["heard"])
        )

    def left(self):
        """Seconds that the training will still take: the suite's own word, else by its pace since
        the first look; or None.
        """
        found = self.leading()
        if not found or all(status["ended"] for status in self.known()):
            return None
        status, rank = found
        pace, eta = self.paces[self.lead], number(rank["step"].get("eta"))
        if eta is None and self._first_fraction and rank.get("fraction"):
            begun, first = self._first_fraction
            if rank["fraction"] > first:
                eta = (1 - rank["fraction"]) * (pace.changed - begun) / (rank["fraction"] - first)
        return None if eta is None else max(0.0, eta - (status["now"] - pace.changed))

    def throughput(self):
        """(summed speed, ranks, speed of each or None where they differ), or None. A suite's figure
        is one rank's (suites/*.yml).
        """
        speeds = [
            number(rank["step"].get("ips"))
            for _node, status, rank in self.training()
            if not status["ended"]
        ]
        speeds = [speed for speed in speeds if speed is not None]
        if not speeds:
            return None
        status = self.known()[0]
        if status.get("only_first_prints"):
            # Ranks train in step and with one batch size, so the others are as fast as the one that
            # says it.
            count = status.get("ranks_in_all") or 1
            return speeds[0] * count, count, speeds[0]
        return sum(speeds), len(speeds), None

    def slowest(self):
        """{rank, node, speed, share of the median, median, behind (steps, 0 for none)}, or None
        where ranks show no speed of their own.
        """
        own = [
            (node, rank, number(rank["step"].get("ips")))
            for node, status, rank in self.training()
            if not status.get("only_first_prints")
        ]
        if len(own) < 2:
            return None
        places = [self.paces[rank["rank"]].place or 0 for _node, rank, _speed in own]
        # Nodes are asked one after the other: what a rank does between two looks is no lag.
        usual = 2 * max(
            1, statistics.median(self.paces[rank["rank"]].jump for _node, rank, _speed in own)
        )
        middle = statistics.median(places)
        lags = [int(middle - place) if middle - place > usual else 0 for place in places]
        speeds = [speed for _node, _rank, speed in own if speed]
        median = statistics.median(speeds) if len(speeds) == len(own) else None
        index = min(range(len(own)), key=lambda i: (-lags[i], own[i][2] or 0))
        node, rank, speed = own[index]
        if median is None and not lags[index]:
            return None
        share = speed / median if median else None
        return {
            "rank": rank["rank"],
            "node": node,
            "speed": speed,
            "median": median,
            "share": share,
            "behind": lags[index],
        }

    def figures(self):
        """[(name, value)] of the last evaluation, what decides first, or []."""
        found = self.evaluation and self.evaluation["figures"]
        named = [
            (name, value)
            for name, value in (found or {}).items()
            if name not in _NO_FIGURE and value is not None
        ]
        return sorted(named, key=lambda pair: pair[0] != self.evaluation["main"])
