# SPDX-License-Identifier: Apache-2.0
"""A run's last figures as text for Prometheus (exposition format 0.0.4).

The text is for the textfile collector of the node exporter. The collector reads *.prom of one
directory, wants one HELP for a name over all files, and refuses samples with timestamps. Times are
therefore gauges. Nothing here reads a log: run.json and plan.json have what is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.states import RankState
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    Secrets,
    printable,
    secrets_of,
)
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .curves import counted
from .json_values import finite_number, mapping_of, mappings_of

NAME = "metrics.prom"
OUTCOMES = ("completed", "failed", "stopped", "lost", "unknown")
RUN_STATES = ("running", "stopping", *OUTCOMES)
# A rank can also run without printing steps, or end with an exit code that is not known.
RANK_STATES = tuple(state.value for state in RankState)
NODE_STATES = ("running", "stopping", "completed", "failed", "stopped", "lost", "none", "silent")
# name: (help, labels beside run and job). All are gauges: a file is replaced while its run goes on.
METRICS = {
    "info": ("What ran; always 1.", ("suite", "launcher", "site")),
    "outcome": (
        "1 for how the latest attempt ended, 0 for the other outcomes; all 0 while it runs.",
        ("outcome",),
    ),
    "state": (
        "1 for the state of the latest attempt, 0 for the other states.",
        ("state",),
    ),
    "hung": ("1 if a guard has taken the latest attempt for hanging.", ()),
    "attempt": ("Number of the latest attempt.", ()),
    "nodes": ("Nodes of the latest attempt by state.", ("state",)),
    "ranks": ("Ranks of the latest attempt by state.", ("state",)),
    "epoch": ("Epoch of the last step line, counted from 1.", ()),
    "last_step": ("Steps done over all epochs, as the logs say.", ()),
    "loss": ("Loss of the last step line; NaN where it was no number.", ()),
    "learning_rate": ("Learning rate of the last step line.", ()),
    "throughput": ("Speed of all ranks together at the last step line, per second.", ("unit",)),
    "evaluation": ("Figures of the last evaluation.", ("figure",)),
    "checkpoints": ("Checkpoints that the latest attempt's logs name.", ()),
    "restarts": ("Attempts after the first one.", ()),
    "log_bytes": ("Bytes of the ranks' logs of the latest attempt.", ()),
    "start_timestamp_seconds": ("When the run was started (unix time).", ()),
    "last_log_timestamp_seconds": (
        "When a rank last wrote to its log, by its node's clock (unix time).",
        (),
    ),
    "last_sign_of_life_timestamp_seconds": (
        "When the run was last seen to write a log or a step, by this machine's clock (unix time).",
        (),
    ),
    "followed_timestamp_seconds": (
        "When a command that follows the run last had an answer (unix time).",
        (),
    ),
    "seen_timestamp_seconds": ("When a node last answered about the run (unix time).", ()),
    "end_timestamp_seconds": (
        "When the verdict on the latest attempt was written (unix time).",
        (),
    ),
}


class Sample(NamedTuple):
    """One figure of a run. A value that is not a number is unknown, and has no sample."""

    metric: str  # a key of METRICS
    labels: tuple[Any, ...]  # the values of the metric's own labels
    value: Any


class _RunCollector(Collector):
    """The samples of one run as metrics of prometheus_client."""

    def __init__(self, samples: Sequence[Sample], run: Any, job: Any, secrets: Secrets) -> None:
        self._samples, self._common, self._secrets = samples, (run, job), secrets

    def collect(self) -> Iterator[Metric]:
        """Yield a gauge for each metric that has a sample."""
        for name, (help_text, labels) in METRICS.items():
            gauge = GaugeMetricFamily(
                f"trainyard_run_{name}", help_text, labels=("run", "job", *labels)
            )
            for sample in self._samples:
                if sample.metric == name:
                    gauge.add_metric(self._label_texts(sample.labels), sample.value)
            if gauge.samples:
                yield gauge

    def _label_texts(self, values: Iterable[Any]) -> list[str]:
        """Return a sample's label values, safe to show."""
        return [_label_text(value, self._secrets) for value in (*self._common, *values)]


def exposition_text(plan: object, record: object) -> str:
    """Return the exposition text of a run.

    An unknown or malformed figure has no sample. plan: plan.json's content. record: run.json's
    content.
    """
    plan, record = mapping_of(plan), mapping_of(record)
    samples = _build_samples(plan, record)
    return render(samples, record.get("run"), record.get("job"), secrets_of(plan))


def render(samples: Iterable[Sample], run: Any, job: Any, secrets: Secrets) -> str:
    """Return samples of one run as exposition text, without those that are not figures."""
    registry = CollectorRegistry()
    figures = [sample for sample in samples if _is_figure(sample.value)]
    registry.register(_RunCollector(figures, run, job, secrets))
    return generate_latest(registry).decode("utf-8")


def _build_samples(plan: Mapping[str, Any], record: Mapping[str, Any]) -> list[Sample]:
    """Return the samples of the known figures."""
    attempts = mappings_of(record.get("attempts"))
    latest = max(attempts, key=_attempt_number, default={})
    ranks = mappings_of(latest.get("ranks"))
    suite = mapping_of(plan.get("suite"))
    step_table = mapping_of(mapping_of(suite.get("logs")).get("step"))
    throughput = _sum_throughput(plan, ranks, step_table)
    samples = [
        *describe_run(plan, mapping_of(latest.get("verdict")).get("outcome")),
        *_describe_attempt(latest),
        *count_states("ranks", RANK_STATES, [rank.get("state") for rank in ranks]),
        *_read_last_step(ranks, step_table),
        Sample("throughput", (step_table.get("unit"),), throughput),
        *_read_evaluation(ranks),
        Sample("checkpoints", (), _sum_or_none(_numbers_of(ranks, "saved_count"))),
        Sample("restarts", (), _count_restarts(record, attempts)),
        Sample("log_bytes", (), _sum_or_none(_numbers_of(ranks, "bytes"))),
        Sample("start_timestamp_seconds", (), record.get("started")),
        Sample("last_log_timestamp_seconds", (), max(_numbers_of(ranks, "mtime"), default=None)),
        Sample("end_timestamp_seconds", (), latest.get("ended")),
    ]
    return [sample for sample in samples if _is_figure(sample.value)]


def _attempt_number(attempt: Mapping[str, Any]) -> float:
    return finite_number(attempt.get("number")) or 0


def describe_run(plan: Mapping[str, Any], outcome: object) -> list[Sample]:
    """Return the samples that name a run, and its outcome.

    outcome: of the verdict on the latest attempt, another value while it goes on.
    """
    launcher, suite = mapping_of(plan.get("launcher")), mapping_of(plan.get("suite"))
    labels = (suite.get("name"), launcher.get("name"), plan.get("site"))
    return [
        Sample("info", labels, 1),
        *(Sample("outcome", (name,), int(name == outcome)) for name in OUTCOMES),
    ]


def describe_state(state: object) -> list[Sample]:
    """Return the samples of a run's state. state: one of RUN_STATES, or another value for none."""
    return [Sample("state", (name,), int(name == state)) for name in RUN_STATES]


def _describe_attempt(latest: Mapping[str, Any]) -> list[Sample]:
    """Return the samples of the state of an attempt of run.json."""
    verdict = mapping_of(latest.get("verdict"))
    return [
        *describe_state(verdict.get("outcome") or "running"),
        Sample("hung", (), int(verdict.get("cause") == "hang")),
        Sample("attempt", (), latest.get("number")),
    ]


def count_states(metric: str, names: Iterable[str], states: Sequence[object]) -> list[Sample]:
    """Return a sample for each name of a state: the number of `states` that are equal to it."""
    if not states:
        return []
    return [Sample(metric, (name,), states.count(name)) for name in names]


def _ranks_with_steps(ranks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [rank for rank in ranks if isinstance(rank.get("last_step"), dict)]


def _read_last_step(
    ranks: Iterable[Mapping[str, Any]], step_table: Mapping[str, Any]
) -> list[Sample]:
    """Return the samples of the first rank that prints steps.

    step_table: the suite's `logs.step`.
    """
    rank: Mapping[str, Any] = next(iter(_ranks_with_steps(ranks)), {})
    step = mapping_of(rank.get("last_step"))
    return describe_step(step, mapping_of(step_table.get("first")), bool(rank.get("nan")))


def describe_step(step: Mapping[str, Any], first: Mapping[str, Any], nan: bool) -> list[Sample]:
    """Return the samples of a step record.

    first: what the suite counts epochs and steps from. nan: whether a loss was not a number.
    """
    loss, steps = step.get("loss"), None
    epoch = finite_number(step.get("epoch"))
    if epoch is not None:
        epoch += 1 - (finite_number(first.get("epoch", 1)) or 0)
    if nan and "loss" in step and loss is None:
        loss = math.nan
    if step:
        steps = counted(_only_numbers(step), _only_numbers(first))
    return [
        Sample("epoch", (), epoch),
        Sample("last_step", (), steps),
        Sample("loss", (), loss),
        Sample("learning_rate", (), step.get("lr")),
    ]


def _sum_throughput(
    plan: Mapping[str, Any], ranks: Iterable[Mapping[str, Any]], step_table: Mapping[str, Any]
) -> float | None:
    """Return the speed of all ranks together, or None.

    step_table: the suite's `logs.step`.
    """
    steps = [rank["last_step"] for rank in _ranks_with_steps(ranks)]
    speeds, total = _numbers_of(steps, "ips"), len(mappings_of(plan.get("ranks")))
    if speeds and len(speeds) < total and step_table.get("ranks") == "first":
        speeds = [sum(speeds) / len(speeds) * total]  # the ranks go at one pace
    return _sum_or_none(speeds)


def _read_evaluation(ranks: Iterable[Mapping[str, Any]]) -> list[Sample]:
    evaluations = (rank["evaluation"] for rank in ranks if isinstance(rank.get("evaluation"), dict))
    figures: Mapping[str, Any] = next(evaluations, {})
    return [
        Sample("evaluation", (key,), value)
        for key, value in figures.items()
        if key not in ("line", "epoch", "step", "global_step")
    ]


def _count_restarts(record: Mapping[str, Any], attempts: Sequence[object]) -> float:
    recorded = record.get("restarts")
    if isinstance(recorded, (int, float)) and _is_figure(recorded):
        return recorded
    return max(len(attempts) - 1, 0)


def _numbers_of(entries: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [entry[key] for entry in entries if _is_figure(entry.get(key))]


def _sum_or_none(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return sum(values)


def _only_numbers(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if finite_number(value) is not None}


def _is_figure(value: object) -> bool:
    """Return true for a number that the exposition format can hold."""
    if isinstance(value, float):
        return True
    return finite_number(value) is not None


def _label_text(value: object, secrets: Secrets) -> str:
    if value is None:
        return ""
    return str(printable(value, *secrets, limit=200))


def _file_stem(plan: Mapping[str, Any], name: object) -> str:
    """Return the start of a file's name: the site, and what tells its files apart."""
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{plan.get('site') or 'site'}-{name}")
    return f"trainyard-{stem[:200]}"


def file_name(plan: Mapping[str, Any], run: str) -> str:
    """Return the name of a run's file in the collector's directory."""
    return _file_stem(plan, run) + ".prom"


def former_name(plan: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return the name that earlier releases used: one per job of a site."""
    return _file_stem(plan, record.get("job") or "job") + ".prom"


def run_files(plan: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return those of some file names that are of the site's runs, the oldest run first.

    The id of a run begins with the time of its start.
    """
    start = _file_stem(plan, "")
    pattern = re.compile(re.escape(start) + r"[0-9]{8}-[0-9]{6}-.*\.prom\Z")
    return sorted(name for name in names if pattern.match(name))
