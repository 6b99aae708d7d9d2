# SPDX-License-Identifier: Apache-2.0
"""The summary of an attempt's end, in lines for the terminal.

Pure. The nodes' logs are not trusted: a figure that is not a number is shown as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.states import Outcome
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    secrets_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_clock

from ..plan.render import format_published
from . import verdict_block

_HEADER = "rank  node        device  endpoint                first loss  last loss  "
# JSON objects: the plan, a rank's or a node's findings, a verdict, a step of a log.
Json = Mapping[str, Any]


def reported_endpoints(nodes: Iterable[Json]) -> list[str] | None:
    """Return the endpoints that the first node with any reported, or None."""
    return next((node["endpoints"] for node in nodes if node.get("endpoints")), None)


def are_as_planned(planned: Sequence[str], reported: Sequence[str]) -> bool:
    """Return whether reported endpoints are the planned ones.

    A planned port of * was left to the launcher.
    """
    return len(planned) == len(reported) and all(
        one == other or (one.endswith(":*") and one.rpartition(":")[0] == other.rpartition(":")[0])
        for one, other in zip(planned, reported)
    )


def log_table(plan: Json) -> dict[str, Any]:
    """Return the part of the suite's table about its logs."""
    return (plan.get("suite") or {}).get("logs") or {}


def format_figure(step: Json | None, key: str, form: str) -> str:
    """Return a step record's figure as text, or '-'.

    A value that is not a number (the nodes' logs are not ours) stays as it is.
    """
    value = (step or {}).get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return form % value
    if value is None:
        return "-"
    return str(value)[:20]


def evaluation_keys(evaluation: Json, plan: Json) -> list[str]:
    """Return the names of an evaluation's figures.

    The suite's main one comes first, the others as they were printed.
    """
    main: str = (log_table(plan).get("evaluation") or {}).get("main", "")
    names = [
        key
        for key in evaluation
        if key not in ("line", "epoch", "step", "global_step", "samples", main)
    ][:5]
    if main in evaluation:
        return [main, *names]
    return names


def round_figure(value: Any) -> Any:
    """Return a number with four digits that count.

    A value that is not a number (the nodes' logs are not ours) stays as it is.
    """
    if isinstance(value, (int, float)):
        return f"{value:.4g}"
    return value


def summarize(
    decided: Json,
    ranks: Sequence[Json],
    planned: Sequence[Json],
    nodes: Sequence[Json],
    shown_dir: str,
    saved: Sequence[str],
    plan: Json,
    note: str = "",
    goes_on: bool = False,
) -> list[str]:
    """Return the end of an attempt in lines, the verdict last.

    decided: the verdict. ranks: the nodes' findings of all ranks. planned: the plan's ranks. nodes:
    the nodes' findings. shown_dir: the attempt's directory as it is shown. saved: names of the
    checkpoint's files. note: a remark on the trained model. goes_on: whether the nodes restart the
    run.
    """
    by_rank = {rank["rank"]: rank for rank in ranks}
    lines = ["", f"{_HEADER}{speed_unit(plan) or 'speed':<12}  end"]
    lines += [_rank_line(item, by_rank.get(item["rank"], {})) for item in planned]
    lines += _silence_lines(decided, ranks, planned, plan)
    lines += _result_lines(ranks, plan)
    lines += _endpoint_lines(nodes, plan)
    lines += _file_lines(shown_dir, saved, note)
    if decided["outcome"] != Outcome.COMPLETED:
        lines += [f"evidence     {line}" for line in decided.get("evidence", [])]
    lines += verdict_block.block(decided, os.path.basename(os.path.dirname(shown_dir)), goes_on)
    lines.append(decided["text"])
    secrets = secrets_of(plan)
    return [printable(line, *secrets) for line in lines]


def _rank_line(planned: Json, rank: Json) -> str:
    """Return the summary's line about one rank.

    planned: its entry in the plan.
    """
    first, last = rank.get("first_step"), rank.get("last_step")
    end = rank.get("signal")
    if not end:
        end = rank.get("state", "no findings")
        if rank.get("exit_code") is not None:
            end = f"exit code {rank['exit_code']}"
    columns = (
        f"{planned['rank']:>4}",
        f"{planned['node']!s:<10}",
        f"{planned['device']!s:<6}",
        f"{planned['endpoint']!s:<22}",
        f"{format_figure(first, 'loss', '%.4f'):>10}",
        f"{format_figure(last, 'loss', '%.4f'):>9}",
        f"{format_figure(last, 'ips', '%.2f'):>12}",
        str(end),
    )
    return "  ".join(columns)


def _silence_lines(
    decided: Json, ranks: Sequence[Json], planned: Sequence[Json], plan: Json
) -> list[str]:
    """Return the summary's lines that explain why ranks printed no step."""
    by_rank = {rank["rank"]: rank for rank in ranks}
    rows = [by_rank.get(item["rank"]) for item in planned]
    silent = [rank for rank in rows if rank and not rank.get("last_step")]
    lines = []
    speed = _first_speed(ranks)
    if silent and speed is not None:
        # Data-parallel ranks take equal batches in the same steps, so the first rank's speed is
        # each one's.
        lines.append(
            "      (the suite prints steps on its first rank only; each of the"
            f" {len(planned)} ranks goes at its pace: {speed * len(planned):.2f}"
            f" {speed_unit(plan) or ''} in all)"
        )
    all_silent = ranks and len(silent) == len(planned)
    if all_silent and log_table(plan).get("step") and decided["outcome"] == Outcome.COMPLETED:
        lines.append(
            "      (no rank printed a step: fewer iterations than the suite's log interval?)"
        )
    return lines


def _first_speed(ranks: Sequence[Json]) -> float | None:
    """Return the speed of the first rank that printed one, or None.

    It is in the suite's unit.
    """
    steps = [rank.get("last_step") or {} for rank in ranks]
    return next((step["ips"] for step in steps if step.get("ips") is not None), None)


def _result_lines(ranks: Sequence[Json], plan: Json) -> list[str]:
    """Return the summary's lines about evaluation, published results and duration."""
    lines = []
    evaluation = next((rank["evaluation"] for rank in ranks if rank.get("evaluation")), None)
    if evaluation:
        figures = [
            f"{key} {round_figure(evaluation[key])}" for key in evaluation_keys(evaluation, plan)
        ]
        lines.append("evaluation   " + "  ".join(figures))
    for row in (plan.get("job") or {}).get("published") or []:
        # what the upstream documentation measured with this job, beside what was measured now
        lines.append(f"published    {format_published(row)}")
    starts = [rank["started"] for rank in ranks if rank.get("started")]
    ends = [rank["ended"] for rank in ranks if rank.get("ended")]
    if starts and ends:
        lines.append(
            f"trained      {format_clock(max(ends) - min(starts))} from the first rank's start to"
            " the last rank's end"
        )
    return lines


def _endpoint_lines(nodes: Sequence[Json], plan: Json) -> list[str]:
    """Return the summary's line about the endpoints that Paddle reports, if it does."""
    endpoints = reported_endpoints(nodes)
    if not endpoints:
        return []
    line = f"endpoints    {', '.join(endpoints)}, as Paddle reports them"
    if are_as_planned(plan.get("endpoints") or [], endpoints):
        line += ": as planned"
    return [line]


def _file_lines(shown_dir: str, saved: Sequence[str], note: str) -> list[str]:
    """Return the summary's lines about checkpoint, logs and record."""
    return [
        model_line(shown_dir, saved, note),
        f"logs         {shown_dir}/rank-*.log",
        f"run record   {os.path.dirname(shown_dir)}/run.json",
    ]


def model_line(shown_dir: str, saved: Sequence[str], note: str | None) -> str:
    """Return the summary's line about the trained model on the controller.

    saved: names of its files. note: a remark on it.
    """
    text = "none"
    if saved:
        text = f"{shown_dir}/checkpoint/ ({', '.join(saved)})"
    if note:
        text += f"; {note}"
    return f"checkpoint   {text}"


def speed_unit(plan: Json) -> str | None:
    """Return the unit of the suite's speed figure, such as 'images/s'."""
    return (log_table(plan).get("step") or {}).get("unit")
