# SPDX-License-Identifier: Apache-2.0
"""`runs/index.html`: all runs that this controller knows, with small curves.

One file that loads nothing from elsewhere, as the report of a run (html_page.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_mapping,
    update_file,
    write_json,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_duration
from markupsafe import Markup

from ..live.model import number
from ..runs.run_table import Row
from . import html_page, load

NAME = "index.html"
# Beside run.json: the losses of the first rank that prints them, for the small curve.
CURVE, CURVE_POINTS, CURVE_BYTES = "curve.json", 60, 1 << 16
# A page of more runs would take long to draw. The newest are shown.
MOST_RUNS = 2000
WIDTH, HEIGHT = 120, 28
PARTS = {
    "template": "templates/index.html.j2",
    "style": "files/report.css",
    "own_style": "files/index.css",
    "script": "files/index.js",
}
TONES = {
    "completed": "good",
    "failed": "bad",
    "lost": "bad",
    "stopped": "warn",
    "running": "run",
    "stopping": "run",
}


def read_records(runs_dir: str) -> dict[str, dict[str, Any]]:
    """Return {run id: run.json} of the controller's newest runs.

    `nodes` has the names of the nodes. `epochs`, `first_step` and `unit_of_speed` are the plan's.
    """
    records = {}
    for name in load.names_in(runs_dir)[-MOST_RUNS:]:
        record = read_mapping(os.path.join(runs_dir, name, "run.json"))
        if record.get("run") == name:
            plan = read_mapping(os.path.join(runs_dir, name, "plan.json"))
            records[name] = {**record, "nodes": _node_names(record), **_step_lines(plan)}
    return records


def _step_lines(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a plan says of the step lines of its suite, empty values if it says nothing."""
    step: Any = plan
    for key in ("suite", "logs", "step"):
        step = step.get(key)
        if not isinstance(step, Mapping):
            step = {}
    return {
        "epochs": plan.get("epochs"),
        "first_step": step.get("first"),
        "unit_of_speed": step.get("unit"),
    }


def _node_names(record: Mapping[str, Any]) -> list[str]:
    """Return the nodes of the newest attempt that names some."""
    for attempt in reversed(record.get("attempts") or []):
        names = [
            str(node["node"])
            for node in (attempt or {}).get("nodes") or ()
            if isinstance(node, dict) and node.get("node")
        ]
        if names:
            return names
    return []


def write_curve(run_dir: str, series: Mapping[str, Any]) -> None:
    """Write the small curve of a run beside its record. series: the result of series.of_run."""
    losses: list[float] = []
    for attempt in series.get("attempts") or ():
        by_rank = attempt.get("series") or {}
        if by_rank:
            rows = by_rank[min(by_rank)]
            losses += [loss for loss in map(number, rows.get("loss") or ()) if loss is not None]
    step = max(1, -(-len(losses) // CURVE_POINTS))
    # The last one counts most: it is where the training is.
    write_json(os.path.join(run_dir, CURVE), {"loss": losses[::-1][::step][::-1]})


def write(
    runs_dir: str, site: str, rows: Sequence[Row], assets: str, now: float, write_file: bool
) -> str:
    """Write the page and return its path.

    site: the site's name, '' if the nodes were not asked. assets: directory of the role `report`.
    """
    path = os.path.join(runs_dir, NAME)
    page = {name: _read(os.path.join(assets, part)) for name, part in PARTS.items()}
    text = render(site, [_view(row, runs_dir, now) for row in rows[:MOST_RUNS]], page, now)
    if write_file:
        os.makedirs(runs_dir, mode=0o700, exist_ok=True)
    update_file(path, text, 0o600, write_file)
    return path


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as handle:
        return handle.read()


def render(
    site: str, rows: Sequence[Mapping[str, Any]], page: Mapping[str, str], now: float
) -> str:
    """Return the page's text. rows: as _view makes them. page: {part: text}."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    styles = " ".join(html_page.digest(page[name]) for name in ("style", "own_style"))
    policy = (
        f"default-src 'none'; script-src {html_page.digest(page['script'])};"
        f" style-src {styles}; base-uri 'none'; form-action 'none'"
    )
    parts = {name: Markup(page[name]) for name in PARTS if name != "template"}
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    return environment.from_string(page["template"]).render(
        parts, site=_safe(site), rows=rows, policy=policy, when=when
    )


def _view(row: Row, runs_dir: str, now: float) -> dict[str, Any]:
    """Return what the template shows of a run. Every text is safe to show, none is markup."""
    run_dir = os.path.join(runs_dir, row.run)
    report = None
    if row.mine and os.path.isfile(os.path.join(run_dir, load.PAGE)):
        report = f"{row.run}/{load.PAGE}"
    losses: list[Any] = []
    if row.mine:
        losses = read_mapping(os.path.join(run_dir, CURVE), CURVE_BYTES).get("loss") or []
    since = None
    if row.started is not None:
        since = f"{format_duration(max(0.0, now - row.started))} ago"
    speed = None
    if row.speed is not None:
        speed = f"{row.speed:.4g} {row.unit or ''}".rstrip()
    return {
        "run": row.run,
        "report": report,
        "tone": TONES.get(row.state, "none"),
        "points": points_of(losses),
        "loss": None if row.loss is None else f"{row.loss:.4g}",
        "nodes": _safe(", ".join(row.nodes)),
        "percent": None if row.fraction is None else round(100 * row.fraction),
        **{"speed": _safe(speed), "since": since, "progress": _safe(row.progress)},
        **{"job": _safe(row.job), "state": _safe(row.state)},
        **{"owner": _safe(row.owner), "code": _safe(row.code)},
        "silent": _safe(", ".join(row.silent)),
    }


def _safe(text: str | None) -> str | None:
    """Return a text without control characters, None for nothing."""
    if not text:
        return None
    return printable(text, limit=500)


def points_of(values: Sequence[Any]) -> str | None:
    """Return the points of a small curve for an SVG polyline, None for less than two."""
    numbers = [value for value in map(number, values[-CURVE_POINTS:]) if value is not None]
    if len(numbers) < 2:
        return None
    least, most = min(numbers), max(numbers)
    height = (most - least) or 1.0
    wide = WIDTH / (len(numbers) - 1)
    return " ".join(
        f"{at * wide:.1f},{1 + (HEIGHT - 2) * (most - value) / height:.1f}"
        for at, value in enumerate(numbers)
    )
