# SPDX-License-Identifier: Apache-2.0
"""The live view as text: one line for the run, one line a node. Pure: states in, lines out."""

from __future__ import annotations

BAR = 20


def duration(seconds):
    """Return seconds as h:mm:ss, or m:ss below an hour."""
    seconds = int(max(0, seconds or 0))
    hours, rest = divmod(seconds, 3600)
    return "%d:%02d:%02d" % (hours, rest // 60, rest % 60) if hours else "%d:%02d" % (rest // 60, rest % 60)


def bar(fraction, width=BAR):
    """Return a bar of '#' and '.'; an unknown fraction gives a bar of spaces."""
    if fraction is None:
        return "[" + " " * width + "]"
    full = int(round(max(0.0, min(1.0, fraction)) * width))
    return "[" + "#" * full + "." * (width - full) + "]"


def step_text(step, epochs, unit, first=None):
    """Return the words for one step record: epoch and step of total, loss, speed, ETA; only what the log says.

    first: what the suite counts epochs and steps from, such as {epoch: 0, step: 0}; people count from 1.
    """
    if not step:
        return ""
    words, first = [], first or {}
    if step.get("epoch") is not None:
        total = step.get("epochs") or epochs
        words.append("epoch %s%s" % (step["epoch"] + 1 - first.get("epoch", 1), "/%s" % total if total else ""))
    if step.get("step") is not None:
        words.append("step %s%s" % (step["step"] + 1 - first.get("step", 1), "/%s" % step["steps"] if step.get("steps") else ""))
    if step.get("step") is None and step.get("global_step") is not None:
        words.append("step %s%s" % (step["global_step"], "/%s" % step["total_steps"] if step.get("total_steps") else ""))
    if step.get("loss") is not None:
        words.append("loss %.4g" % step["loss"])
    if step.get("ips") is not None:
        words.append("%.2f %s" % (step["ips"], unit or "samples/s"))
    if step.get("eta") is not None:
        words.append("ETA %s" % duration(step["eta"]))
    return "  ".join(words)


def rank_text(ranks):
    """Return how a node's ranks are, shortest form first: 'rank 0 training', '8 ranks training', or each group with its ranks."""
    groups = {}
    for rank in ranks:
        state = rank["state"]
        if state == "failed":
            code = "end not observed" if rank["exit_code"] is None else "exit code %s" % rank["exit_code"]
            state = "failed (%s)" % (rank["signal"] or code)
        groups.setdefault(state, []).append(str(rank["rank"]))
    if len(ranks) > 1 and len(groups) == 1:
        return "%d ranks %s" % (len(ranks), next(iter(groups)))
    return ", ".join("rank %s %s" % (",".join(names), state) for state, names in groups.items())


def node_line(status, width=100):
    """Return one node's line; the step comes from the first rank of the node whose log has one."""
    if not status.get("found"):
        return ("%-10s no such run here" % status.get("node", "?"))[:width]
    best = next((rank for rank in status["ranks"] if rank["step"]), None)
    text = "%-10s %-9s %s" % (status["node"], status["state"], rank_text(status["ranks"]))
    if best:
        step = dict(best["step"], eta=None if status["ended"] else best["step"].get("eta"))
        text += "  " + step_text(step, status.get("epochs"), status.get("unit_of_speed"), status.get("first_step"))
    return text[:width]


def head_line(statuses, width=100):
    """Return the run's line: job, size, elapsed, bar."""
    known = [status for status in statuses if status.get("found")]
    if not known:
        return "no such run"[:width]
    first = known[0]
    fractions = [rank["fraction"] for status in known for rank in status["ranks"] if rank["fraction"] is not None]
    fraction = max(fractions) if fractions else None
    ranks = sum(len(status["ranks"]) for status in known)
    text = "%s  %s  %d nodes, %d ranks  %s %s%s" % (
        first["run"],
        first["job"],
        len(first["nodes"]),
        ranks,
        duration(first["now"] - first["started"]),
        bar(fraction),
        " %3d %%" % int(fraction * 100) if fraction is not None else "",
    )
    return text[:width]


def change_key(status):
    """Return what must differ for a new plain line to be worth printing: the state, the ranks' states, the step."""
    ranks = [
        (rank["rank"], rank["state"], (rank["step"] or {}).get("epoch"), (rank["step"] or {}).get("step"))
        for rank in status.get("ranks", [])
    ]
    return (status.get("state"), tuple(ranks))
