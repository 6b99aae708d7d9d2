# SPDX-License-Identifier: Apache-2.0
"""The live view as text: a picture of the run for a terminal; ticker.py has the lines for a pipe.
Pure, controller only.

A line of the picture is a list of (text, style); a style is None or one of STYLES, and who draws
knows its colour.
"""

from __future__ import annotations

import collections

from ..base import text_layout
from ..base.text_layout import span
from . import live_warnings
from .model import number, place_words

STYLES = ("good", "bad", "warn", "gone", "quiet")
# columns and rows of the terminal; utf8: whether it shows more than ASCII.
Look = collections.namedtuple("Look", "columns rows utf8")
# A line for each node up to so many; more are put together by how they are.
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


def _speed(value, unit):
    return "%.*f %s" % (2 if value < 100 else 0, value, unit or "samples/s")


def step_text(step, epochs, unit, first=None):
    """Return the words for one step record: epoch and step of total, loss, speed, ETA; only what
    the log says.

    first: what the suite counts epochs and steps from, such as {epoch: 0, step: 0}; people count
    from 1.
    """
    if not step:
        return ""
    words = place_words(step, epochs, first)
    loss, speed, eta = (number(step.get(key)) for key in ("loss", "ips", "eta"))
    if "loss" in step:
        words.append("loss %s" % ("nan" if loss is None else f"{loss:.4g}"))
    if speed is not None:
        words.append("{:.2f} {}".format(speed, unit or "samples/s"))
    if eta is not None:
        words.append(f"ETA {span(eta)}")
    return "  ".join(words)


def _label(rank):
    if rank["state"] != "failed":
        return rank["state"]
    code = (
        "end not observed"
        if rank["exit_code"] is None
        else "exit code {}".format(rank["exit_code"])
    )
    return "failed (%s)" % (rank["signal"] or code)


def rank_text(ranks):
    """Return how a node's ranks are, shortest form first: 'rank 0 training', '8 ranks training', or
    each group with its ranks.
    """
    groups = {}
    for rank in ranks:
        groups.setdefault(_label(rank), []).append(str(rank["rank"]))
    if len(ranks) > 1 and len(groups) == 1:
        return "%d ranks %s" % (len(ranks), next(iter(groups)))
    return ", ".join(f"rank {text_layout.ranges(names)} {state}" for state, names in groups.items())


def node_line(status):
    """Return one node's plain line; the step comes from the first rank of the node whose log has
    one.
    """
    if not status.get("found"):
        return "%-10s no such run here" % status.get("node", "?")
    best = next((rank for rank in status["ranks"] if rank["step"]), None)
    text = "%-10s %-9s %s" % (status["node"], status["state"], rank_text(status["ranks"]))
    if best:
        step = dict(best["step"], eta=None if status["ended"] else best["step"].get("eta"))
        text += "  " + step_text(
            step, status.get("epochs"), status.get("unit_of_speed"), status.get("first_step")
        )
    return text


# --- the run's own lines


def size_text(status):
    """Return how large a run is: '2 nodes x 8 gpu', or its nodes and ranks where they do not come
    out even.
    """
    nodes, ranks = len(status["nodes"]), status.get("ranks_in_all") or len(status["ranks"])
    count = "%d node%s" % (nodes, "" if nodes == 1 else "s")
    if ranks % nodes:
        return "%s, %d ranks" % (count, ranks)
    return "%s x %d %s" % (
        count,
        ranks // nodes,
        status.get("accelerator") or ("rank" if ranks == nodes else "ranks"),
    )


def _fitted(words, room):
    """[(importance, text, style)] as a line of at most `room` columns: the least important
    (highest) go first.
    """
    words = [word for word in words if word[1]]
    while len(words) > 1 and sum(text_layout.width(text) + 2 for _i, text, _s in words) - 2 > room:
        words.remove(max(words, key=lambda word: word[0]))
    line = []
    for _importance, text, style in words:
        line += [(text, style), ("  ", None)]
    return line[:-1]


def _head(watch, seconds, look):
    status, left = watch.known()[0], watch.left()
    again = "attempt %d" % status["attempt"] if (status.get("attempt") or 1) > 1 else ""
    words = [
        (0, text_layout.cut(status["job"], max(8, look.columns // 2)), None),
        (2, size_text(status), None),
        (3, again, "warn"),
    ]
    words += [
        (1, f"elapsed {span(watch.elapsed(seconds))}", None),
        (1, f"ETA {span(left)}" if left is not None else "", None),
    ]
    return _fitted([*words, (4, "run {}".format(status["run"]), "quiet")], look.columns)


def _progress(watch, look):
    fraction, found = watch.fraction(), watch.leading()
    words = (
        place_words(found[1]["step"], found[0].get("epochs"), found[0].get("first_step"))
        if found
        else []
    )
    text = "  ".join(
        [" %3d %%" % int(fraction * 100) if fraction is not None else "", *words]
    ).rstrip()
    size = max(10, min(40, look.columns - text_layout.width(text) - 2))
    return [
        (
            text_layout.bar(
                fraction, size, text_layout.BAR if look.utf8 else text_layout.BAR_ASCII
            ),
            "good" if fraction == 1 else None,
        ),
        (text, None),
    ]


def _pace(watch, look):
    found, speed, words = watch.leading(), watch.throughput(), []
    unit = found[0].get("unit_of_speed") if found else ""
    if found and "loss" in found[1]["step"]:
        loss = number(found[1]["step"]["loss"])
        words.append(
            (
                0,
                "loss %s" % ("nan" if loss is None else f"{loss:.4g}"),
                "bad" if loss is None else None,
            )
        )
        signs = text_layout.CURVE if look.utf8 else text_layout.CURVE_ASCII
        words.append(
            (
                2,
                text_layout.curve(watch.losses.values, max(8, min(40, look.columns - 50)), signs),
                None,
            )
        )
    if speed:
        total, count, each = speed
        how = (
            ""
            if count == 1
            else (
                " (%d x %s)" % (count, _speed(each, "").split()[0])
                if each
                else " (%d ranks)" % count
            )
        )
        words.append((1, _speed(total, unit) + how, None))
    return _fitted(words, look.columns)


def evaluation_words(watch):
    """Return the last evaluation as [(importance, text, style)], what decides first, or []."""
    words = []
    for index, (name, value) in enumerate(watch.figures()[:4]):
        words.append(
            (
                2 * index,
                "{} {}".format(name, value if number(value) is None else f"{value:.4g}"),
                None,
            )
        )
    at = (
        place_words(watch.evaluation["figures"], None, watch.evaluation["first"])[:1]
        if words
        else []
    )
    return (
        [(0, "evaluation", None), *words, *((1, f"({text})", None) for text in at)] if words else []
    )


def slowest_text(watch):
    """Return (the slowest rank against the median, style); an empty text where ranks show no speed
    of their own.
    """
    found, lead = watch.slowest(), watch.leading()
    if not found or not lead:
        return "", None
    text = "slowest rank %d on %s" % (found["rank"], found["node"])
    if found["share"] is not None:
        text += ": %s, %d %% of the median %s" % (
            _speed(found["speed"], lead[0].get("unit_of_speed")),
            round(100 * found["share"]),
            _speed(found["median"], "").split()[0],
        )
    if found["behind"]:
        text += ", %d steps behind" % found["behind"]
    return text, "warn" if found["behind"] or (found["share"] or 1) < LAGS else None


# --- the nodes


def _node(watch, name, seconds):
    """(state, how its ranks are, the same without their numbers) of one node."""
    node = watch.nodes.get(name)
    if node is None:
        return "-", "not asked yet", "not asked yet"
    status = node["status"]
    if not status.get("found"):
        return "none", "no such run here", "no such run here"
    counts = collections.Counter(_label(rank) for rank in status["ranks"])
    short = ", ".join("%d %s" % (count, label) for label, count in sorted(counts.items()))
    short = (
        "%d rank%s %s"
        % (sum(counts.values()), "s" * (len(status["ranks"]) > 1), next(iter(counts)))
        if len(counts) == 1
        else short
    )
    text = rank_text(status["ranks"])
    if not status.get("only_first_prints") and not status["ended"]:
        steps = [rank["step"] for rank in status["ranks"] if rank.get("step")]
        speeds = [number(step.get("ips")) for step in steps]
        text += (
            "".join(
                "  " + word
                for word in place_words(steps[0], status.get("epochs"), status.get("first_step"))[
                    -1:
                ]
            )
            if steps
            else ""
        )
        text += (
            "  " + _speed(sum(speeds), status.get("unit_of_speed"))
            if speeds and None not in speeds
            else ""
        )
    state = (
        "unreachable"
        if node["unreachable"]
        else "no answer"
        if watch.silent(name, seconds)
        else status["state"]
    )
    return state, text, short


def _nodes(watch, seconds, room):
    names = watch.order()
    said = {name: _node(watch, name, seconds) for name in names}
    if len(names) <= min(room, SINGLE_NODES):
        size = max(6, min(24, max(text_layout.width(name) for name in names)))
        return [_row(text_layout.fill(name, size), *said[name][:2]) for name in names]
    groups = {}
    for name in names:
        groups.setdefault((said[name][0], said[name][2]), []).append(name)
    # What is wrong comes first, then the largest group.
    order = sorted(
        groups, key=lambda key: (key[0] not in _STYLE or key[0] == "completed", -len(groups[key]))
    )
    if len(order) > room == 1:
        states = collections.Counter(key[0] for key in order for _name in groups[key])
        return [
            [
                (
                    "%d nodes  %s"
                    % (len(names), ", ".join("%d %s" % (states[key], key) for key in states)),
                    None,
                )
            ]
        ]
    shown = order if len(order) <= room else order[: room - 1]
    rows = []
    for key in shown:
        members = groups[key]
        if len(members) == 1:
            rows.append(_row(text_layout.fill(members[0], 10), *said[members[0]][:2]))
        else:
            rows.append(
                _row(
                    text_layout.fill("%d nodes" % len(members), 10),
                    key[0],
                    f"{key[1]} each  {text_layout.folded(members)}",
                )
            )
    if len(shown) < len(order):
        rest = sum(len(groups[key]) for key in order[len(shown) :])
        rows.append(
            [("%d more nodes in %d other states" % (rest, len(order) - len(shown)), "quiet")]
        )
    return rows


def style_of(state):
    """Return the style of a node's state, or None."""
    return _STYLE.get(state)


def _row(name, state, text):
    return [(name + "  ", None), ("%-11s " % state, style_of(state)), (text, None)]


def picture(watch, seconds, look):
    """Return the lines for a terminal, none wider than look.columns - 1, fewer than look.rows.
    seconds: the clock that Watch.add was given.
    """
    look = look._replace(
        columns=look.columns - 1
    )  # a sign in the last column makes some terminals wrap
    room, lines, wrong = max(1, look.rows - 1), [], []
    if watch.known():
        lines = [
            _head(watch, seconds, look),
            _progress(watch, look),
            _pace(watch, look),
            _fitted(evaluation_words(watch), look.columns),
            [slowest_text(watch)],
        ]
        lines = [line for line in lines if any(text for text, _style in line)]
        wrong = [
            [("! " + text, "warn")]
            for _kind, _names, text in live_warnings.warnings(watch, seconds)
        ]
    if len(wrong) > MOST_WARNINGS:
        wrong[MOST_WARNINGS - 1 :] = [
            [("! and %d more warnings" % (len(wrong) - MOST_WARNINGS + 1), "warn")]
        ]
    rows = _nodes(watch, seconds, max(1, room - len(lines) - len(wrong)))
    # In a terminal that is too low for all of it, what is wrong and how far it is come before the
    # rest.
    while len(lines) > 2 and len(lines) + len(rows) + len(wrong) > room:
        lines.pop()
    return [
        _cut(line, look.columns)
        for line in (
            lines + wrong + rows if len(lines + rows + wrong) > room else lines + rows + wrong
        )[:room]
    ]


def _cut(line, room):
    shown = []
    for text, style in line:
        text = text_layout.cut(text, room)
        room -= text_layout.width(text)
        shown += [(text, style)] if text else []
    return shown


def repaint(stood, width, painted):
    """Return what a terminal must be told so that lines stand where others stood.

    stood: the widths of the lines above the cursor that are to go, width: the terminal's columns
    now, painted: the new lines as they are written. A line that is wider than the terminal has
    become takes several rows: terminals wrap what stands there anew (a few, such as xterm, cut it
    instead; there a few rows above the picture go with it).
    """
    rows = sum(max(1, -(-size // max(1, width))) for size in stood)
    up = "\r\x1b[%dA" % rows if rows else "\r"
    clear = "\x1b[J" if rows > len(stood) else ""
    return up + clear + "".join(line + "\x1b[K\n" for line in painted) + "\x1b[J"
