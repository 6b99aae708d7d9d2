# SPDX-License-Identifier: Apache-2.0
"""The metrics of a run that goes on, from its nodes' latest answers.

They have the names and the file of the metrics at the end (report/metrics_text.py), which replace
them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import guard_findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_mapping,
    update_file,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import secrets_of

from ..live.model import Json, Watch
from ..report import metrics_text
from ..report.json_values import finite_number
from ..report.metrics_text import RANK_STATES, Sample

# The files are written at most this often.
WRITE_SECONDS = 5
# A finished attempt is as bad as its worst node, in this order.
_WORST_FIRST = ("lost", "failed", "stopped", "completed")
# At most so much of a file is read for the time of the last follower.
_MOST_BYTES = 1 << 20
# Nobody else writes the file of a run that was followed so short a time ago.
FOLLOWED_SECONDS = 3 * WRITE_SECONDS


class Signs:
    """The last sign of life of a run, by the controller's clock.

    Clocks of nodes may be wrong. A sign is any change of the steps and of the times of the logs.
    """

    def __init__(self) -> None:
        self._seen: object = None
        self._time: float | None = None

    def last(self, watch: Watch, now: float) -> float | None:
        """Return the unix time of the last sign of life, None before the first log."""
        seen = [(rank.get("log_time"), rank.get("step")) for _node, _status, rank in watch.ranks()]
        if not any(written or step for written, step in seen):
            return None
        if self._time is None:
            self._time = self._first_time(watch, now)
        elif seen != self._seen:
            self._time = now
        self._seen = seen
        return self._time

    @staticmethod
    def _first_time(watch: Watch, now: float) -> float:
        """Return the time of the newest line, where the run was not watched before.

        Its age is measured by the node's own clock.
        """
        ages = []
        for _node, status, rank in watch.ranks():
            written, seen = finite_number(rank.get("log_time")), finite_number(status.get("now"))
            if written is not None and seen is not None:
                ages.append(max(0.0, seen - written))
        return now - min(ages, default=0.0)


def run_state(watch: Watch, silent: Sequence[str] = ()) -> str:
    """Return the state of the watched attempt: one of metrics_text.RUN_STATES.

    silent: the run's nodes that do not answer. An attempt that has ended wherever it is known is
    'unknown' while they are silent.
    """
    states = [status.get("state") for status in watch.known()]
    if any(not status["ended"] for status in watch.known()):
        if "running" in states:
            return "running"
        return "stopping"
    worst = next((state for state in _WORST_FIRST if state in states), "unknown")
    if silent and worst == "completed":
        return "unknown"
    return worst


def is_hung(watch: Watch) -> bool:
    """Return whether a guard has taken the attempt for hanging."""
    guarded = {status["node"]: status for status in watch.known() if status.get("guard")}
    return guard_findings.first_stall(guarded) is not None


def silent_nodes(watch: Watch, seconds: float) -> list[str]:
    """Return the nodes of the run that do not answer. seconds: the clock of Watch.add."""
    silent = []
    for name in watch.order():
        node = watch.nodes.get(name)
        if node is None or node.unreachable or watch.silent(name, seconds):
            silent.append(name)
    return silent


def samples_of(watch: Watch, plan: Json, seconds: float) -> list[Sample]:
    """Return the samples of a run's latest answers.

    watch: with at least one node that knows the run. plan: plan.json, {} where it is unknown.
    seconds: the clock of Watch.add.
    """
    silent = silent_nodes(watch, seconds)
    state = run_state(watch, silent)
    first = watch.known()[0]
    states = [status.get("state") for status in watch.known() if status["node"] not in silent]
    number = (watch.run or ("", 0))[1]
    ranks = [rank.get("state") for _node, _status, rank in watch.ranks()]
    return [
        *metrics_text.describe_run(plan, state),
        *metrics_text.describe_state(state),
        Sample("hung", (), int(is_hung(watch))),
        Sample("attempt", (), number),
        Sample("restarts", (), max(number - 1, 0)),
        *metrics_text.count_states(
            "nodes", metrics_text.NODE_STATES, [*states, *("silent" for _name in silent)]
        ),
        *metrics_text.count_states("ranks", RANK_STATES, ranks),
        *_step_samples(watch, first),
    ]


def _step_samples(watch: Watch, status: Mapping[str, Any]) -> list[Sample]:
    """Return the samples of the first rank that shows steps. status: of any of the nodes."""
    samples = []
    leading = watch.leading()
    if leading:
        rank = leading[1]
        samples += metrics_text.describe_step(
            rank["step"], status.get("first_step") or {}, bool(watch.nan)
        )
    throughput = watch.throughput()
    if throughput:
        samples.append(Sample("throughput", (status.get("unit_of_speed"),), throughput[0]))
    samples += [Sample("evaluation", (name,), value) for name, value in watch.figures()]
    return samples


class RunMetrics:
    """Writes the metrics of one run from its nodes' answers, again and again.

    follows: whether the writer follows the run to its end. An exporter only looks.
    """

    def __init__(self, runs_dir: str, directory: str, site: str, follows: bool) -> None:
        self._runs_dir, self._directory, self._follows = runs_dir, directory, follows
        self._site = site
        self._signs: dict[str, Signs] = {}
        self._known: tuple[str, Json, Json] = ("", {}, {})

    def text(self, watch: Watch, seconds: float, now: float) -> str:
        """Return the exposition text. now: unix time of the controller."""
        run = (watch.run or ("", 0))[0]
        plan, record = self._read(run)
        status = watch.known()[0]
        signs = self._signs.setdefault(run, Signs())
        followed = self._read_time(plan, run, "followed")
        if self._follows:
            followed = now
        samples = [
            *samples_of(watch, plan, seconds),
            Sample("start_timestamp_seconds", (), record.get("started", status["started"])),
            Sample("last_sign_of_life_timestamp_seconds", (), signs.last(watch, now)),
            Sample("seen_timestamp_seconds", (), now),
            Sample("followed_timestamp_seconds", (), followed),
            Sample("end_timestamp_seconds", (), _end_time(watch, seconds, now)),
        ]
        job = record.get("job") or status.get("job")
        return metrics_text.render(samples, run, job, secrets_of(plan))

    def write(self, watch: Watch, seconds: float, now: float) -> None:
        """Write the run's own file where it has a directory here, and the collector's file.

        Raises OSError where the collector's directory cannot be written.
        """
        run = (watch.run or ("", 0))[0]
        text = self.text(watch, seconds, now)
        run_dir = os.path.join(self._runs_dir, run)
        if self._follows and os.path.isdir(run_dir):
            with contextlib.suppress(OSError):  # it has a copy, or nobody asked for one
                update_file(os.path.join(run_dir, metrics_text.NAME), text, 0o600)
        if self._directory:
            update_file(self._copy(self._read(run)[0], run), text, 0o644)

    def _read(self, run: str) -> tuple[Json, Json]:
        """Return (plan, record) of a run as the controller has them, {} for each missing one."""
        if self._known[0] != run:
            folder = os.path.join(self._runs_dir, run)
            plan = read_mapping(os.path.join(folder, "plan.json")) or {}
            plan.setdefault("site", self._site)
            self._known = (run, plan, read_mapping(os.path.join(folder, "run.json")) or {})
        return self._known[1:]

    def _copy(self, plan: Json, run: str) -> str:
        return os.path.join(self._directory, metrics_text.file_name(plan, run))

    def _read_time(self, plan: Json, run: str, name: str) -> float | None:
        """Return a time of the collector's file, None where it has none."""
        if not self._directory:
            return None
        try:
            with open(self._copy(plan, run), encoding="utf-8", errors="replace") as handle:
                text = handle.read(_MOST_BYTES)
        except OSError:
            return None
        pattern = rf"^trainyard_run_{name}_timestamp_seconds\{{[^\n]*\}} (\S{{1,40}})$"
        match = re.search(pattern, text, re.MULTILINE)
        try:
            if match:
                return float(match[1])
        except ValueError:
            pass
        return None

    def is_current(self, watch: Watch, now: float) -> bool:
        """Return whether the collector's file is better than what an exporter knows.

        A follower has written it just now, or it has the end of the run. now: unix time.
        """
        run = (watch.run or ("", 0))[0]
        plan = self._read(run)[0]
        followed = self._read_time(plan, run, "followed")
        if followed is not None and 0 <= now - followed < FOLLOWED_SECONDS:
            return True
        ended = all(status["ended"] for status in watch.known())
        return ended and self._read_time(plan, run, "end") is not None


def _end_time(watch: Watch, seconds: float, now: float) -> float | None:
    """Return the end of the attempt on its last node, None before all have ended and answered.

    An attempt that is lost wrote no end. It was found to be lost now, in unix seconds.
    """
    known = watch.known()
    if silent_nodes(watch, seconds) or not all(status["ended"] for status in known):
        return None
    times = [finite_number((status.get("exit") or {}).get("time")) for status in known]
    return max((time for time in times if time is not None), default=now)
