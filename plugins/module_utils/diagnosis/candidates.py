# SPDX-License-Identifier: Apache-2.0
"""The weight of every rank and launcher as the possible beginning of a failure.

When one rank dies the others lie: they abort, and launchers report those. A primary error in a log
that no later step survived is the strongest evidence. Next comes a signal from outside that was the
first death on its node, then a first silent exit. Lost connections, aborts and stops are what
the others say, and a shared condition (no rank met any other) is what all say: they weigh too
little to be named.
"""

from __future__ import annotations

import dataclasses
import re
import typing

from ..attempts.evidence import is_child
from ..base.folding import FOLD, list_ranks
from ..logs.failure_catalogue import entry_of
from . import named_peers
from .clocks import BEFORE, BEFORE_ELSEWHERE, CLOCKS_APART, measure_clocks
from .device_evidence import oom_pids
from .handled_errors import set_handled_apart
from .rank_rules import FATAL, RANK_RULES, RankEvidence
from .weights import (
    DECIDES,
    DOUBTFUL,
    KILLED,
    LATE,
    LAUNCHER,
    LAUNCHER_LATER,
    OOM,
    PRIMARY,
    SECONDARY,
    SHARED,
    SILENT,
    STOPPED,
    TERMINATED,
)

# Causes that say of an exception only that there was one: two of them are one failure only where
# they say the same.
_VAGUE_CAUSES = frozenset(("python_exception", "cpp_exception", "unknown"))
GOING_DOWN = 5.0  # seconds that a process may take to end after its traceback
MESSAGE = 20  # lines that a message of a library and of a handler of SIGTERM may have
FULL = 1 << 20  # bytes free below which a log that breaks off did so because the disk was full
_FAR = float("inf")


def has_succeeded(unit, node):
    """Return whether an attempt ended well on a node, and nothing stopped it.

    Unit and launcher must both have ended well. unit: what systemd says of the unit. node: what
    rank_logs_info returned for the node.
    """
    launcher = node.get("launcher") or {}
    well = (
        unit.get("service_result") == "success"
        and not launcher.get("exit_code")
        and not launcher.get("signal")
    )
    return well and not unit.get("stopped_by")


def signature(candidate):
    """Return what two candidates of one failure have in common.

    It is the cause, and the words where the cause says little.
    """
    error = candidate["error"]
    if not error:
        return candidate["signal"] or candidate["exit_code"]
    if error["cause"] not in _VAGUE_CAUSES:
        return (error["cause"], None)
    text = re.sub(r"0x[0-9a-f]+|\d+|'[^']*'|/\S+", "#", f"{error['kind']}: {error['text']}")
    return (error["cause"], text)


_EARLY = "ended with exit code 0, and the others lost contact with it after that"
# What ranks say that wait for one that has gone.
LOST_CONTACT = frozenset(
    (
        "connection_lost",
        "aborted",
        "collective_timeout",
        "nccl_system_error",
        "rdma_error",
        "hccl_link",
        "cluster_timeout",
    )
)


@dataclasses.dataclass(frozen=True)
class _LauncherEvidence:
    """The evidence about a launcher whose unit failed."""

    error: dict | None
    signal: str | None
    started: bool  # whether a rank of the node had started
    out_of_memory: bool
    cut_down: bool

    def weigh(self):
        """Return the launcher's weight."""
        if self.out_of_memory:
            return OOM
        if self.cut_down:
            return KILLED
        if self.error and self.error["grade"] == "shared":
            return SHARED
        if self.error and self.error["grade"] != "primary":
            return SECONDARY
        if not self.started:
            return LAUNCHER
        if self.error or self.signal in FATAL:
            return LAUNCHER_LATER
        return LATE


# What a candidate keeps of its rank's findings.
_CANDIDATE_KEYS = (
    "rank",
    "node",
    "local_rank",
    "pid",
    "exit_code",
    "signal",
    "observed",
    "ended",
    "home",
    "lines",
    "last_line",
    "handled",
    "mtime",
)


class _CandidateFields(typing.TypedDict):
    rank: int | None  # None for a launcher or scheduler
    node: str
    local_rank: int | None
    pid: int | None
    exit_code: int | None
    signal: str | None
    observed: str | None  # what saw the end: agent or launcher
    ended: float | None  # by the node's clock
    home: str | None  # the log's name on the controller
    lines: int | None
    last_line: str | None
    handled: dict[str, typing.Any] | None  # the first error of its log that did not end it
    mtime: float | None  # the last write to its log, by the node's clock
    weight: int
    why: str  # the reason for the weight, as a predicate
    error: dict[str, typing.Any] | None  # the first error of its log
    when: float | None  # the end by the middle clock, in unix seconds


class Candidate(_CandidateFields, total=False):
    """A failure on one rank, launcher or scheduler that may be the beginning of all."""

    who: str  # scheduler or agent, where it is not a launcher
    started: bool  # whether a rank of the node had started (launcher and scheduler only)
    is_suspect: bool  # whether its end may be what all the others lost contact with


class Weighing:
    """The candidates of one attempt, from {node: what rank_logs_info returned}.

    `candidates` has the heaviest one first. Further attributes are `units`, `stopped`, `failed`,
    `ahead` and `ranks`.
    """

    def __init__(self, answers, alone=False):
        """Weigh the findings.

        answers: the findings of each node. alone: whether the plan has one node only, which is free
        to talk to itself over loopback.
        """
        self.answers, self.alone = answers, alone
        self.ahead = measure_clocks(answers)
        self.units = {name: node.get("exit") for name, node in answers.items()}
        known = {name: unit for name, unit in self.units.items() if unit}
        self.stopped = {name: unit for name, unit in known.items() if unit.get("stopped_by")}
        self.fine = [name for name, unit in known.items() if has_succeeded(unit, answers[name])]
        self.failed = [name for name in known if name not in self.stopped and name not in self.fine]
        self.ranks = set_handled_apart(
            [
                dict(
                    rank,
                    node=name,
                    restarted=node.get("restarted") or not node.get("exit"),
                    epochs=node.get("epochs"),
                )
                for name, node in answers.items()
                for rank in node.get("ranks") or []
            ]
        )
        self.firsts = self._find_first_deaths()
        self.candidates = sorted(self._find_candidates(), key=_by_weight)

    def _find_candidates(self):
        """Return all candidates with their weights.

        They are weighed by their own findings and then by those of the others.
        """
        candidates = [candidate for candidate in map(self._weigh_rank, self.ranks) if candidate]
        speaking = {c["node"] for c in candidates if c["weight"] > STOPPED}
        candidates += [
            self._weigh_launcher(name)
            for name in self.failed
            if name not in speaking or self._is_cut_down(name)
        ]
        candidates += [
            scheduler for scheduler in map(self._weigh_scheduler, self.failed) if scheduler
        ]
        self._raise_first_kills(candidates)
        self._believe_launchers(candidates)
        self._raise_foreign_stop(candidates)
        self._raise_cut_off_end(candidates)
        self._doubt_stopped_ranks(candidates)
        return candidates + (self._find_lost_rank(candidates) or self._find_early_end(candidates))

    def precedes(self, one, other):
        """Return whether one candidate's end came before another's, beyond doubt."""
        if one["when"] is None or other["when"] is None:
            return False
        margin = BEFORE
        if one["node"] != other["node"]:
            times = [self.answers[c["node"]].get("now") or 0.0 for c in (one, other)]
            apart = abs(times[0] - times[1])  # time to ask them, or clocks that nothing corrected
            margin = BEFORE_ELSEWHERE
            if apart < CLOCKS_APART:
                margin = max(margin, apart + 1.0)
        return other["when"] - one["when"] > margin

    def rivals(self):
        """Return the candidates that may as well be the beginning as the first one.

        Each is another failure, and the first one was not the earlier beyond doubt.
        """
        best = self.candidates[0]
        return [c for c in self.candidates[1:] if self._is_rival(best, c)]

    def _is_rival(self, best, other):
        """Return whether a candidate may as well be the beginning as the best one."""
        if best["weight"] == SILENT and _excuses_itself(other) and not self.precedes(best, other):
            return True
        if (
            other["weight"] < DECIDES
            or self.precedes(best, other)
            or (signature(best) == signature(other) and not _is_mute(best))
        ):
            return False
        return other["weight"] == best["weight"] or _may_follow(best, other)

    def _raise_first_kills(self, candidates):
        """Raise the weight of kills that came before all primary errors.

        The product kills nothing before something has failed: such a death, if it came first, began
        it all.
        """
        primary = [c for c in candidates if c["weight"] == PRIMARY]
        if not primary:
            return
        for candidate in candidates:
            is_early = candidate["weight"] in (OOM, KILLED) or candidate.get("who") == "scheduler"
            if is_early and all(self.precedes(candidate, other) for other in primary):
                candidate["weight"] = PRIMARY

    def _believe_launchers(self, candidates):
        """Lower the weight of ranks that ended after a launcher's first child.

        msrun and mpirun name the child that ended first. What ended with it then, without a word of
        its own, was ended by them.
        """
        mute = [
            c for c in candidates if c["rank"] is not None and c["weight"] in (OOM, KILLED, SILENT)
        ]
        for name, node in self.answers.items():
            child = _first_child(node)
            if not child:
                continue
            scope = [c for c in mute if c["node"] == name or child["rank"] is not None]
            is_mute = any(is_child(child, c) for c in scope)
            named = [rank for rank in self.ranks if is_child(child, rank)]
            for candidate in scope:
                if is_child(child, candidate) or candidate["signal"] not in (None, "SIGKILL"):
                    continue
                if is_mute or any(_follows(candidate, rank) for rank in named):
                    candidate.update(
                        weight=LATE,
                        why="ended after the child that its launcher names as the first",
                    )

    def _raise_foreign_stop(self, candidates):
        """Raise the weight of a SIGTERM that was the first end on its node.

        While the product was stopping nothing, it came from elsewhere.
        """
        stopped = [c for c in candidates if self._is_foreign_stop(c)]
        if len({c["node"] for c in stopped}) != 1 or any(c["weight"] >= SHARED for c in candidates):
            return
        stopped_ranks = [c["rank"] for c in stopped]
        others = [
            rank
            for rank in self.ranks
            if rank["node"] == stopped[0]["node"] and rank["rank"] not in stopped_ranks
        ]
        if all(rank.get("ended") is not None and not self._is_first(rank) for rank in others):
            for candidate in stopped:
                candidate.update(
                    weight=TERMINATED, why="was told to stop before anything else had failed"
                )

    def _doubt_stopped_ranks(self, candidates):
        """Lower the weight of errors of stopped ranks where another rank says more.

        Stopping may have made the error, or a thread that died long before has nothing to do with
        it. A thread counts as the reason for a hang, where no rank failed.
        """
        stopped = [c for c in candidates if c["weight"] == DOUBTFUL and self._is_stopped(c)]
        others = [c for c in candidates if c not in stopped]
        is_known = any(c["weight"] == SHARED or c["weight"] >= DECIDES for c in others)
        for candidate in stopped:
            is_silent = candidate["exit_code"] is None and not candidate["signal"]
            lived_on = candidate["ended"] is not None and is_silent
            if is_known or (lived_on and self.failed and not candidate["error"].get("thread")):
                candidate["weight"] = LATE

    def _is_stopped(self, candidate):
        """Return whether a rank was stopped, or its end not seen."""
        is_unseen = candidate["exit_code"] is None and not candidate["signal"]
        return is_unseen or self.is_stop_of_attempt(candidate)

    def _is_foreign_stop(self, candidate):
        """Return whether a foreign SIGTERM was the first end on its node.

        Foreign is one that the product did not send.
        """
        error = candidate["error"]
        return (
            candidate["signal"] == "SIGTERM"
            and candidate["weight"] == SECONDARY
            and candidate["node"] not in self.stopped
            and self._is_first(candidate)
            and (not error or error["cause"] == "terminated")
        )

    def _is_first(self, rank):
        """Return whether a rank's end was seen and came first on its node.

        An end at nearly the same time counts as the first, too.
        """
        return (
            rank.get("ended") is not None
            and rank["ended"] - self.firsts.get(rank["node"], _FAR) < BEFORE
        )

    def _find_first_deaths(self):
        """Return {node: time of its first rank's abnormal end}, by the node's own clock."""
        firsts = {}
        for rank in self.ranks:
            if rank.get("ended") is not None and rank.get("exit_code") != 0:
                firsts[rank["node"]] = min(firsts.get(rank["node"], _FAR), rank["ended"])
        return firsts

    def is_stop_of_attempt(self, rank):
        """Return whether stopping the attempt explains a rank's end.

        The same holds for what systemd does to the ranks of a launcher that is gone.
        """
        node, ended = rank["node"], rank.get("ended")
        if node in self.stopped:
            stopped_at = self.stopped[node].get("stopped_at")
            return stopped_at is None or ended is None or ended >= stopped_at
        gone = (self.answers[node].get("launcher") or {}).get("ended")
        return gone is not None and ended is not None and ended >= gone

    def _weigh_rank(self, rank):
        """Return the candidate of one rank, or None.

        Return None where the rank ended well or nothing is known.
        """
        error = self._read_error(rank)
        code, signal = rank.get("exit_code"), rank.get("signal")
        if code == 0 or not (error or code or signal):
            return None
        if rank["node"] in self.fine and not code and not signal:
            return None
        evidence = RankEvidence(self, rank, error)
        rule = next(rule for rule in RANK_RULES if rule.applies(evidence))
        if evidence.is_first:
            return self._build_candidate(rank, rule.weight, rule.why, error)
        return self._build_candidate(rank, rule.later_weight, rule.later_why, error)

    def _read_error(self, rank):
        """Return a rank's first error in its meaning for this attempt, or None."""
        error = rank.get("first_error")
        if error and self.alone and error["cause"] == "loopback_address":
            error = dict(error, **entry_of("connection_lost"))
        if (
            error
            and error["kind"] == "Traceback"
            and error["text"].startswith("cut short")
            and self._is_disk_full(rank["node"])
        ):
            # The words that name the cause had no room on the disk that they tell of.
            error = dict(error, text="its disk is full: " + error["text"], **entry_of("disk_full"))
        return error

    def _is_disk_full(self, node):
        """Return whether the disk of the logs was full when the node was asked."""
        free = self.answers[node].get("free")
        return free is not None and free < FULL

    def is_out_of_memory(self, node):
        """Return whether the kernel killed processes of a node's unit when memory ran out."""
        unit = self.units.get(node) or {}
        return unit.get("service_result") == "oom-kill" or bool(unit.get("oom_kills"))

    def is_killed_for_memory(self, rank):
        """Return whether the kernel killed a rank because memory ran out.

        Where the kernel's log names ranks of the node by their pids, the others were killed by
        their launcher.
        """
        node = rank["node"]
        if rank.get("signal") != "SIGKILL" or rank["rank"] is None:
            return False
        pids = oom_pids(self.answers[node])
        if any(other.get("pid") in pids for other in self.ranks if other["node"] == node):
            return rank.get("pid") in pids
        return self.is_out_of_memory(node)

    def _is_cut_down(self, name):
        """Return whether a signal killed the unit while its launcher still ran.

        The product does that to no attempt.
        """
        launcher = self.answers[name].get("launcher") or {}
        unseen = launcher.get("exit_code") is None and not launcher.get("signal")
        result = (self.units[name] or {}).get("service_result")
        return unseen and result in ("signal", "core-dump", "watchdog")

    def _weigh_launcher(self, name):
        """Return the candidate of a node whose unit failed without a rank to blame.

        Its launcher, or the start itself, speaks.
        """
        unit = self.units[name]
        started = any(r.get("pid") or r.get("bytes") for r in self.ranks if r["node"] == name)
        launcher = dict(self.answers[name].get("launcher") or {}, node=name)
        error, signal = launcher.get("first_error"), launcher.get("signal")
        if launcher.get("exit_code") is None and signal is None:
            launcher.update(_read_unit_end(unit))
        weight = _LauncherEvidence(
            error=error,
            signal=signal,
            started=started,
            out_of_memory=unit.get("service_result") == "oom-kill",
            cut_down=self._is_cut_down(name),
        ).weigh()
        phase = "before any rank started"
        if started:
            phase = "after its ranks had started"
        why = f"its unit ended with {unit.get('service_result')} {phase}"
        candidate = self._build_candidate(launcher, weight, why, error)
        candidate = dict(candidate, home=f"launcher.{name}.log", started=started)
        if self._is_cut_down(name):
            candidate["who"] = "agent"
        return candidate

    def _weigh_scheduler(self, name):
        """Return the candidate of MindSpore's scheduler on a node whose unit failed.

        Return None where the scheduler's log holds no error.
        """
        scheduler = self.answers[name].get("scheduler") or {}
        error = scheduler.get("first_error")
        if not error:
            return None
        weight = {"primary": LAUNCHER, "shared": SHARED}.get(error["grade"], SECONDARY)
        rank = {"node": name, "home": scheduler["home"], "mtime": scheduler.get("mtime")}
        candidate = self._build_candidate(rank, weight, "the scheduler's log holds an error", error)
        return dict(candidate, who="scheduler", started=True)

    def _build_candidate(self, rank, weight, why, error):
        """Return the Candidate with a rank's findings and the corrected time."""
        when = rank.get("ended")
        if when is None and error:
            when = error.get("time") or rank.get("mtime")
        elif weight == PRIMARY and rank.get("mtime"):
            when = min(when, rank["mtime"])  # a rank may take long to end after it has printed why
        if when is not None:
            when -= self.ahead.get(rank["node"], 0.0)
        findings = {key: rank.get(key) for key in _CANDIDATE_KEYS}
        return dict(findings, weight=weight, why=why, error=error, when=when)

    def _find_lost_rank(self, candidates):
        """Return the candidate of a rank that its peers lost, as a list of one.

        Such a rank fell silent, or aborted without losing any peer. An abort is a candidate
        already: it gains weight, and the list is empty. There must be one such rank, or it is a
        guess.
        """
        silent = self._silent_ranks()
        aborted = self._aborted_candidates(candidates)
        suspects = silent + aborted
        if len(suspects) != 1:
            return []
        voters = [c for c in candidates if named_peers.names(c["error"], suspects[0])]
        if not voters:
            for candidate in aborted:
                candidate.update(weight=LATE, why="aborted, and names no peer", is_suspect=True)
            return []
        names = _name_voters(voters)
        if aborted:
            aborted[0].update(weight=SILENT, why=f"aborted, and {names} lost contact with it")
            return []
        why = f"fell silent, and {names} lost contact with it"
        return [self._build_candidate(silent[0], SILENT, why, None)]

    def _raise_cut_off_end(self, candidates):
        """Raise the weight of a rank that its launcher ended while it died of an exception.

        A process may take seconds to end after the traceback. A peer that lost it meanwhile ends
        first, and the launcher then ends the rest. There must be one such rank among ranks that say
        no more than that they lost another one.
        """
        others = [c for c in candidates if c["rank"] is not None and c["weight"] > STOPPED]
        found = [c for c in candidates if _is_cut_off(c)]
        lost = [c for c in others if _says_lost(c)]
        if len(found) != 1 or not lost:
            return
        if all(c in lost or c in found or _is_ended_by_others(c) for c in others):
            why = "printed an error of its own, and was ended while it went down"
            error = dict(found[0]["handled"], survived=False)
            found[0].update(weight=SILENT, why=why, error=error, handled=None)

    def _find_early_end(self, candidates):
        """Return the candidate of a rank that ended well before the others lost contact with it.

        It is a list of one, or empty. It is named where the training surely had steps to do.
        """
        others = [c for c in candidates if c["rank"] is not None and c["weight"] > STOPPED]
        lost = [c for c in others if _says_lost(c)]
        explained = [c for c in others if c in lost or _is_ended_by_others(c)]
        found = [
            self._build_candidate(rank, LATE, _EARLY, None) for rank in self.ranks if _is_well(rank)
        ]
        is_waited_for = lost or any(map(_has_stalled, self.answers.values()))
        if not is_waited_for or len(explained) < len(others) or not found:
            return []
        first = dict(min(found, key=lambda c: c["when"]), is_suspect=True)
        if not self._came_first(first, lost):
            return []
        if any(map(_has_steps_to_do, self.ranks)) and len(found) == 1:
            first["weight"] = SILENT
        return [first]

    def _came_first(self, first, others):
        """Return whether a rank ended before others lost contact.

        Ranks of its own node have its clock. Where one of them is a witness, the others must only
        not have been earlier beyond doubt.
        """
        if any(c["when"] is None for c in others):
            return False
        near = [c for c in others if c["node"] == first["node"]]
        if not near:
            return all(c["when"] >= first["when"] for c in others)
        return all(c["when"] >= first["when"] for c in near) and not any(
            self.precedes(c, first) for c in others
        )

    def _silent_ranks(self):
        """Return the ranks without a recorded end and without an error.

        A node without a record of its end may run still, or was restarted. The verdict names this,
        and blames no rank of it.
        """
        return [
            rank
            for rank in self.ranks
            if rank.get("exit_code") is None
            and not (rank.get("signal") or rank.get("first_error"))
            and rank["node"] not in self.stopped
            and self.units.get(rank["node"])
        ]

    def _aborted_candidates(self, candidates):
        """Return the candidates that aborted unasked and name no peer."""
        return [
            c
            for c in candidates
            if c["weight"] == SECONDARY
            and c["error"]
            and c["error"]["cause"] == "aborted"
            and c["error"]["peer"] is None
            and not c["error"].get("peer_address")
        ]


def _has_stalled(node):
    """Return whether the guard of a node saw the training hang."""
    return bool((node.get("guard") or {}).get("stall"))


def _is_well(rank):
    """Return whether a rank's end was seen and was exit code 0."""
    return rank.get("exit_code") == 0 and rank.get("ended") is not None


def _has_steps_to_do(rank):
    """Return whether a rank's last step line is surely not the last one of the training.

    A training shows every so many steps, and counts its epochs from 0 or from 1. Where its lines do
    not say how many there are, the plan does.
    """
    step = rank.get("last_step") or {}
    done, total = step.get("global_step"), step.get("total_steps")
    if done and total:
        return done + done / max(1, rank.get("steps") or 1) <= total
    epoch, epochs = step.get("epoch"), step.get("epochs") or rank.get("epochs")
    return epoch is not None and isinstance(epochs, int) and epoch < epochs - 1


def _follows(candidate, rank):
    """Return whether a candidate ended after another rank of its node."""
    ends = (candidate["ended"], rank.get("ended"))
    return candidate["node"] == rank["node"] and None not in ends and ends[0] >= ends[1]


def _is_ended_by_others(candidate):
    """Return whether a launcher's signal explains the end of a candidate without words."""
    error = candidate["error"]
    return (
        candidate["signal"] in ("SIGTERM", "SIGKILL")
        and candidate["weight"] <= LATE
        and (not error or error["cause"] == "terminated")
    )


def _is_mute(candidate):
    """Return whether a candidate's end says nothing: exit code 1, which any failure makes."""
    return not (candidate["error"] or candidate["signal"]) and candidate["exit_code"] == 1


def _may_follow(best, killed):
    """Return whether a failure may be what another rank's end by a signal made.

    The peers of a rank that was killed may raise anything after that. An exception in unknown words
    may follow a kill on another node, where no launcher of its own did it.
    """
    if killed["weight"] in (OOM, KILLED, TERMINATED) and _is_earlier(killed, best):
        return True
    is_vague = best["weight"] == PRIMARY and (best["error"] or {}).get("cause") in _VAGUE_CAUSES
    is_kill = killed["weight"] in (OOM, KILLED) and killed["signal"] == "SIGKILL"
    return is_vague and is_kill and killed["node"] != best["node"]


def _is_earlier(one, other):
    """Return whether one candidate ended before another one, as far as the clocks show."""
    return one["when"] is not None and other["when"] is not None and one["when"] < other["when"]


def _excuses_itself(candidate):
    """Return whether only the last lines of its log say that a candidate followed others."""
    error = candidate["error"] or {}
    return bool(error.get("closing")) and error["grade"] != "primary"


def _says_lost(candidate):
    """Return whether a candidate says that it lost contact with another rank."""
    return (candidate["error"] or {}).get("cause") in LOST_CONTACT


def _is_cut_off(candidate):
    """Return whether a signal of a launcher ended a rank that had just printed a traceback.

    It is the last message in the log, and the log was written to a moment before the end.
    """
    error, ended, written = candidate["handled"], candidate["ended"], candidate["mtime"]
    if not error or not _is_ended_by_others(candidate) or None in (ended, written):
        return False
    return (
        error["grade"] == "primary"
        and not error.get("handled")
        and (not error.get("survived") or error.get("contradicted"))
        and 0 <= ended - written < GOING_DOWN
        and (candidate["lines"] or 0) - (error["line"] or 0) <= MESSAGE
    )


def _first_child(node):
    """Return the child that a node's launcher names as the first to end, or None."""
    children = (node.get("launcher") or {}).get("children") or ()
    return next((child for child in children if child["first"]), None)


def _read_unit_end(unit):
    """Return the end of the unit's main process.

    systemd gives it as $EXIT_CODE and $EXIT_STATUS.
    """
    status = str(unit.get("exit_status"))
    if status.isdecimal():
        return {"exit_code": int(status)}
    if unit.get("exit_code") in ("killed", "dumped"):
        return {"signal": "SIG" + status}
    return {}


def _name_voters(candidates):
    """Return the words for the ranks and programs that lost contact with another one."""
    ranks = sorted(c["rank"] for c in candidates if c["rank"] is not None)
    words = [f"rank {rank}" for rank in ranks]
    if len(ranks) >= FOLD:
        words = [list_ranks(ranks)]
    return ", ".join(
        words + ["the " + c.get("who", "launcher") for c in candidates if c["rank"] is None]
    )


def _or_far(value):
    """Return a number, or infinity for None."""
    if value is None:
        return _FAR
    return value


def _by_weight(candidate):
    """Return the key that sorts candidates: by weight, then time, then rank."""
    return (-candidate["weight"], _or_far(candidate["when"]), _or_far(candidate["rank"]))
