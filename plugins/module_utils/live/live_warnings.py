# SPDX-License-Identifier: Apache-2.0
"""What the live view warns of: a loss that is no number, no new steps, silence, a full disk,
clocks. Pure, controller only.

A warning says what was seen and for how long, not why. Times of a node are compared with its own
clock only.
"""

from __future__ import annotations

from ..attempts import guard_findings
from ..base.text_layout import folded, ranges, span

# A pause is a stall when it is so many times as long as what is usual, and at least this long.
STALL_TIMES, STALL_SECONDS = 5, 30
# Where the usual step time is not known yet, where the log goes on (an evaluation), and before the
# first step: graphs are compiled, data is read.
PATIENT_SECONDS = 300
CLOCK_SECONDS = 30
GIB = 1 << 30
# Nearly full: less than this share of the disk and than so much, or less than so little.
DISK_SHARE, DISK_MUCH, DISK_LITTLE = 0.05, 20 * GIB, 2 * GIB


def warnings(watch, seconds):
    """Return [(kind, nodes, text)] of a watch.Watch, the gravest first. seconds: the clock that
    Watch.add was given.

    kind and nodes tell one warning from another; the text changes with time.
    """
    going = [
        node
        for node in watch.nodes.values()
        if node["status"].get("found") and not node["status"]["ended"]
    ]
    reached = [node for node in going if not node["unreachable"]]
    found = [
        _halted(watch.nodes.values()),
        _hanging(reached),
        _no_number(watch),
        _lost([node for node in watch.nodes.values() if node["status"].get("found")]),
        _stalled(watch.paces, reached),
        _quiet(reached),
        _disk(going),
        _deaf([(watch.silent(node["name"], seconds), node["name"]) for node in going]),
        _clock(going, 1, "ahead of"),
        _clock(going, -1, "behind"),
    ]
    return [warning for warning in found if warning]


def _halted(nodes):
    """What a node's guard ends the attempt for, or has ended it for."""
    asked = {node["name"]: node["status"] for node in nodes if node["status"].get("guard")}
    gone, hung = guard_findings.lost(asked), guard_findings.stalled(asked)
    if gone:
        return "lost", tuple(gone[0]), gone[1]
    return ("hang", (hung[0],), guard_findings.hang_words(*hung)) if hung else None


def _hanging(nodes):
    late = []
    for node in nodes:
        seen = node["status"].get("guard") or {}
        quiet, budget = seen.get("quiet"), seen.get("budget")
        if (
            isinstance(quiet, (int, float))
            and isinstance(budget, (int, float))
            and quiet > max(STALL_SECONDS, budget / 2)
        ):
            late.append((quiet, budget, str(seen.get("phase")), node["name"]))
    if not late:
        return None
    quiet, budget, phase, name = max(late)
    text = "no sign of life for %s in the phase %s (seen by %s); at %s it is ended as a hang"
    return (
        "hanging",
        (name,),
        text % (span(quiet), guard_findings.PHASES.get(phase, phase), name, span(budget)),
    )


def _no_number(watch):
    if not watch.nan:
        return None
    return (
        "nan",
        (),
        "loss is %s since %s (rank %d on %s)"
        % tuple(watch.nan[key] for key in ("loss", "at", "rank", "node")),
    )


def _lost(nodes):
    lost = [(node["status"]["lost"], node["name"]) for node in nodes if node["status"].get("lost")]
    if not lost:
        return None
    whys = {why: [name for other, name in lost if other == why] for why, _name in lost}
    text = "; ".join(f"on {folded(names)} {why}" for why, names in whys.items())
    return (
        "lost",
        tuple(name for _why, name in lost),
        f"the attempt is lost: {text}; it holds no node",
    )


def _stalled(paces, nodes):
    late = []
    for node in nodes:
        now = node["status"]["now"]
        for rank in node["status"]["ranks"]:
            pace = paces.get(rank["rank"])
            if rank["state"] != "training" or pace is None:
                continue
            usual, writes = pace.usual(), now - (rank.get("log_time") or 0) < STALL_SECONDS
            limit = (
                PATIENT_SECONDS
                if usual is None or writes
                else max(STALL_SECONDS, STALL_TIMES * usual)
            )
            if now - pace.changed > limit:
                late.append((now - pace.changed, usual, writes, node["name"], rank["rank"]))
    if not late:
        return None
    since, usual, writes = max(late, key=lambda item: item[0])[:3]
    usually = (
        ""
        if usual is None
        else ", usually every %s" % (span(usual) if usual >= 60 else f"{max(1, usual):.0f} s")
    )
    text = "no new step for {}{} ({}){}".format(
        span(since),
        usually,
        _who(late),
        "; the log goes on" if writes else "",
    )
    return "stalled", tuple(item[3] for item in late), text


def _quiet(nodes):
    quiet = []
    for node in nodes:
        status = node["status"]
        for rank in status["ranks"]:
            begun = (
                status["started"]
                if rank["state"] == "waiting"
                else rank.get("log_time") or status["started"]
            )
            if rank["state"] in ("waiting", "starting") and status["now"] - begun > PATIENT_SECONDS:
                quiet.append((status["now"] - begun, node["name"], rank["rank"]))
    if not quiet:
        return None
    return (
        "quiet",
        tuple(item[1] for item in quiet),
        f"nothing from {_who(quiet)} for {span(max(quiet)[0])}",
    )


def _disk(nodes):
    disks = [(node["status"].get("disk") or {}, node["name"]) for node in nodes]
    full = [
        (disk["free"], name)
        for disk, name in disks
        if disk.get("total")
        and disk["free"] < max(DISK_LITTLE, min(DISK_MUCH, DISK_SHARE * disk["total"]))
    ]
    if not full:
        return None
    names = tuple(name for _free, name in full)
    least = " at the least" if len(full) > 1 else ""
    return (
        "disk",
        names,
        f"disk nearly full on {folded(names)}: {min(full)[0] / GIB:.1f} GiB free{least}",
    )


def _deaf(silent):
    deaf = [(since, name) for since, name in silent if since]
    if not deaf:
        return None
    names = tuple(name for _seconds, name in deaf)
    return "answer", names, f"no answer from {folded(names)} for {span(max(deaf)[0])}"


def _clock(nodes, sign, word):
    off = [
        (sign * node["ahead"], node["name"])
        for node in nodes
        if node["ahead"] is not None and sign * node["ahead"] > CLOCK_SECONDS
    ]
    if not off:
        return None
    names = tuple(name for _seconds, name in off)
    return (
        "clock " + word,
        names,
        f"clock of {folded(names)} is {span(max(off)[0])} {word} this machine's",
    )


def _who(late):
    """Of [(..., node, rank)] in few words: 'rank 3 on node1', 'ranks 1-8 on node[1-2]'."""
    ranks, nodes = [str(item[-1]) for item in late], list(dict.fromkeys(item[-2] for item in late))
    return "rank{} {} on {}".format("s" if len(ranks) > 1 else "", ranges(ranks), folded(nodes))
