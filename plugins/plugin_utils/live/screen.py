# SPDX-License-Identifier: Apache-2.0
"""The live view as text: a picture of the run for a terminal. Pure.

plain_lines.py has the lines for a pipe. A line of the picture is a list of (text, style). A style
is missing (None) or one of STYLES, whose colours the callback plugin knows.
"""

from __future__ import annotations

import collections

from ansible_collections.trainyard.cluster.plugins.module_utils.base import text_layout
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import (
    fold_names,
    format_clock,
    format_ranges,
)

from . import live_warnings
from .model import number, place_words

STYLES = ("good", "bad", "warn", "gone", "quiet")
# columns and rows: of the terminal. utf8: true if it shows more than ASCII.
Look = collections.namedtuple("Look", "columns rows utf8")
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


def _speed_text(value, unit):
    digits = 0
    if value < 100:
        digits = 2
    return f"{value:.{digits}f} {unit or 'samples/s'}"


def _speed_digits(value):
    """Return a speed as text, without its unit."""
    return _speed_text(value, "").split()[0]


def _loss_text(value):
    """Return a loss as words.

    None stands for what is not a number.
    """
    if value is None:
        return "loss nan"
    return f"loss {value:.4g}"


def _attempt_text(status):
    """Return the words for an attempt after the first one, else an empty text."""
    if (status.get("attempt") or 1) > 1:
        return "attempt {}".format(status["attempt"])
    return ""


def step_text(step, epochs, unit, first=None):
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
        words.append("{:.2f} {}".format(speed, unit or "samples/s"))
    if eta is not None:
        words.append(f"ETA {format_clock(eta)}")
    return "  ".join(words)


def _label(rank):
    """Return a rank's state, of a failed one with the reason."""
    if rank["state"] != "failed":
        return rank["state"]
    if rank["signal"]:
        return "failed ({})".format(rank["signal"])
    if rank["exit_code"] is None:
        return "failed (end not observed)"
    return "failed (exit code {})".format(rank["exit_code"])


def rank_text(ranks):
    """Return the states of a node's ranks in few words.

    Such as 'rank 0 training', '8 ranks training', or each group with its ranks.
    """
    groups = {}
    for rank in ranks:
        groups.setdefault(_label(rank), []).append(str(rank["rank"]))
    if len(ranks) > 1 and len(groups) == 1:
        return f"{len(ranks)} ranks {next(iter(groups))}"
    return ", ".join(f"rank {format_ranges(names)} {state}" for state, names in groups.items())


def node_line(status):
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


def size_text(status):
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


def _fit_words(words, room):
    """Return [(importance, text, style)] as a line of at most `room` columns.

    The least important words (highest number) are left out first.
    """
    words = [word for word in words if word[1]]
    while len(words) > 1 and sum(text_layout.width(text) + 2 for _i, text, _s in words) - 2 > room:
        words.remove(max(words, key=lambda word: word[0]))
    line = []
    for _importance, text, style in words:
        line += [(text, style), ("  ", None)]
    return line[:-1]


def _head_line(watch, seconds, look):
    """Return the line with the job, its size and its times."""
    status, left = watch.known()[0], watch.left()
    words = [
        (0, text_layout.cut(status["job"], max(8, look.columns // 2)), None),
        (2, size_text(status), None),
        (3, _attempt_text(status), "warn"),
        (1, f"elapsed {format_clock(watch.elapsed(seconds))}", None),
    ]
    if left is not None:
        words.append((1, f"ETA {format_clock(left)}", None))
    return _fit_words([*words, (4, "run {}".format(status["run"]), "quiet")], look.columns)


def _progress_line(watch, look):
    """Return the line with the bar, the percentage and the step."""
    fraction, leading = watch.fraction(), watch.leading()
    words, style, signs = [""], None, text_layout.BAR_ASCII
    if fraction is not None:
        words = [f" {int(fraction * 100):3d} %"]
    if leading:
        status, rank = leading
        words += place_words(rank["step"], status.get("epochs"), status.get("first_step"))
    text = "  ".join(words).rstrip()
    size = max(10, min(40, look.columns - text_layout.width(text) - 2))
    if look.utf8:
        signs = text_layout.BAR
    if fraction == 1:
        style = "good"
    return [(text_layout.bar(fraction, size, signs), style), (text, None)]


def _pace_line(watch, look):
    """Return the line with the loss, its curve and the speed of all ranks."""
    leading, unit, words = watch.leading(), "", []
    if leading:
        status, rank = leading
        unit = status.get("unit_of_speed")
        if "loss" in rank["step"]:
            words += _loss_words(watch, number(rank["step"]["loss"]), look)
    speed = watch.throughput()
    if speed:
        words.append((1, _throughput_text(*speed, unit), None))
    return _fit_words(words, look.columns)


def _loss_words(watch, loss, look):
    style, signs = None, text_layout.CURVE_ASCII
    if loss is None:
        style = "bad"
    if look.utf8:
        signs = text_layout.CURVE
    size = max(8, min(40, look.columns - 50))
    return [
        (0, _loss_text(loss), style),
        (2, text_layout.curve(watch.losses.values, size, signs), None),
    ]


def _throughput_text(total, count, each, unit):
    """Return a summed speed with the number of its ranks.

    each: one rank's speed, or None.
    """
    text = _speed_text(total, unit)
    if count == 1:
        return text
    if each:
        return f"{text} ({count} x {_speed_digits(each)})"
    return f"{text} ({count} ranks)"


def evaluation_words(watch):
    """Return the last evaluation as [(importance, text, style)], or [].

    The main figure comes first.
    """
    figures = watch.figures()[:4]
    if not figures:
        return []
    words = [(0, "evaluation", None)]
    for index, (name, value) in enumerate(figures):
        if number(value) is not None:
            value = f"{value:.4g}"
        words.append((2 * index, f"{name} {value}", None))
    places = place_words(watch.evaluation["figures"], None, watch.evaluation["first"])[:1]
    return words + [(1, f"({text})", None) for text in places]


def slowest_text(watch):
    """Return (the slowest rank compared with the median, style).

    The text is empty where ranks show no speed of their own.
    """
    slowest, leading = watch.slowest(), watch.leading()
    if not slowest or not leading:
        return "", None
    text, style = "slowest rank {} on {}".format(slowest["rank"], slowest["node"]), None
    if slowest["share"] is not None:
        speed = _speed_text(slowest["speed"], leading[0].get("unit_of_speed"))
        percent, median = round(100 * slowest["share"]), _speed_digits(slowest["median"])
        text += f": {speed}, {percent} % of the median {median}"
    if slowest["behind"]:
        text += ", {} steps behind".format(slowest["behind"])
    if slowest["behind"] or (slowest["share"] or 1) < LAGS:
        style = "warn"
    return text, style


# --- the nodes


def _describe_node(watch, name, seconds):
    """Return (state, ranks, counts of ranks) of one node, as text.

    The counts are without the ranks' numbers, so that nodes can be grouped.
    """
    node = watch.nodes.get(name)
    if node is None:
        return "-", "not asked yet", "not asked yet"
    status = node["status"]
    if not status.get("found"):
        return "none", "no such run here", "no such run here"
    text = rank_text(status["ranks"])
    if not status.get("only_first_prints") and not status["ended"]:
        text += _own_steps_text(status)
    state = status["state"]
    if node["unreachable"]:
        state = "unreachable"
    elif watch.silent(name, seconds):
        state = "no answer"
    return state, text, _count_labels(status["ranks"])


def _count_labels(ranks):
    """Return the ranks' states, such as '1 failed (SIGKILL), 7 training'."""
    counts = collections.Counter(_label(rank) for rank in ranks)
    if len(counts) == 1:
        plural = "s" * (len(ranks) > 1)
        return f"{len(ranks)} rank{plural} {next(iter(counts))}"
    return ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))


def _own_steps_text(status):
    """Return the step and the summed speed of a node's own ranks."""
    steps = [rank["step"] for rank in status["ranks"] if rank.get("step")]
    if not steps:
        return ""
    words = place_words(steps[0], status.get("epochs"), status.get("first_step"))[-1:]
    speeds = [number(step.get("ips")) for step in steps]
    if None not in speeds:
        words.append(_speed_text(sum(speeds), status.get("unit_of_speed")))
    return "".join("  " + word for word in words)


def _node_rows(watch, seconds, room):
    """Return the lines of the nodes, at most `room` of them.

    Where they are too many, lines stand for groups. A group holds the nodes whose state and ranks
    read the same.
    """
    names = watch.order()
    texts = {name: _describe_node(watch, name, seconds) for name in names}
    if len(names) <= min(room, SINGLE_NODES):
        size = max(6, min(24, max(text_layout.width(name) for name in names)))
        return [_node_row(text_layout.fill(name, size), *texts[name][:2]) for name in names]
    groups = {}
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
            rows.append(_node_row(text_layout.fill(name, 10), *texts[name][:2]))
        else:
            rows.append(_group_row(*key, groups[key]))
    hidden = order[len(visible) :]
    if hidden:
        count = sum(len(groups[key]) for key in hidden)
        rows.append([(f"{count} more nodes in {len(hidden)} other states", "quiet")])
    return rows


def _count_states(names, order, groups):
    """Return all nodes in one line: how many are in which state."""
    states = collections.Counter()
    for key in order:
        states[key[0]] += len(groups[key])
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"{len(names)} nodes  {counts}"


def _group_row(state, ranks, members):
    title = text_layout.fill(f"{len(members)} nodes", 10)
    return _node_row(title, state, f"{ranks} each  {fold_names(members)}")


def style_of(state):
    """Return the style of a node's state, or None."""
    return _STYLE.get(state)


def _node_row(name, state, text):
    return [(name + "  ", None), (f"{state!s:<11} ", style_of(state)), (text, None)]


def picture(watch, seconds, look):
    """Return the lines for a terminal.

    None is wider than look.columns - 1. They are fewer than look.rows. seconds: the clock that
    Watch.add was given. look: a Look.
    """
    # A sign in the last column makes some terminals wrap.
    look = look._replace(columns=look.columns - 1)
    room, lines, warnings = max(1, look.rows - 1), [], []
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


def _run_lines(watch, seconds, look):
    """Return the run's own lines, without empty ones."""
    lines = [
        _head_line(watch, seconds, look),
        _progress_line(watch, look),
        _pace_line(watch, look),
        _fit_words(evaluation_words(watch), look.columns),
        [slowest_text(watch)],
    ]
    return [line for line in lines if any(text for text, _style in line)]


def _warning_lines(watch, seconds):
    """Return at most MOST_WARNINGS lines with the warnings."""
    texts = ["! " + text for _kind, _names, text in live_warnings.warnings(watch, seconds)]
    if len(texts) > MOST_WARNINGS:
        count = len(texts) - MOST_WARNINGS + 1
        texts[MOST_WARNINGS - 1 :] = [f"! and {count} more warnings"]
    return [[(text, "warn")] for text in texts]


def _cut_line(line, room):
    """Return a line of at most `room` columns."""
    shown = []
    for text, style in line:
        text = text_layout.cut(text, room)
        room -= text_layout.width(text)
        if text:
            shown.append((text, style))
    return shown


def repaint(stood, width, painted):
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
