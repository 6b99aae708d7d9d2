# SPDX-License-Identifier: Apache-2.0
"""All runs of a site in one table, from the nodes' answers and the controller's records. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import tickets
from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import named
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import (
    format_duration,
)

from ..base import text_columns
from ..live.model import number, place_words

Json = Mapping[str, Any]
# The states that go on. They come first, and are never left out.
ACTIVE = ("running", "stopping")
# Of several nodes, the worst state is the attempt's.
WORST = (*ACTIVE, "failed", "lost", "stopped", "none", "completed")
# The widest column that is shown. An owner or a job may have any name.
MOST_COLUMNS = 32
HEAD = ("run", "job", "nodes", "state", "progress", "loss", "speed", "since", "owner", "verdict")


@dataclass
class Row:
    """One run. What is not known is None.

    state: running, stopping, completed, failed, stopped, lost, none, unknown or waiting. step: the
    latest step record of the first rank that prints one. speed: of that rank, in `unit`. started:
    unix seconds. last_sign: the latest write to a log, unix seconds of its node. owner:
    user@controller of the start, or the user of another account. code: the verdict's cause, else
    its own code. silent: nodes of the run that gave no answer. mine: whether the training account
    of this site runs it.
    """

    run: str
    job: str | None = None
    attempt: int | None = None
    nodes: list[str] = dataclasses.field(default_factory=list)
    state: str = "unknown"
    step: dict[str, Any] | None = None
    progress: str | None = None
    fraction: float | None = None
    loss: float | None = None
    speed: float | None = None
    unit: str | None = None
    started: float | None = None
    last_sign: float | None = None
    owner: str | None = None
    code: str | None = None
    silent: list[str] = dataclasses.field(default_factory=list)
    mine: bool = True

    @property
    def goes_on(self) -> bool:
        """Whether it is running."""
        return self.state in ACTIVE


def merge(
    answers: Mapping[str, Json], records: Mapping[str, Json], silent: Sequence[str]
) -> list[Row]:
    """Return a row for each run, those that go on first, then the newest.

    answers: {node: result of run_states_info}. records: as index_page.read_records returns them.
    silent: names of nodes that gave no answer.
    """
    entries: dict[str, dict[str, Json]] = {}
    for node, answer in answers.items():
        for entry in answer.get("runs") or ():
            entries.setdefault(entry["run"], {})[node] = entry
    rows = [
        _merge_run(run, entries.get(run) or {}, records.get(run), silent, bool(answers))
        for run in {*entries, *records}
    ]
    rows += _foreign_rows(answers)
    return sorted(rows, key=lambda row: (row.goes_on, row.run), reverse=True)


def _merge_run(
    run: str,
    entries: Mapping[str, Json],
    record: Json | None,
    silent: Sequence[str],
    is_asked: bool,
) -> Row:
    """Return the row of one run. entries: {node: its entry}. is_asked: whether any node was."""
    row = Row(run)
    if record:
        _add_record(row, record)
    if entries:
        newest = max(entry["attempt"] for entry in entries.values())
        current = [entry for entry in entries.values() if entry["attempt"] == newest]
        if row.attempt is None or newest >= row.attempt:
            _add_entries(row, newest, current)
    row.silent = [name for name in row.nodes if name in silent]
    if not entries and row.state == "running" and is_asked:
        row.state = "unknown"  # the record is of the start, and no node knows of it
    return row


def _add_record(row: Row, record: Json) -> None:
    """Add what the controller's record says of a run."""
    attempts = [item for item in record.get("attempts") or () if isinstance(item, Mapping)]
    newest = max(attempts, key=lambda item: item.get("number") or 0, default={})
    verdict = newest.get("verdict") or {}
    row.job, row.nodes = record.get("job"), list(record.get("nodes") or ())
    row.attempt, row.started = newest.get("number"), number(record.get("started"))
    row.state = str(verdict.get("outcome") or record.get("outcome") or "unknown")
    if row.state != "completed":
        row.code = verdict.get("code")
    if verdict.get("cause"):
        row.code = f"cause.{verdict['cause']}"
    ranks = [rank for rank in newest.get("ranks") or () if (rank or {}).get("last_step")]
    if ranks:
        step = min(ranks, key=lambda rank: rank.get("rank") or 0)["last_step"]
        _add_step(row, step, record.get("epochs"), record.get("first_step"))
        row.unit = record.get("unit_of_speed")


def _add_entries(row: Row, attempt: int, entries: Sequence[Json]) -> None:
    """Add what the nodes say of a run's newest attempt."""
    first = min(entries, key=lambda entry: (entry["rank"] is None, entry["rank"] or 0))
    is_judged = attempt == row.attempt and row.state not in ("running", "unknown")
    states = {entry["state"] for entry in entries}
    going_on = states & set(ACTIVE)
    if going_on or not is_judged:
        row.state = min(states, key=WORST.index)
        row.code = None
    row.job, row.nodes, row.attempt = first["job"], list(first["nodes"]), attempt
    row.owner = first["by"]
    # Of the first attempt by the record, else of this one.
    row.started = row.started or min(entry["started"] for entry in entries)
    row.last_sign = max((entry["log_time"] or 0 for entry in entries), default=0) or None
    row.unit = first["unit_of_speed"] or None
    if first["step"]:
        _add_step(row, first["step"], first["epochs"], first["first_step"])
        row.fraction = first["fraction"]


def _add_step(row: Row, step: Json, epochs: int | None, first: Json | None) -> None:
    """Add a step record to a run."""
    row.step = dict(step)
    row.loss, row.speed = number(step.get("loss")), number(step.get("ips"))
    try:
        row.progress = "  ".join(place_words(row.step, epochs, dict(first or {})))
    except (TypeError, ValueError):  # a log's figure that is no number
        row.progress = None


def _foreign_rows(answers: Mapping[str, Json]) -> list[Row]:
    """Return the rows of other users' attempts. Two users may have runs with one name."""
    rows: dict[tuple[str, str], Row] = {}
    for node, answer in answers.items():
        for item in answer.get("others") or ():
            key = (item["run"], item["user"])
            row = rows.setdefault(
                key,
                Row(item["run"], state="running", mine=False, owner=item["user"]),
            )
            row.attempt = item["attempt"]
            row.nodes.append(node)
    return list(rows.values())


def waiting_rows(answers: Mapping[str, Json]) -> list[Row]:
    """Return the rows of the starts that wait for nodes, in their order (attempts/tickets.py).

    The row of a run that is to go on stands besides.
    """
    found: dict[str, tuple[Json, list[str]]] = {}
    for node, answer in answers.items():
        for ticket in answer.get("tickets") or ():
            found.setdefault(ticket["id"], (ticket, []))[1].append(node)
    rows = []
    for ticket, nodes in sorted(found.values(), key=lambda item: tickets.order_of(item[0])):
        lists = [answers[node]["tickets"] for node in nodes]
        place, number_of_starts = tickets.place_of(lists, ticket["id"])
        row = Row(ticket["run"], nodes=nodes, state="waiting", owner=ticket["by"] or None)
        # <date>-<time>-<job>-<four digits>
        row.job = "-".join(ticket["run"].split("-")[2:-1])
        row.started, row.progress = ticket["since"], f"place {place} of {number_of_starts}"
        rows.append(row)
    return rows


def select(rows: Sequence[Row], most: int) -> list[Row]:
    """Return the rows that go on, and so many of the others."""
    ended = [row for row in rows if not row.goes_on]
    kept = {id(row) for row in ended[:most]}
    return [row for row in rows if row.goes_on or id(row) in kept]


def lines(rows: Sequence[Row], left_out: int, silent: Sequence[str], now: float) -> list[str]:
    """Return the table for people, with a last line that counts."""
    cells = [HEAD, *(_cells(row, now) for row in rows)]
    widths = [max(text_columns.width(row[at]) for row in cells) for at in range(len(HEAD))]
    widths = [min(width, MOST_COLUMNS + 8) for width in widths]
    table = []
    for row_cells in cells:
        padded = (
            text_columns.fill(text_columns.cut(text, columns), columns)
            for text, columns in zip(row_cells, widths)
        )
        table.append("  ".join(padded).rstrip())
    if not rows:
        table = []
    active = sum(row.goes_on for row in rows)
    waiting = sum(row.state == "waiting" for row in rows)
    counted = f"{active} of {len(rows) - waiting} runs go on"
    if waiting:
        counted += f"; {waiting} more wait for nodes"
    if left_out:
        counted += f"; {left_out} older ones are not shown (-e most=N)"
    if silent:
        counted += f"; no answer from {named(list(silent))}"
    return [*table, counted]


def _cells(row: Row, now: float) -> tuple[str, ...]:
    """Return the texts of a row."""
    state = row.state
    if row.silent:
        state += f" ({len(row.silent)} silent)"
    loss, speed, since = "-", "-", "-"
    if row.loss is not None:
        loss = f"{row.loss:.4g}"
    if row.speed is not None:
        speed = f"{row.speed:.4g} {row.unit or ''}".rstrip()
    if row.started is not None:
        since = f"{format_duration(max(0.0, now - row.started))} ago"
    texts = (
        *(row.run, row.job or "-", named(row.nodes, 2) or "-", state),
        *(row.progress or "-", loss, speed, since, row.owner or "-", row.code or "-"),
    )
    return tuple(printable(text, limit=200) for text in texts)


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain data for programs."""
    return [dataclasses.asdict(row) for row in rows]
