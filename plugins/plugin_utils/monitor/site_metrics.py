# SPDX-License-Identifier: Apache-2.0
"""The metrics of a site that is looked at: its nodes, and the runs that they know.

A run that a command follows is written by that command. The exporter is for the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import CodedError
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import update_file
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..live.model import Json, Watch
from ..report.json_values import finite_number, mapping_of
from .live_metrics import RunMetrics

# name: (help, labels beside site).
METRICS = {
    "trainyard_node_up": ("1 if the node answered the last look, else 0.", ("node",)),
    "trainyard_node_problem": (
        "1 for why the node gave no answer: unreachable, or failed.",
        ("node", "reason"),
    ),
    "trainyard_node_held": ("1 if a run is active on the node, else 0.", ("node",)),
    "trainyard_node_run_info": (
        "The run that is active on the node, else its newest one; always 1.",
        ("node", "run", "job", "owner"),
    ),
    "trainyard_node_disk_free_bytes": ("Free space where the runs of the node lie.", ("node",)),
    "trainyard_node_disk_size_bytes": ("Size of that file system.", ("node",)),
    "trainyard_node_clock_ahead_seconds": (
        "Seconds by which the node's clock is ahead of the exporter's, to a few seconds.",
        ("node",),
    ),
    "trainyard_export_timestamp_seconds": ("When the site was last looked at (unix time).", ()),
    "trainyard_export_runs": ("Runs that the last look found, by whether they go on.", ("active",)),
}


class ExportError(CodedError):
    """A site cannot be exported."""


class _SiteCollector(Collector):
    """Samples of a site as metrics of prometheus_client."""

    def __init__(self, site: str, samples: Sequence[tuple[str, tuple[str, ...], Any]]) -> None:
        self._site, self._samples = site, samples

    def collect(self) -> Iterator[Metric]:
        """Yield a gauge for each metric that has a sample."""
        for name, (help_text, labels) in METRICS.items():
            gauge = GaugeMetricFamily(name, help_text, labels=("site", *labels))
            for metric, values, value in self._samples:
                if metric == name and finite_number(value) is not None:
                    texts = [printable(text, limit=200) for text in values]
                    gauge.add_metric([self._site, *texts], value)
            if gauge.samples:
                yield gauge


def export_site(
    site: str, results: Mapping[str, Json], runs_dir: str, directory: str, now: float
) -> dict[str, Any]:
    """Write the metrics of a look at a site, and return {changed, path, up, down, runs}.

    results: {node: the result of attempt_monitor, with `unreachable` or `failed`}, and {} for a
    node without a result. directory: of the collector. now: unix time. Raises ExportError.
    """
    if not directory or not os.path.isdir(directory):
        raise ExportError(
            "export.no_directory",
            f"trainyard_metrics_dir is {directory or 'not set'}: the exporter writes its files"
            " there, so it must be an existing directory; see docs/runbooks/metrics.md",
        )
    statuses = {node: status_of(result) for node, result in results.items()}
    watches = _group_runs(statuses)
    samples: list[tuple[str, tuple[str, ...], Any]] = []
    for node, result in results.items():
        samples += _describe_node(node, statuses[node], result, now)
    active = [run for run, watch in watches.items() if not _has_ended(watch)]
    samples += [
        ("trainyard_export_timestamp_seconds", (), now),
        ("trainyard_export_runs", ("yes",), len(active)),
        ("trainyard_export_runs", ("no",), len(watches) - len(active)),
    ]
    registry = CollectorRegistry()
    registry.register(_SiteCollector(printable(site, limit=200), samples))
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", site)[:200]
    path = os.path.join(directory, f"trainyard-{stem}.site.prom")
    try:
        update_file(path, generate_latest(registry).decode("utf-8"), 0o644)
        metrics = RunMetrics(runs_dir, directory, site, follows=False)
        for watch in watches.values():
            if not metrics.is_current(watch, now):
                metrics.write(watch, 0.0, now)
    except OSError as error:
        raise ExportError(
            "export.not_written", f"{directory}: {error.strerror}; make it writable for this user"
        ) from error
    down = sorted(node for node, status in statuses.items() if status is None)
    return {
        "changed": True,
        "path": path,
        "up": sorted(set(statuses) - set(down)),
        "down": down,
        "runs": sorted(watches),
        "active": sorted(active),
    }


def status_of(result: Json) -> Json | None:
    """Return the status in a node's result, None where it gave none that is sound."""
    status = result.get("status")
    if result.get("failed") or result.get("unreachable") or not isinstance(status, dict):
        return None
    if status.get("found") and not RUN_ID.match(str(status.get("run"))):
        return None
    return status


def _group_runs(statuses: Mapping[str, Json | None]) -> dict[str, Watch]:
    """Return {run: Watch with the answers of its nodes}."""
    watches: dict[str, Watch] = {}
    for node, status in statuses.items():
        if status and status.get("found") and not status.get("undone"):
            watches.setdefault(status["run"], Watch()).add(node, status, 0.0)
    return watches


def _has_ended(watch: Watch) -> bool:
    return all(status["ended"] for status in watch.known())


def _describe_node(
    node: str, status: Json | None, result: Json, now: float
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield the samples of one node."""
    yield ("trainyard_node_up", (node,), int(status is not None))
    if status is None:
        reason = "failed"
        if result.get("unreachable"):
            reason = "unreachable"
        yield ("trainyard_node_problem", (node, reason), 1)
        return
    active = bool(status.get("found") and not status.get("ended"))
    yield ("trainyard_node_held", (node,), int(active))
    if not status.get("found"):
        return
    labels = (status.get("run"), status.get("job"), status.get("by") or "")
    yield ("trainyard_node_run_info", (node, *map(str, labels)), 1)
    disk = mapping_of(status.get("disk"))
    yield ("trainyard_node_disk_free_bytes", (node,), disk.get("free"))
    yield ("trainyard_node_disk_size_bytes", (node,), disk.get("total"))
    clock = finite_number(status.get("now"))
    if clock is not None:
        yield ("trainyard_node_clock_ahead_seconds", (node,), clock - now)
