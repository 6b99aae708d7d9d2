# SPDX-License-Identifier: Apache-2.0
"""A run's last figures as text for Prometheus (exposition format 0.0.4).

The text is for the textfile collector of the node exporter. The collector reads *.prom of one
directory, wants one HELP for a name over all files, and refuses samples with timestamps. Times are
therefore gauges. Nothing here reads a log: run.json and plan.json have what is needed.
"""

from __future__ import annotations

import math
import re

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import replace_file
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    secrets_of,
)

from .curves import counted
from .json_values import finite_number, mapping_of, mappings_of

NAME = "metrics.prom"
OUTCOMES = ("completed", "failed", "stopped", "lost", "unknown")
STATES = ("waiting", "starting", "training", "done", "failed", "killed", "stopped")
# name: (help, labels beside run and job). All are gauges: a new run of the same job takes the place
# of the old one.
METRICS = {
    "info": ("What ran; always 1.", ("suite", "launcher", "site")),
    "outcome": (
        "1 for how the latest attempt ended, 0 for the other outcomes; all 0 while it runs.",
        ("outcome",),
    ),
    "ranks": ("Ranks of the latest attempt by state.", ("state",)),
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
    "end_timestamp_seconds": (
        "When the verdict on the latest attempt was written (unix time).",
        (),
    ),
}
_START = re.compile(r"^trainyard_run_start_timestamp_seconds\{[^\n]*\} (\S+)$", re.MULTILINE)


def text_of(plan, record):
    """Return the exposition text of a run.

    An unknown or malformed figure has no sample. plan: plan.json's content. record: run.json's
    content.
    """
    plan, record = mapping_of(plan), mapping_of(record)
    secrets = secrets_of(plan)
    samples = _build_samples(plan, record)
    common = (("run", record.get("run")), ("job", record.get("job")))
    lines = []
    for name, (help_text, labels) in METRICS.items():
        values = [sample[1:] for sample in samples if sample[0] == name]
        if values:
            lines += [
                f"# HELP trainyard_run_{name} {help_text}",
                f"# TYPE trainyard_run_{name} gauge",
            ]
        for label_values, value in values:
            pairs = ",".join(
                f'{key}="{_format_label(text, secrets)}"'
                for key, text in (*common, *zip(labels, label_values))
            )
            lines.append(f"trainyard_run_{name}{{{pairs}}} {_format_figure(value)}")
    return "\n".join(lines) + "\n"


def _build_samples(plan, record):
    """Return [(name, values of the metric's labels, value)] of the known figures."""
    attempts = mappings_of(record.get("attempts"))
    latest = max(attempts, key=_attempt_number, default={})
    ranks = mappings_of(latest.get("ranks"))
    suite = mapping_of(plan.get("suite"))
    table = mapping_of(mapping_of(suite.get("logs")).get("step"))
    samples = [
        *_describe_run(plan, suite, latest),
        *_count_states(ranks),
        *_read_last_step(ranks, table),
        ("throughput", (table.get("unit"),), _sum_throughput(plan, ranks, table)),
        *_read_evaluation(ranks),
        ("checkpoints", (), _sum_or_none(_numbers_of(ranks, "saved_count"))),
        ("restarts", (), _count_restarts(record, attempts)),
        ("log_bytes", (), _sum_or_none(_numbers_of(ranks, "bytes"))),
        ("start_timestamp_seconds", (), record.get("started")),
        ("last_log_timestamp_seconds", (), max(_numbers_of(ranks, "mtime"), default=None)),
        ("end_timestamp_seconds", (), latest.get("ended")),
    ]
    return [sample for sample in samples if _is_number(sample[2])]


def _attempt_number(attempt):
    return finite_number(attempt.get("number")) or 0


def _describe_run(plan, suite, latest):
    launcher = mapping_of(plan.get("launcher"))
    outcome = mapping_of(latest.get("verdict")).get("outcome")
    samples = [("info", (suite.get("name"), launcher.get("name"), plan.get("site")), 1)]
    samples += [("outcome", (name,), int(name == outcome)) for name in OUTCOMES]
    return samples


def _count_states(ranks):
    if not ranks:
        return []
    return [("ranks", (name,), sum(r.get("state") == name for r in ranks)) for name in STATES]


def _ranks_with_steps(ranks):
    return [rank for rank in ranks if isinstance(rank.get("last_step"), dict)]


def _read_last_step(ranks, table):
    """Return the samples of the first rank that prints steps.

    table: the suite's `logs.step`.
    """
    first = next(iter(_ranks_with_steps(ranks)), {})
    step = mapping_of(first.get("last_step"))
    loss, steps = step.get("loss"), None
    if first.get("nan") and "loss" in step and loss is None:
        loss = math.nan
    if step:
        steps = counted(_only_numbers(step), _only_numbers(mapping_of(table.get("first"))))
    return [
        ("last_step", (), steps),
        ("loss", (), loss),
        ("learning_rate", (), step.get("lr")),
    ]


def _sum_throughput(plan, ranks, table):
    """Return the speed of all ranks together, or None.

    table: the suite's `logs.step`.
    """
    steps = [rank["last_step"] for rank in _ranks_with_steps(ranks)]
    speeds, total = _numbers_of(steps, "ips"), len(mappings_of(plan.get("ranks")))
    if speeds and len(speeds) < total and table.get("ranks") == "first":
        speeds = [sum(speeds) / len(speeds) * total]  # the ranks go at one pace
    return _sum_or_none(speeds)


def _read_evaluation(ranks):
    evaluations = (rank["evaluation"] for rank in ranks if isinstance(rank.get("evaluation"), dict))
    return [
        ("evaluation", (key,), value)
        for key, value in next(evaluations, {}).items()
        if key not in ("line", "epoch", "step", "global_step")
    ]


def _count_restarts(record, attempts):
    if _is_number(record.get("restarts")):
        return record["restarts"]
    return max(len(attempts) - 1, 0)


def _numbers_of(entries, key):
    return [entry[key] for entry in entries if _is_number(entry.get(key))]


def _sum_or_none(values):
    if not values:
        return None
    return sum(values)


def _only_numbers(entry):
    return {key: value for key, value in entry.items() if finite_number(value) is not None}


def _is_number(value):
    """Return true for a number that the exposition format can hold."""
    if isinstance(value, float):
        return True
    return finite_number(value) is not None


def _format_figure(value):
    if not isinstance(value, float) or math.isfinite(value):
        return repr(value)
    if math.isnan(value):
        return "NaN"
    if value > 0:
        return "+Inf"
    return "-Inf"


def _format_label(value, secrets):
    if value is None:
        value = ""
    text = printable(value, *secrets, limit=200)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def file_name(plan, record):
    """Return the file's name in the collector's directory: one per job of a site.

    So runs of a job take each other's place and the directory stays small.
    """
    site, job = plan.get("site") or "site", record.get("job") or "job"
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{site}-{job}")
    return f"trainyard-{stem[:200]}.prom"


def newer(path, text):
    """Return true if the file at `path` is of a later run than `text`.

    The time of the runs' start counts. A file that cannot be read is not of a later run.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            installed = _START.search(handle.read(1 << 20))
    except OSError:
        return False
    offered = _START.search(text)
    try:
        return bool(installed and offered) and float(installed.group(1)) > float(offered.group(1))
    except ValueError:
        return False


def put(path, text, mode, write=True):
    """Write a file whole or not at all, and return true if its content was different.

    The collector never sees half a file. write: False only compares. Raises OSError.
    """
    if _has_content(path, text):
        return False
    if write:
        replace_file(path, text, mode, sync=False)
    return True


def _has_content(path, text):
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read() == text
    except (OSError, ValueError):
        return False
