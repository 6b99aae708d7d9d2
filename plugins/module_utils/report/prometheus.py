# SPDX-License-Identifier: Apache-2.0
"""A run's last figures as text for Prometheus (exposition format 0.0.4), for the textfile collector
of the node exporter.

The collector reads *.prom of one directory, wants one HELP for a name over all files, and refuses
samples with timestamps; so times are gauges of their own. Nothing here reads a log: run.json and
plan.json have what is needed.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile

from ..base.sanitize import printable, secrets_of
from .curves import counted

NAME = "metrics.prom"
OUTCOMES = ("completed", "failed", "stopped", "lost", "unknown")
STATES = ("waiting", "starting", "training", "done", "failed", "killed", "stopped")
# name: (help, labels beside run and job); all are gauges, since a new run of the same job takes the
# place of the old one.
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
    """The exposition text of a run. plan: plan.json's content; record: run.json's. What is not
    known has no sample.
    """
    secrets = secrets_of(plan)
    samples = _samples(plan, record)
    who = (("run", record.get("run")), ("job", record.get("job")))
    lines = []
    for name, (words, labels) in METRICS.items():
        found = [
            (values, value) for key, values, value in samples if key == name and value is not None
        ]
        if found:
            lines += [
                f"# HELP trainyard_run_{name} {words}",
                f"# TYPE trainyard_run_{name} gauge",
            ]
        for values, value in found:
            pairs = ",".join(
                f'{key}="{_label(text, secrets)}"' for key, text in (*who, *zip(labels, values))
            )
            lines.append(f"trainyard_run_{name}{{{pairs}}} {_figure(value)}")
    return "\n".join(lines) + "\n"


def _samples(plan, record):
    """[(name, values of its own labels, value)]"""
    attempts = [a for a in record.get("attempts") or [] if isinstance(a, dict)]
    last = max(attempts, key=lambda a: a.get("number") or 0, default={})
    ranks = [r for r in last.get("ranks") or [] if isinstance(r, dict)]
    suite, launcher = plan.get("suite") or {}, plan.get("launcher") or {}
    table = (suite.get("logs") or {}).get("step") or {}
    samples = [("info", (suite.get("name"), launcher.get("name"), plan.get("site")), 1)]
    outcome = (last.get("verdict") or {}).get("outcome")
    samples += [("outcome", (name,), int(name == outcome)) for name in OUTCOMES]
    samples += [
        ("ranks", (state,), sum(r.get("state") == state for r in ranks))
        for state in STATES
        if ranks
    ]
    stepped = [r for r in ranks if isinstance(r.get("last_step"), dict)]
    first = stepped[0] if stepped else {}
    step = first.get("last_step") or {}
    speeds = [r["last_step"]["ips"] for r in stepped if _number(r["last_step"].get("ips"))]
    total = len(plan.get("ranks") or [])
    if speeds and len(speeds) < total and table.get("ranks") == "first":
        speeds = [sum(speeds) / len(speeds) * total]  # the ranks go at one pace
    lost = first.get("nan") and "loss" in step and step["loss"] is None
    saved = [r["saved_count"] for r in ranks if _number(r.get("saved_count"))]
    sizes = [r["bytes"] for r in ranks if _number(r.get("bytes"))]
    written = [r["mtime"] for r in ranks if _number(r.get("mtime"))]
    evaluation = next((r["evaluation"] for r in ranks if isinstance(r.get("evaluation"), dict)), {})
    samples += [
        ("last_step", (), counted(step, table.get("first") or {}) if step else None),
        ("loss", (), math.nan if lost else step.get("loss")),
        ("learning_rate", (), step.get("lr")),
        ("throughput", (table.get("unit"),), sum(speeds) if speeds else None),
        *(
            ("evaluation", (key,), value)
            for key, value in evaluation.items()
            if key not in ("line", "epoch", "step", "global_step")
        ),
        ("checkpoints", (), sum(saved) if saved else None),
        (
            "restarts",
            (),
            record["restarts"] if _number(record.get("restarts")) else max(len(attempts) - 1, 0),
        ),
        ("log_bytes", (), sum(sizes) if sizes else None),
        ("start_timestamp_seconds", (), record.get("started")),
        ("last_log_timestamp_seconds", (), max(written, default=None)),
        ("end_timestamp_seconds", (), last.get("ended")),
    ]
    return [sample for sample in samples if _number(sample[2])]


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _figure(value):
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _label(value, secrets):
    text = printable("" if value is None else value, *secrets, limit=200)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def file_name(plan, record):
    """The name in the collector's directory: one for a job of a site, so that runs take each
    other's place and the directory stays small.
    """
    return "trainyard-{}.prom".format(
        re.sub(
            r"[^A-Za-z0-9_.-]",
            "_",
            "{}-{}".format(plan.get("site") or "site", record.get("job") or "job"),
        )[:200]
    )


def newer(path, text):
    """Whether the file at `path` tells of a run that was started later than the one of `text`."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            there = _START.search(handle.read(1 << 20))
    except OSError:
        return False
    ours = _START.search(text)
    try:
        return bool(there and ours) and float(there.group(1)) > float(ours.group(1))
    except ValueError:
        return False


def put(path, text, mode, write=True):
    """Write a file whole or not at all; return whether it was different. The collector never sees
    half a file.
    """
    try:
        with open(path, encoding="utf-8") as handle:
            if handle.read() == text:
                return False
    except (OSError, ValueError):
        pass
    if write:
        descriptor, temporary = tempfile.mkstemp(
            dir=os.path.dirname(path) or ".", prefix=".trainyard-"
        )
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
                handle.write(text)
                os.fchmod(descriptor, mode)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    return True
