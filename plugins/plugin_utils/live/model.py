# SPDX-License-Identifier: Apache-2.0
"""The state of a run, from its nodes' repeated answers. Pure.

That is its pace, the loss so far, the time left and the slow ranks. Statuses are what
library/attempt_monitor.py returns. Times of one node are compared with each other only. `seconds`
are the controller's own.
"""

from __future__ import annotations

import collections
import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    Secrets,
    printable,
)

from ..base.text_columns import Samples
from .loader_share import LoaderShare

# A node's answer, one of its ranks, or one of their parts.
Json = dict[str, Any]
NO_SECRETS = Secrets((), ())
# What is read of a status and of its ranks. The rest is not kept for every node.
KEEP = frozenset(
    (
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
        "asked",
        "supervised",
        "exit",
        "nodes",
        "epochs",
        "first_step",
        "unit_of_speed",
        "accelerator",
        "ranks_in_all",
        "only_first_prints",
        "main_figure",
        "disk",
        "lost",
        "guard",
        "replica",
    )
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
# Nodes are asked every few seconds. ssh itself gives up after 14 to 22 s (ansible.cfg).
ANSWER_SECONDS = 20
_NO_FIGURE = frozenset(
    ("line", "epoch", "step", "global_step", "samples", "fps", "best_of", "best_epoch")
)


def number(value: Any) -> float | None:
    """Return value as a float, or None for what is not a number.

    A log's text may only look like a number.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


@functools.lru_cache(maxsize=8192)
def _safe_text(text: str, secrets: Secrets) -> str:
    return printable(text, *secrets, limit=200)


def _make_safe(value: Any, secrets: Secrets) -> Any:
    """Return data that is safe to show.

    It is `printable_data`, with a cache for the texts that every answer repeats.
    """
    if isinstance(value, str):
        return _safe_text(value, secrets)
    if isinstance(value, dict):
        return {_make_safe(key, secrets): _make_safe(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_make_safe(item, secrets) for item in value]
    return value


def reduce_status(status: Mapping[str, Any], secrets: Secrets = NO_SECRETS) -> Json:
    """Return the part of a status that the live view needs, its texts safe to show.

    secrets: (names, values) that sanitize.printable masks.
    """
    part = {
        key: _make_safe(value, secrets)
        for key, value in status.items()
        if key in KEEP and key != "ranks"
    }
    part["ranks"] = [
        {key: _make_safe(rank[key], secrets) for key in KEEP_OF_RANK if key in rank}
        for rank in status.get("ranks", ())
    ]
    return part


class Pace:
    """The times at which a rank's log showed a new step, by its node's clock.

    key: the latest step's numbers. place: the same as one number. jump: the difference to the place
    before. changed: when the step was new. gaps: seconds between new steps.
    """

    def __init__(self) -> None:
        self.key: tuple[Any, ...] | None = None
        self.place: int | None = None
        self.changed = 0.0
        self.jump = 0
        self.gaps: collections.deque[float] = collections.deque(maxlen=15)

    def see(self, step: Json, now: float, written: float | None) -> bool:
        """Add a step record, and return true if it is new.

        now: the node's time of the answer. written: when the log was last written, or None. Both
        are unix seconds.
        """
        key = tuple(step.get(name) for name in ("epoch", "step", "global_step"))
        if key == self.key:
            return False
        place = _step_place(step)
        if self.key is None:
            self.changed = min(now, written or now)
        else:
            self.gaps.append(now - self.changed)
            self.changed, self.jump = now, max(0, (place or 0) - (self.place or 0))
        self.key, self.place = key, place
        return True

    def usual(self) -> float | None:
        """Return the usual seconds between two answers with a new step, or None.

        None: there were fewer than three such times.
        """
        if len(self.gaps) < 3:
            return None
        return statistics.median(self.gaps)


def place_words(step: Json, epochs: int | None = None, first: Json | None = None) -> list[str]:
    """Return a step's place as words, counted from 1: ['epoch 1/3', 'step 3/8'].

    They hold only what the log says. epochs: the number of the job, or None. first: what the suite
    counts epochs and steps from, such as {epoch: 0, step: 0}.
    """
    words, first = [], first or {}
    if step.get("epoch") is not None:
        epoch = step["epoch"] + 1 - first.get("epoch", 1)
        words.append(_count_words("epoch", epoch, step.get("epochs") or epochs))
    if step.get("step") is not None:
        words.append(
            _count_words("step", step["step"] + 1 - first.get("step", 1), step.get("steps"))
        )
    elif step.get("global_step") is not None:
        words.append(_count_words("step", step["global_step"], step.get("total_steps")))
    return words


def _count_words(name: str, count: Any, total: Any) -> str:
    """Return a count as words, such as 'step 3/8' or 'step 3'."""
    if total:
        return f"{name} {count}/{total}"
    return f"{name} {count}"


def _step_place(step: Json) -> Any:
    """Return the steps counted over epochs, as far as the line says."""
    if step.get("global_step") is not None:
        return step["global_step"]
    if step.get("step") is None:
        return step.get("epoch")
    return (step.get("epoch") or 0) * (step.get("steps") or 0) + step["step"]


RankEntry = tuple[str, Json, Json]  # node, its status, one of its ranks


@dataclass
class Node:
    """A node's last answer."""

    name: str
    status: Json
    heard: float  # when it came
    gap: float  # seconds since the answer before it
    ahead: float | None  # seconds by which the node's clock is ahead
    unreachable: bool = False


@dataclass
class Evaluation:
    """The last evaluation of the first rank that has one."""

    rank: int
    figures: Json
    main: str | None  # the name of the figure that the suite judges by
    first: Json | None  # what the suite counts epochs and steps from


@dataclass
class NotANumber:
    """The first loss that is not a number."""

    loss: str
    step: str
    rank: int
    node: str


@dataclass
class SlowestRank:
    """The slowest rank. Speeds are missing (None) where not all ranks show one."""

    rank: int
    node: str
    speed: float | None
    median: float | None
    share: float | None  # of the median
    behind: int  # steps behind the median


class Watch:
    """One run as its nodes describe it, from the first answer to the last."""

    def __init__(self) -> None:
        self.run: tuple[str, int] | None = None
        self.secrets: Secrets = NO_SECRETS
        self.nodes: dict[str, Node] = {}
        self._begin()

    def _begin(self) -> None:
        # A node that does not know the run may have been the first one to answer.
        self.nodes = {
            name: node for name, node in self.nodes.items() if not node.status.get("found")
        }
        self.paces: dict[int, Pace] = {}
        self.loaders: dict[int, LoaderShare] = {}
        self.losses, self.lead = Samples(), -1
        self._clear_cache()
        self.evaluation: Evaluation | None = None
        self.nan: NotANumber | None = None
        # Time and fraction of the first answer with a fraction.
        self._first_fraction: tuple[float, float] | None = None

    def _clear_cache(self) -> None:
        """Forget what is derived from the latest answers."""
        self._known: list[Json] | None = None
        self._ranks: list[RankEntry] | None = None
        self._patience: float | None = None

    def add(
        self, name: str, status: Mapping[str, Any], seconds: float, clock: float | None = None
    ) -> bool:
        """Add a node's answer, and return true if it is of the newest attempt.

        A node that a spare has replaced knows older attempts only. seconds: a clock that only goes
        forward. clock: the controller's time of day, to compare the node's with.
        """
        name = _safe_text(name, self.secrets)
        status = dict(reduce_status(status, self.secrets), node=name)
        if status.get("found"):
            run = (status["run"], status.get("attempt") or 0)
            if self.run and run < self.run:
                return False
            if run != self.run:
                self.run = run
                self._begin()
            for rank in status["ranks"]:
                self._add_rank(name, status, rank)
        self._clear_cache()
        gap = 0.0
        if name in self.nodes:
            gap = seconds - self.nodes[name].heard
        self.nodes[name] = Node(name, status, seconds, gap, _measure_ahead(status, clock))
        return True

    def lose(self, name: str) -> None:
        """Note that a node was not reachable."""
        name = _safe_text(name, self.secrets)
        if name in self.nodes:
            self.nodes[name].unreachable = True

    def _add_rank(self, name: str, status: Json, rank: Json) -> None:
        self._add_evaluation(status, rank)
        self._add_nan(name, status, rank)
        step, number_ = rank.get("step"), rank["rank"]
        if not step:
            return
        pace = self.paces.setdefault(number_, Pace())
        is_new = pace.see(step, status["now"], rank.get("log_time"))
        if is_new:
            self.loaders.setdefault(number_, LoaderShare()).see(step)
        if self.lead < 0 or number_ < self.lead:
            self.lead, self.losses, self._first_fraction = number_, Samples(), None
            is_new = True
        if number_ == self.lead and is_new:
            if "loss" in step:
                self.losses.add(number(step["loss"]))
            if rank.get("fraction") is not None and self._first_fraction is None:
                self._first_fraction = (pace.changed, rank["fraction"])

    def _add_evaluation(self, status: Json, rank: Json) -> None:
        """Keep the evaluation of the first rank that has one."""
        if not rank.get("evaluation"):
            return
        if self.evaluation is None or rank["rank"] <= self.evaluation.rank:
            self.evaluation = Evaluation(
                rank["rank"],
                rank["evaluation"],
                status.get("main_figure"),
                status.get("first_step"),
            )

    def _add_nan(self, name: str, status: Json, rank: Json) -> None:
        """Keep the first loss that is not a number."""
        if not rank.get("nan") or self.nan is not None:
            return
        words = place_words(rank["nan"], status.get("epochs"), status.get("first_step"))
        loss = str(rank["nan"].get("loss", "nan")).rstrip("x")
        self.nan = NotANumber(loss, " ".join(words or ["a step"]), rank["rank"], name)

    # --- derived from the answers

    def status(self, name: str) -> Json:
        """Return a node's last answer."""
        return self.nodes[_safe_text(name, self.secrets)].status

    def known(self) -> list[Json]:
        """Return the statuses of the nodes that know the run, in the run's order."""
        if self._known is None:
            statuses = {
                name: node.status for name, node in self.nodes.items() if node.status.get("found")
            }
            first: list[str] = next((status["nodes"] for status in statuses.values()), [])
            order = dict.fromkeys([*first, *statuses])
            self._known = [statuses[name] for name in order if name in statuses]
        return self._known

    def order(self) -> list[str]:
        """Return the names of the nodes to show: the run's, else those that answered."""
        known = self.known()
        if known:
            return list(known[0]["nodes"])
        return sorted(self.nodes)

    def silent(self, name: str, seconds: float) -> float:
        """Return the seconds for which a node has not answered.

        0: it has answered lately, or has nothing more to answer.
        """
        node, since = self.nodes[name], 0.0
        if not node.status.get("ended") and not node.unreachable:
            since = seconds - node.heard
        if self._patience is None:  # a site may ask its nodes less often
            gaps = (3 * other.gap for other in self.nodes.values())
            self._patience = max(ANSWER_SECONDS, *gaps)
        if since > self._patience:
            return since
        return 0

    def ranks(self) -> list[RankEntry]:
        """Return [(node's name, its status, rank)] of all nodes that answered, by rank."""
        if self._ranks is None:
            entries = (
                (status["node"], status, rank)
                for status in self.known()
                for rank in status["ranks"]
            )
            self._ranks = sorted(entries, key=lambda entry: entry[2]["rank"])
        return self._ranks

    def training(self) -> list[RankEntry]:
        """Return those of `ranks` that train and showed a step, on nodes that answer."""
        last = max((node.heard for node in self.nodes.values()), default=0)
        silent = {
            name for name, node in self.nodes.items() if node.unreachable or self.silent(name, last)
        }
        return [
            entry
            for entry in self.ranks()
            if entry[2].get("step") and entry[2]["state"] == "training" and entry[0] not in silent
        ]

    def leading(self) -> tuple[Json, Json] | None:
        """Return (status, rank) of the first rank that shows steps, or None."""
        for _node, status, rank in self.ranks():
            if rank["rank"] == self.lead and rank.get("step"):
                return status, rank
        return None

    def fraction(self) -> float | None:
        """Return the part of the training that is done, 0 to 1, or None."""
        known = self.known()
        completed = all(status["state"] == "completed" for status in known)
        if known and len(known) == len(known[0]["nodes"]) and completed:
            return 1.0
        fractions = (rank.get("fraction") for _node, _status, rank in self.ranks())
        return max((value for value in fractions if value is not None), default=None)

    def elapsed(self, seconds: float) -> float:
        """Return the seconds since the attempt began on its first node.

        Of an ended attempt, it is the time until its end.
        """
        status, ended = self.known()[0], None
        if status["ended"]:
            ended = number((status.get("exit") or {}).get("time"))
        if ended is not None:
            return ended - status["started"]
        until = status["now"] - status["started"]
        if not status["ended"]:
            until += seconds - self.nodes[status["node"]].heard
        return until

    def left(self) -> float | None:
        """Return the seconds that the training will still take, or None.

        It is the suite's own figure, else it comes from the pace since the first answer.
        """
        leading = self.leading()
        if not leading or all(status["ended"] for status in self.known()):
            return None
        status, rank = leading
        pace, eta = self.paces[self.lead], number(rank["step"].get("eta"))
        if eta is None:
            eta = self._estimate_left(pace, rank.get("fraction"))
        if eta is None:
            return None
        return max(0.0, eta - (status["now"] - pace.changed))

    def _estimate_left(self, pace: Pace, fraction: float | None) -> float | None:
        """Return the seconds left at the latest step, by the pace so far, or None."""
        if not self._first_fraction or not fraction:
            return None
        begin, first = self._first_fraction
        if not fraction > first:
            return None
        return (1 - fraction) * (pace.changed - begin) / (fraction - first)

    def throughput(self) -> tuple[float, int, float | None] | None:
        """Return (summed speed, ranks, speed of each or None where they differ), or None.

        A suite's figure is one rank's (suites/*.yml).
        """
        figures = (
            number(rank["step"].get("ips"))
            for _node, status, rank in self.training()
            if not status["ended"]
        )
        speeds = [speed for speed in figures if speed is not None]
        if not speeds:
            return None
        status = self.known()[0]
        if status.get("only_first_prints"):
            # Ranks train in step and with one batch size, so the others are as fast as the one that
            # says it.
            count = status.get("ranks_in_all") or 1
            return speeds[0] * count, count, speeds[0]
        return sum(speeds), len(speeds), None

    def slowest(self) -> SlowestRank | None:
        """Return the slowest rank, or None.

        None: ranks show no speed of their own.
        """
        ranks = [
            (node, rank, number(rank["step"].get("ips")))
            for node, status, rank in self.training()
            if not status.get("only_first_prints")
        ]
        if len(ranks) < 2:
            return None
        lags = self._lags([rank for _node, rank, _speed in ranks])
        speeds = [speed for _node, _rank, speed in ranks if speed]
        median: float | None = None
        share: float | None = None
        if len(speeds) == len(ranks):
            median = statistics.median(speeds)
        index = min(range(len(ranks)), key=lambda i: (-lags[i], ranks[i][2] or 0))
        node, rank, speed = ranks[index]
        if median is None and not lags[index]:
            return None
        if median and speed:
            share = speed / median
        return SlowestRank(rank["rank"], node, speed, median, share, lags[index])

    def _lags(self, ranks: Sequence[Json]) -> list[int]:
        """Return the steps by which each rank is behind the median, 0 for none."""
        paces = [self.paces[rank["rank"]] for rank in ranks]
        places = [pace.place or 0 for pace in paces]
        # Nodes answer one after the other: the steps between two answers are not a lag.
        usual = 2 * max(1, statistics.median(pace.jump for pace in paces))
        middle = statistics.median(places)
        lags = [0] * len(places)
        for index, place in enumerate(places):
            if middle - place > usual:
                lags[index] = int(middle - place)
        return lags

    def figures(self) -> list[tuple[str, Any]]:
        """Return [(name, value)] of the last evaluation, the main figure first, or []."""
        evaluation = self.evaluation
        if evaluation is None:
            return []
        named = [
            (name, value)
            for name, value in (evaluation.figures or {}).items()
            if name not in _NO_FIGURE and value is not None
        ]
        return sorted(named, key=lambda pair: pair[0] != evaluation.main)


def _measure_ahead(status: Json, clock: float | None) -> float | None:
    """Return the seconds by which a node's clock is ahead, or None.

    clock: the controller's time when the answer came to the view. Where the status says when the
    node was asked, the least difference counts that these times leave: a controller that slept
    meanwhile makes no clock wrong.
    """
    if clock is None or not status.get("now") or status.get("ended"):
        return None
    now = status["now"]
    sent, received = status.get("asked") or (clock, clock)
    return now - min(max(now, sent), received)
