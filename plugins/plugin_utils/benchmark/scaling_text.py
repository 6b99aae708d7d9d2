# SPDX-License-Identifier: Apache-2.0
"""The table of a benchmark as text, as Markdown and as the figures of its plot. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..base import text_columns
from ..plan.render import format_published
from . import scaling
from .scaling import Row, Training

NOTHING = "–"
WIDTH, HEIGHT, MARGIN = 420, 260, 40  # of the plot, in pixels


def heads(unit: str) -> list[str]:
    """Return the heads of the columns."""
    return [
        "nodes",
        "ranks",
        "training",
        "in all",
        unit,
        "speed-up",
        "efficiency",
        "step",
        *scaling.PARTS,
        "best",
        "outcome",
    ]


def cells(row: Row) -> list[str]:
    """Return one row of the table as texts."""
    training, whole = row.training, sum(row.parts.values())
    shares = [
        _text(row.parts.get(part), lambda seconds: f"{seconds / (whole or 1):.0%}")
        for part in scaling.PARTS
    ]
    return [
        str(len(training.nodes)),
        str(training.ranks),
        _text(training.seconds, duration),
        _text(training.whole_seconds, duration),
        _text(training.speed, lambda speed: f"{speed:.4g}"),
        _text(row.speed_up, lambda value: f"{value:.2f}"),
        _text(row.efficiency, lambda value: f"{value:.0%}"),
        _text(training.step_seconds, lambda seconds: f"{seconds:.3g} s"),
        *shares,
        training.best or NOTHING,
        training.outcome,
    ]


def _text(value: float | None, form: Callable[[float], str]) -> str:
    """Return a figure as text, a dash where it is unknown."""
    if value is None:
        return NOTHING
    return form(value)


def duration(seconds: float) -> str:
    """Return seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


def lines(rows: Sequence[Row], alone: Sequence[Training] = ()) -> list[str]:
    """Return the table for a terminal, with the published rows and what would help.

    alone: trainings of each node alone.
    """
    table = [heads(rows[0].training.unit), *(cells(row) for row in rows)]
    widths = [max(text_columns.width(line[at]) for line in table) for at in range(len(table[0]))]
    text = [
        "  ".join(text_columns.fill(cell, width) for cell, width in zip(line, widths)).rstrip()
        for line in table
    ]
    return text + remarks(rows, alone)


def remarks(rows: Sequence[Row], alone: Sequence[Training] = ()) -> list[str]:
    """Return the lines below the table."""
    text = [f"published: {format_published(row)}" for row in rows[-1].training.published]
    own = scaling.own_seconds(alone)
    if own:
        paces = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in own.items())
        text.append(f"each node alone, all at the same time, a step without loading: {paces}")
    return text + scaling.advice(rows, own)


def markdown(rows: Sequence[Row], title: str, alone: Sequence[Training] = ()) -> str:
    """Return the table as a page of Markdown."""
    head = heads(rows[0].training.unit)
    table = [head, ["---"] * len(head), *(cells(row) for row in rows)]
    runs = [f"{', '.join(row.training.nodes)}: run {row.training.run}" for row in rows]
    text = [f"# {title}", ""] + [f"| {' | '.join(line)} |" for line in table] + [""]
    return "\n".join(text + [f"- {line}" for line in remarks(rows, alone) + runs]) + "\n"


def plot(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return speed-up over nodes as places of an SVG, None where there are not two figures.

    points: [{x, y, text}]. line, ideal: paths. ticks: [{x, text}].
    """
    known = [row for row in rows if row.speed_up is not None]
    if len(known) < 2:
        return None
    first, most = len(known[0].training.nodes), len(known[-1].training.nodes)
    highest = max(most / first, *(row.speed_up or 0 for row in known))

    def place(nodes: float, speed_up: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - 2 * MARGIN) * nodes / most
        return round(x, 1), round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * speed_up / highest, 1)

    points = []
    for row in known:
        x, y = place(len(row.training.nodes), row.speed_up or 0.0)
        points.append({"x": x, "y": y, "text": f"{row.speed_up:.2f}"})
    ends = place(first, 1), place(most, most / first)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "points": points,
        "line": "M" + "L".join(f"{point['x']} {point['y']}" for point in points),
        "ideal": "M" + "L".join(f"{x} {y}" for x, y in ends),
        "axis": f"M{MARGIN} {MARGIN / 2}V{HEIGHT - MARGIN}H{WIDTH - MARGIN / 2}",
        "ticks": [
            {"x": place(len(row.training.nodes), 0)[0], "text": str(len(row.training.nodes))}
            for row in known
        ],
        "tick_y": HEIGHT - MARGIN + 18,
    }


def view(rows: Sequence[Row], alone: Sequence[Training] = ()) -> dict[str, Any]:
    """Return the section of the page that compares the runs."""
    return {
        "heads": heads(rows[0].training.unit),
        "rows": [cells(row) for row in rows],
        "remarks": remarks(rows, alone),
        "plot": plot(rows),
    }
