# SPDX-License-Identifier: Apache-2.0
"""The live view as text: a picture of the run for a terminal. Pure.

plain_lines.py has the lines for a pipe. A line of the picture is a list of (text, style). A style
is missing (None) or one of STYLES, whose colours the callback plugin knows.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import (
    fold_names,
    format_clock,
    format_ranges,
)

from ..base import text_columns
from . import live_warnings
from .model import Json, Watch, number, place_words

STYLES = ("good", "bad", "warn", "gone", "quiet")
Style = str | None
Line = list[tuple[str, Style]]
RankedWord = tuple[int, str, Style]  # importance (0: the most important one), text, style


class Look(NamedTuple):
    """A terminal: its size, and whether it shows more than ASCII."""

    columns: int
    rows: int
    utf8: bool


# Up to so many nodes have a line each. More are grouped by their state.
SINGLE_NODES = 16
MOST_WARNINGS = 4
# Below this share of the median speed a rank is worth a colour.
LAGS = 0.8
_STYLE = {
    "completed": "good",
    "failed": "bad",
    "lost": "bad",
    "unreachable": "gone",
    "no answer": "gone",
    "stopping": "warn",
    "stopped": "warn",
    "none": "gone",
}


def _speed_text(value: float, unit: str | None) -> str:
    digits = 0
    if value < 100:
        digits = 2
    return f"{value:.{digits}f} {unit or 'samples/s'}"


def _speed_digits(value: float) -> str:
    """Return a speed as text, without its unit."""
    return _speed_text(value, "").split()[0]


def _loss_text(value: float | None) -> str:
    """Return a loss as words.

    None stands for what is not a number.
    """
    if value is None:
        return "loss nan"
    return f"loss {value:.4g}"


def _attempt_text(status: Json) -> str:
    """Return the words for an attempt after the first one, else an empty text."""
    if (status.get("attempt") or 1) > 1:
        return f"attempt {status['attempt']}"
    return ""


def step_text(
    step: Json | None, epochs: int | None, unit: str | None, first: Json | None = None
) -> str:
    """Return the words for one step record: epoch and step of total, loss, speed, ETA.

    They hold only what the log says, and count from 1. first: what the suite counts epochs and
    steps from, such as {epoch: 0, step: 0}.
    """
    if not step:
        return ""
    words = place_words(step, epochs, first)
    loss, speed, eta = (number(step.get(key)) for key in ("loss", "ips", "eta"))
    if "loss" in step:
        words.append(_loss_text(loss))
    if speed is not None:
        words.append(f"{speed:.2f} {unit or 'samples/s'}")
    if eta is not None:
        words.append(f"ETA {format_clock(eta)}")
    return "  ".join(words)


def _label(rank: Json) -> str:
    """Return a rank's state, of a failed one with the reason."""
    if rank["state"] != "failed":
        return rank["state"]
    if rank["signal"]:
        return f"failed ({rank['signal']})"
    if rank["exit_code"] is None:
        return "failed (end not observed)"
    return f"failed (exit code {rank['exit_code']})"


def rank_text(ranks: Sequence[Json]) -> str:
    """Return the states of a node's ranks in few words.

    Such as 'rank 0 training', '8 ranks training', or each group with its ranks.
    """
    groups: dict[str, list[str]] = {}
    for rank in ranks:
        groups.setdefault(_label(rank), []).append(str(rank["rank"]))
    if len(ranks) > 1 and len(groups) == 1:
        return f"{len(ranks)} ranks {next(iter(groups))}"
    return ", ".join(f"rank {format_ranges(names)} {state}" for state, names in groups.items())


def node_line(status: Json) -> str:
    """Return one node's plain line.

    The step comes from the first rank of the node whose log has one.
    """
    if not status.get("found"):
        return f"{status.get('node', '?')!s:<10} no such run here"
    text = f"{status['node']!s:<10} {status['state']!s:<9} {rank_text(status['ranks'])}"
    step = next((rank["step"] for rank in status["ranks"] if rank["step"]), None)
    if step:
        step = dict(step, eta=step.get("eta"))
        if status["ended"]:
            step["eta"] = None
        epochs, unit = status.get("epochs"), status.get("unit_of_speed")
        text += "  " + step_text(step, epochs, unit, status.get("first_step"))
    return text


# --- the run's own lines


def size_text(status: Json) -> str:
    """Return the size of a run, such as '2 nodes x 8 gpu' or '2 nodes, 3 ranks'."""
    nodes, ranks = len(status["nodes"]), status.get("ranks_in_all") or len(status["ranks"])
    text = f"{nodes} nodes"
    if nodes == 1:
        text = "1 node"
    if ranks % nodes:
        return f"{text}, {ranks} ranks"
    unit = status.get("accelerator")
    if not unit:
        unit = "ranks"
        if ranks == nodes:
            unit = "rank"
    return f"{text} x {ranks // nodes} {unit}"


def _fit_words(words: Sequence[RankedWord], room: int) -> Line:
    """Return [(importance, text, style)] as a line of at most `room` columns.

    The least important words (highest number) are left out first.
    """
    words = [word for word in words if word[1]]
    while len(words) > 1 and sum(text_columns.width(text) + 2 for _i, text, _s in words) - 2 > room:
        words.remove(max(words, key=lambda word: word[0]))
    line: Line = []
    for _importance, text, style in words:
        line += [(text, style), ("  ", None)]
    return line[:-1]


def _head_line(watch: Watch, seconds: float, look: Look) -> Line:
    """Return the line with the job, its size and its times."""
    status, left = watch.known()[0], watch.left()
    words: list[RankedWord] = [
        (0, text_columns.cut(status["job"], max(8, look.columns // 2)), None),
        (2, size_text(status), None),
        (3, _attempt_text(status), "warn"),
        (1, f"elapsed {format_clock(watch.elapsed(seconds))}", None),
    ]
    if left is not None:
        words.append((1, f"ETA {format_clock(left)}", None))
    return _fit_words([*words, (4, f"run {status['run']}", "quiet")], look.columns)


def _progress_line(watch: Watch, look: Look) -> Line:
    """Return the line with the bar, the percentage and the step."""
    fraction, leading = watch.fraction(), watch.leading()
    words, signs = [""], text_columns.BAR_ASCII
    style: Style = None
    if fraction is not None:
        words = [f" {int(fraction * 100):3d} %"]
    if leading:
        status, rank = leading
        words += place_words(rank["step"], status.get("epochs"), status.get("first_step"))
    text = "  ".join(words).rstrip()
    size = max(10, min(40, look.columns - text_columns.width(text) - 2))
    if look.utf8:
        signs = text_columns.BAR
    if fraction == 1:
        style = "good"
    return [(text_columns.bar(fraction, size, signs), style), (text, None)]


def _pace_line(watch: Watch, look: Look) -> Line:
    """Return the line with the loss, its curve and the speed of all ranks."""
    leading, unit = watch.leading(), None
    words: list[RankedWord] = []
    if leading:
        status, rank = leading
        unit = status.get("unit_of_speed")
        if "loss" in rank["step"]:
            words += _loss_words(watch, number(rank["step"]["loss"]), look)
    speed = watch.throughput()
    if speed:
        words.append((1, _throughput_text(*speed, unit), None))
    return _fit_words(words, look.columns)


def _loss_words(watch: Watch, loss: float | None, look: Look) -> list[RankedWord]:
    style: Style = None
    signs = text_columns.CURVE_ASCII
    if loss is None:
        style = "bad"
    if look.utf8:
        signs = text_columns.CURVE
    size = max(8, min(40, look.columns - 50))
    return [
        (0, _loss_text(loss), style),
        (2, text_columns.curve(watch.losses.values, size, signs), None),
    ]


def _throughput_text(total: float, count: int, each: float | None, unit: str | None) -> str:
    """Return a summed speed with the number of its ranks.

    each: one rank's speed, or None.
    """
    text = _speed_text(total, unit)
    if count == 1:
        return text
    if each:
        return f"{text} ({count} x {_speed_digits(each)})"
    return f"{text} ({count} ranks)"


def evaluation_words(watch: Watch) -> list[RankedWord]:
    """Return the last evaluation as [(importance, text, style)], or [].

    The main figure comes first.
    """
    evaluation, figures = watch.evaluation, watch.figures()[:4]
    if not figures or evaluation is None:
        return []
    words: list[RankedWord] = [(0, "evaluation", None)]
    for index, (name, value) in enumerate(figures):
        if number(value) is not None:
            value = f"{value:.4g}"
        words.append((2 * index, f"{name} {value}", None))
    places = place_words(evaluation.figures, None, evaluation.first)[:1]
    return words + [(1, f"({text})", None) for text in places]


def slowest_text(watch: Watch) -> tuple[str, Style]:
    """Return (the slowest rank compared with the median, style).

    The text is empty where ranks show no speed of their own.
    """
    slowest, leading = watch.slowest(), watch.leading()
    if not slowest or not leading:
        return "", None
    text = f"slowest rank {slowest.rank} on {slowest.node}"
    if slowest.share is not None and slowest.speed is not None and slowest.median is not None:
        speed = _speed_text(slowest.speed, leading[0].get("unit_of_speed"))
        median = _speed_digits(slowest.median)
        text += f": {speed}, {round(100 * slowest.share)} % of the median {median}"
    if slowest.behind:
        text += f", {slowest.behind} steps behind"
    if slowest.behind or (slowest.share or 1) < LAGS:
        return text, "warn"
    return text, None


# --- the nodes


def _describe_node(watch: Watch, name: str, seconds: float) -> tuple[str, str, str]:
    """Return (state, ranks, counts of ranks) of one node, as text.

    The counts are without the ranks' numbers, so that nodes can be grouped.
    """
    node = watch.nodes.get(name)
    if node is None:
        return "-", "not asked yet", "not asked yet"
    status = node.status
    if not status.get("found"):
        return "none", "no such run here", "no such run here"
    text = rank_text(status["ranks"])
    if not status.get("only_first_prints") and not status["ended"]:
        text += _own_steps_text(status)
    state = status["state"]
    if node.unreachable:
        state = "unreachable"
    elif watch.silent(name, seconds):
        state = "no answer"
    return state, text, _count_labels(status["ranks"])


def _count_labels(ranks: Sequence[Json]) -> str:
    """Return the ranks' states, such as '1 failed (SIGKILL), 7 training'."""
    counts = collections.Counter(_label(rank) for rank in ranks)
    if len(counts) == 1:
        plural = "s" * (len(ranks) > 1)
        return f"{len(ranks)} rank{plural} {next(iter(counts))}"
    return ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))


def _own_steps_text(status: Json) -> str:
    """Return the step and the summed speed of a node's own ranks."""
    steps = [rank["step"] for rank in status["ranks"] if rank.get("step")]
    if not steps:
        return ""
    words = place_words(steps[0], status.get("epochs"), status.get("first_step"))[-1:]
    figures = [number(step.get("ips")) for step in steps]
    speeds = [speed for speed in figures if speed is not None]
    if len(speeds) == len(figures):
        words.append(_speed_text(sum(speeds), status.get("unit_of_speed")))
    return "".join("  " + word for word in words)


Group = tuple[str, str]  # state, counts of ranks


def _node_rows(watch: Watch, seconds: float, room: int) -> list[Line]:
    """Return the lines of the nodes, at most `room` of them.

    Where they are too many, lines stand for groups. A group holds the nodes whose state and ranks
    read the same.
    """
    names = watch.order()
    texts = {name: _describe_node(watch, name, seconds) for name in names}
    if len(names) <= min(room, SINGLE_NODES):
        size = max(6, min(24, max(text_columns.width(name) for name in names)))
        return [_node_row(text_columns.fill(name, size), *texts[name][:2]) for name in names]
    groups: dict[Group, list[str]] = {}
    for name in names:
        state, _text, short = texts[name]
        groups.setdefault((state, short), []).append(name)
    # Trouble comes first, then the largest group.
    order = sorted(
        groups, key=lambda key: (key[0] not in _STYLE or key[0] == "completed", -len(groups[key]))
    )
    if len(order) > room == 1:
        return [[(_count_states(names, order, groups), None)]]
    visible = order
    if len(order) > room:
        visible = order[: room - 1]
    rows = []
    for key in visible:
        if len(groups[key]) == 1:
            name = groups[key][0]
            rows.append(_node_row(text_columns.fill(name, 10), *texts[name][:2]))
        else:
            rows.append(_group_row(*key, groups[key]))
    hidden = order[len(visible) :]
    if hidden:
        count = sum(len(groups[key]) for key in hidden)
        rows.append([(f"{count} more nodes in {len(hidden)} other states", "quiet")])
    return rows


def _count_states(
    names: Collection[str], order: Sequence[Group], groups: Mapping[Group, Collection[str]]
) -> str:
    """Return all nodes in one line: how many are in which state."""
    states: collections.Counter[str] = collections.Counter()
    for key in order:
        states[key[0]] += len(groups[key])
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"{len(names)} nodes  {counts}"


def _group_row(state: str, ranks: str, members: Collection[str]) -> Line:
    title = text_columns.fill(f"{len(members)} nodes", 10)
    return _node_row(title, state, f"{ranks} each  {fold_names(members)}")


def style_of(state: object) -> Style:
    """Return the style of a node's state, or None."""
    return _STYLE.get(str(state))


def _node_row(name: str, state: object, text: str) -> Line:
    return [(name + "  ", None), (f"{state!s:<11} ", style_of(state)), (text, None)]


def picture(watch: Watch, seconds: float, look: Look) -> list[Line]:
    """Return the lines for a terminal.

    None is wider than look.columns - 1. They are fewer than look.rows. seconds: the clock that
    Watch.add was given. look: a Look.
    """
    # A sign in the last column makes some terminals wrap.
    look = look._replace(columns=look.columns - 1)
    room = max(1, look.rows - 1)
    lines: list[Line] = []
    warnings: list[Line] = []
    if watch.known():
        lines = _run_lines(watch, seconds, look)
        warnings = _warning_lines(watch, seconds)
    rows = _node_rows(watch, seconds, max(1, room - len(lines) - len(warnings)))
    # In a terminal that is too low for all of it, warnings and progress come before the rest.
    while len(lines) > 2 and len(lines) + len(rows) + len(warnings) > room:
        lines.pop()
    shown = lines + rows + warnings
    if len(shown) > room:
        shown = lines + warnings + rows
    return [_cut_line(line, look.columns) for line in shown[:room]]


def _run_lines(watch: Watch, seconds: float, look: Look) -> list[Line]:
    """Return the run's own lines, without empty ones."""
    lines = [
        _head_line(watch, seconds, look),
        _progress_line(watch, look),
        _pace_line(watch, look),
        _fit_words(evaluation_words(watch), look.columns),
        [slowest_text(watch)],
    ]
    return [line for line in lines if any(text for text, _style in line)]


def _warning_lines(watch: Watch, seconds: float) -> list[Line]:
    """Return at most MOST_WARNINGS lines with the warnings."""
    texts = ["! " + text for _kind, _names, text in live_warnings.warnings(watch, seconds)]
    if len(texts) > MOST_WARNINGS:
        count = len(texts) - MOST_WARNINGS + 1
        texts[MOST_WARNINGS - 1 :] = [f"! and {count} more warnings"]
    return [[(text, "warn")] for text in texts]


def _cut_line(line: Line, room: int) -> Line:
    """Return a line of at most `room` columns."""
    shown: Line = []
    for text, style in line:
        text = text_columns.cut(text, room)
        room -= text_columns.width(text)
        if text:
            shown.append((text, style))
    return shown


def repaint(stood: Sequence[int], width: int, painted: Sequence[str]) -> str:
    """Return the text that makes a terminal show lines where others stood.

    stood: the widths of the lines above the cursor that are to go. width: the terminal's columns
    now. painted: the new lines as they are written.

    A line that is wider than the terminal has become takes several rows: terminals wrap existing
    text again. A few, such as xterm, cut it instead. There a few rows above the picture are lost.
    """
    rows = sum(max(1, -(-size // max(1, width))) for size in stood)
    up, clear = "\r", ""
    if rows:
        up = f"\r\x1b[{rows}A"
    if rows > len(stood):
        clear = "\x1b[J"
    return up + clear + "".join(line + "\x1b[K\n" for line in painted) + "\x1b[J"
