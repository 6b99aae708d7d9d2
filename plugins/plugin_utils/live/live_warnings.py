# SPDX-License-Identifier: Apache-2.0
"""The warnings of the live view: NaN, stalls, silence, disks, replicas, clocks, loaders. Pure.

A warning says what was seen and for how long, not why. Times of a node are compared with its own
clock only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import guard_findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import (
    fold_names,
    format_clock,
    format_ranges,
)

from .loader_share import LoaderShare
from .model import Json, Node, Pace, Watch

# A pause is a stall if it is so many times as long as usual, and at least so many seconds.
STALL_TIMES, STALL_SECONDS = 5, 30
# The limit where the usual step time is not known yet, where the log goes on (an evaluation), and
# before the first step: graphs are compiled, data is read.
PATIENT_SECONDS = 300
CLOCK_SECONDS = 30
GIB = 1 << 30
# A disk is nearly full with less free bytes than this share of it and than DISK_MUCH, or with less
# than DISK_LITTLE.
DISK_SHARE, DISK_MUCH, DISK_LITTLE = 0.05, 20 * GIB, 2 * GIB


Stall = tuple[float, float | None, bool]  # seconds, usual seconds, the log grows

# Warnings that are said once and not repeated while they last.
ONCE = frozenset(("loader",))


class LiveWarning(NamedTuple):
    """A warning. kind and nodes tell one from another. The text changes with time."""

    kind: str
    nodes: tuple[str, ...]
    text: str


def warnings(watch: Watch, seconds: float) -> list[LiveWarning]:
    """Return the warnings of a run, the gravest first. seconds: the clock of Watch.add."""
    knowing = [node for node in watch.nodes.values() if node.status.get("found")]
    running = [node for node in knowing if not node.status["ended"]]
    reached = [node for node in running if not node.unreachable]
    silences = [(watch.silent(node.name, seconds), node.name) for node in running]
    results = [
        _warn_of_halt(watch, seconds),
        _warn_of_hang(reached),
        _warn_of_nan(watch),
        _warn_of_lost_attempt(knowing),
        _warn_of_kept_run(knowing),
        _warn_of_stall(watch.paces, reached),
        _warn_of_quiet_ranks(reached),
        _warn_of_disk(running),
        _warn_of_replica(reached),
        _warn_of_silence(silences),
        _warn_of_clock(running, 1, "ahead of"),
        _warn_of_clock(running, -1, "behind"),
        _warn_of_loader(watch.loaders, reached),
    ]
    return [warning for warning in results if warning]


def _warn_of_halt(watch: Watch, seconds: float) -> LiveWarning | None:
    """Warn of the reason for which a node's guard ends the attempt, or has ended it."""
    nodes = watch.nodes.values()
    guarded = {node.name: node.status for node in nodes if node.status.get("guard")}
    answering = [
        node.name
        for node in nodes
        if not (node.unreachable or node.status.get("lost") or watch.silent(node.name, seconds))
    ]
    lost = guard_findings.find_lost(guarded, answering)
    stalled = guard_findings.first_stall(guarded)
    if lost:
        return LiveWarning("lost", tuple(lost[0]), lost[1])
    if stalled:
        return LiveWarning("hang", (stalled[0],), guard_findings.describe_hang(*stalled))
    return None


def _warn_of_hang(nodes: Iterable[Node]) -> LiveWarning | None:
    """Warn of a node that a guard will soon take for hanging."""
    late = []
    for node in nodes:
        report = node.status.get("guard") or {}
        quiet, budget = report.get("quiet"), report.get("budget")
        if not isinstance(quiet, (int, float)) or not isinstance(budget, (int, float)):
            continue
        if quiet > max(STALL_SECONDS, budget / 2):
            late.append((quiet, budget, str(report.get("phase")), node.name))
    if not late:
        return None
    quiet, budget, phase, name = max(late)
    text = (
        f"no sign of life for {format_clock(quiet)} in the phase"
        f" {guard_findings.PHASES.get(phase, phase)}"
        f" (seen by {name}); at {format_clock(budget)} it is ended as a hang"
    )
    return LiveWarning("hanging", (name,), text)


def _warn_of_nan(watch: Watch) -> LiveWarning | None:
    if not watch.nan:
        return None
    nan = watch.nan
    return LiveWarning(
        "nan", (), f"loss is {nan.loss} since {nan.step} (rank {nan.rank} on {nan.node})"
    )


def _warn_of_lost_attempt(nodes: Iterable[Node]) -> LiveWarning | None:
    lost = [(node.status["lost"], node.name) for node in nodes if node.status.get("lost")]
    if not lost:
        return None
    nodes_by_reason: dict[str, list[str]] = {}
    for reason, name in lost:
        nodes_by_reason.setdefault(reason, []).append(name)
    text = "; ".join(
        f"on {fold_names(names)} {reason}" for reason, names in nodes_by_reason.items()
    )
    names = tuple(name for _reason, name in lost)
    return LiveWarning("lost", names, f"the attempt is lost: {text}; it holds no node")


def _warn_of_kept_run(nodes: Sequence[Node]) -> LiveWarning | None:
    """Warn where an attempt has ended and the nodes have not ended the run.

    The states of the nodes look as if it were over.
    """
    keeping = [node for node in nodes if (node.status.get("supervised") or {}).get("is_open")]
    is_going_on = any(not node.status["ended"] for node in nodes)
    if is_going_on or not keeping or all(node.status["state"] == "completed" for node in nodes):
        return None
    number = keeping[0].status.get("attempt")
    text = f"attempt {number} has ended, and the run has not: its nodes decide on the next attempt"
    return LiveWarning("kept", tuple(node.name for node in keeping), text)


def _warn_of_stall(paces: Mapping[int, Pace], nodes: Iterable[Node]) -> LiveWarning | None:
    """Warn of ranks that train and show no new step.

    paces: {rank: model.Pace}.
    """
    late = []
    for node in nodes:
        status = node.status
        for rank in status["ranks"]:
            stall = _measure_stall(rank, paces.get(rank["rank"]), status["now"])
            if stall:
                late.append((*stall, node.name, rank["rank"]))
    if not late:
        return None
    seconds, usual, log_grows = max(late, key=lambda item: item[0])[:3]
    text = f"no new step for {format_clock(seconds)}{_usually(usual)} ({_name_ranks(late)})"
    if log_grows:
        text += "; the log goes on"
    return LiveWarning("stalled", tuple(item[3] for item in late), text)


def _measure_stall(rank: Json, pace: Pace | None, now: float) -> Stall | None:
    """Return (seconds without a new step, usual seconds, the log grows), or None.

    Unknown usual seconds are missing (None).
    """
    if rank["state"] != "training" or pace is None:
        return None
    usual = pace.usual()
    limit: float = PATIENT_SECONDS
    log_grows = now - (rank.get("log_time") or 0) < STALL_SECONDS
    if usual is not None and not log_grows:
        limit = max(STALL_SECONDS, STALL_TIMES * usual)
    if now - pace.changed > limit:
        return now - pace.changed, usual, log_grows
    return None


def _usually(seconds: float | None) -> str:
    """Return the words for the usual time between steps, '' for None."""
    if seconds is None:
        return ""
    if seconds >= 60:
        return f", usually every {format_clock(seconds)}"
    return f", usually every {max(1, seconds):.0f} s"


def _warn_of_quiet_ranks(nodes: Iterable[Node]) -> LiveWarning | None:
    """Warn of ranks that have printed nothing for long before their first step."""
    quiet = []
    for node in nodes:
        status = node.status
        for rank in status["ranks"]:
            begin = status["started"]
            if rank["state"] != "waiting":
                begin = rank.get("log_time") or begin
            if rank["state"] in ("waiting", "starting") and status["now"] - begin > PATIENT_SECONDS:
                quiet.append((status["now"] - begin, node.name, rank["rank"]))
    if not quiet:
        return None
    names = tuple(item[1] for item in quiet)
    return LiveWarning(
        "quiet", names, f"nothing from {_name_ranks(quiet)} for {format_clock(max(quiet)[0])}"
    )


def _warn_of_disk(nodes: Iterable[Node]) -> LiveWarning | None:
    full = []
    for node in nodes:
        disk = node.status.get("disk") or {}
        if disk.get("total") and disk["free"] < _least_free(disk["total"]):
            full.append((disk["free"], node.name))
    if not full:
        return None
    names = tuple(name for _free, name in full)
    text = f"disk nearly full on {fold_names(names)}: {min(full)[0] / GIB:.1f} GiB free"
    if len(full) > 1:
        text += " at the least"
    return LiveWarning("disk", names, text)


def _warn_of_replica(nodes: Iterable[Node]) -> LiveWarning | None:
    """Warn where the node that keeps the checkpoints' replica cannot copy the newest one."""
    for node in nodes:
        problem = (node.status.get("replica") or {}).get("problem")
        if problem:
            text = f"{node.name} cannot copy the newest checkpoint: {problem}"
            return LiveWarning("replica", (node.name,), text)
    return None


def _least_free(total: float) -> float:
    """Return the bytes below which a disk of so many bytes is nearly full."""
    return max(DISK_LITTLE, min(DISK_MUCH, DISK_SHARE * total))


def _warn_of_silence(silences: Iterable[tuple[float, str]]) -> LiveWarning | None:
    """Warn of nodes that do not answer.

    silences: [(seconds, node)].
    """
    silent = [(seconds, name) for seconds, name in silences if seconds]
    if not silent:
        return None
    names = tuple(name for _seconds, name in silent)
    return LiveWarning(
        "answer", names, f"no answer from {fold_names(names)} for {format_clock(max(silent)[0])}"
    )


def _warn_of_clock(nodes: Iterable[Node], sign: int, word: str) -> LiveWarning | None:
    """Warn of clocks that are ahead of this machine's (sign 1) or behind it (sign -1)."""
    wrong = []
    for node in nodes:
        if node.ahead is not None and sign * node.ahead > CLOCK_SECONDS:
            wrong.append((sign * node.ahead, node.name))
    if not wrong:
        return None
    names = tuple(name for _seconds, name in wrong)
    text = f"clock of {fold_names(names)} is {format_clock(max(wrong)[0])} {word} this machine's"
    return LiveWarning(f"clock {word}", names, text)


def _warn_of_loader(
    loaders: Mapping[int, LoaderShare], nodes: Iterable[Node]
) -> LiveWarning | None:
    """Warn of ranks whose steps wait for data longer than they compute."""
    slow = []
    for node in nodes:
        for rank in node.status["ranks"]:
            loader = loaders.get(rank["rank"])
            if loader is None or rank["state"] != "training":
                continue
            share = loader.bottleneck()
            if share is not None:
                slow.append((share, loader.count, node.name, rank["rank"]))
    if not slow:
        return None
    share, count = max(slow)[:2]
    text = (
        f"the data loader is the bottleneck: {int(share * 100)} % of the time of a step for"
        f" {count} logged steps in a row ({_name_ranks(slow)})"
    )
    return LiveWarning("loader", (), text)


def _name_ranks(items: Sequence[tuple[Any, ...]]) -> str:
    """Return the ranks of [(..., node, rank)] in few words.

    Such as 'rank 3 on node1' or 'ranks 1-8 on node[1-2]'.
    """
    ranks = [str(item[-1]) for item in items]
    nodes = list(dict.fromkeys(item[-2] for item in items))
    title = "ranks"
    if len(ranks) == 1:
        title = "rank"
    return f"{title} {format_ranges(ranks)} on {fold_names(nodes)}"
