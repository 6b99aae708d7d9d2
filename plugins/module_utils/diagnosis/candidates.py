# SPDX-License-Identifier: Apache-2.0
"""Weigh what every node found: which rank (or launcher) may be where a failure began, and how much
speaks for it.

When one rank dies the others lie: they abort, and launchers report those. A primary error in a log
that no later step survived is the strongest evidence; then a signal that came from outside and was
the first death on its node; then a first silent exit. Lost connections, aborts and stops are what
the others say, and a shared condition (nobody met anybody) is what all say: they weigh too little
to be named.
"""

from __future__ import annotations

import re

from ..attempts.evidence import is_child
from ..logs.failure_catalogue import entry_of

# From DECIDES on a candidate is named as the beginning of the failure.
PRIMARY, LAUNCHER, OOM, KILLED, DOUBTFUL, LAUNCHER_LATER, TERMINATED, SILENT, DECIDES = (
    100,
    95,
    90,
    80,
    70,
    62,
    61,
    60,
    60,
)
LATE, SHARED, SECONDARY, STOPPED = 40, 30, 20, 5
_FATAL = frozenset(
    ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGXCPU", "SIGXFSZ")
)
# Causes that say of an exception only that there was one: two of them are one failure only where
# they say the same.
_ANY = frozenset(("python_exception", "cpp_exception", "unknown"))
# seconds between two nodes' clocks from which times are corrected; less is the time it takes to ask
# them
CLOCKS_APART = 10.0
STARTS_APART = 30.0  # seconds within which the launchers of one attempt are started
BEFORE = (
    0.5  # seconds by which one death must precede another on the same node to be the earlier one
)
BEFORE_ELSEWHERE = 3.0  # the same between two nodes, whose clocks are not quite one
FULL = 1 << 20  # bytes free below which a log that breaks off did so for want of room
_FAR = float("inf")


def succeeded(unit, node):
    """Whether an attempt's unit and launcher ended well on a node, by themselves."""
    launcher = node.get("launcher") or {}
    well = (
        unit.get("service_result") == "success"
        and not launcher.get("exit_code")
        and not launcher.get("signal")
    )
    return well and not unit.get("stopped_by")


def clocks(asked):
    """{node: seconds its clock is ahead of the middle one}, 0 for differences that asking the nodes
    explains.

    A node that was stopped by a peer before that peer's own end has a clock that is behind by at
    least as much.
    """
    now = {name: node["now"] for name, node in asked.items() if node.get("now") is not None}
    middle = sorted(now.values())[(len(now) - 1) // 2] if now else 0.0
    ahead = {
        name: value - middle if abs(value - middle) >= CLOCKS_APART else 0.0
        for name, value in now.items()
    }
    # Nodes beyond Ansible's forks are asked later. Launchers are started all at once: where they
    # agree, it is the question that came late.
    begun = {name: (node.get("launcher") or {}).get("started") for name, node in asked.items()}
    known = sorted(when for when in begun.values() if when is not None)
    for name in ahead:
        if (
            begun.get(name) is not None
            and abs(begun[name] - known[(len(known) - 1) // 2] - ahead[name]) >= STARTS_APART
        ):
            ahead[name] = 0.0
    for name in ahead:
        unit = asked[name].get("exit") or {}
        teller = (asked.get(unit.get("stopped_from")) or {}).get("exit") or {}
        # A guard tells the peers before its own node ends.
        early = teller.get("stopped_by") == "guard"
        if (
            unit.get("stopped_by") == "peer"
            and not early
            and unit.get("stopped_at") is not None
            and teller.get("time") is not None
        ):
            gap = (
                unit["stopped_at"]
                - ahead[name]
                - teller["time"]
                + ahead.get(unit["stopped_from"], 0.0)
            )
            if gap < -1.0:
                ahead[name] += gap
    return ahead


def signature(candidate):
    """What two candidates of one failure have in common: the cause, and the words where the cause
    says little.
    """
    error = candidate["error"]
    if not error:
        return candidate["signal"] or candidate["exit_code"]
    said = re.sub(r"0x[0-9a-f]+|\d+|'[^']*'|/\S+", "#", f"{error['kind']}: {error['text']}")
    return (error["cause"], said if error["cause"] in _ANY else None)


class Weighing:
    """`candidates`, the heaviest first, from {node: what rank_logs returned}; with `units`,
    `stopped`, `failed`, `ahead` and `ranks`.
    """

    def __init__(self, asked, alone=False):
        """asked: the findings of each node. alone: whether the plan has one node only, which is
        free to talk to itself over loopback.
        """
        self.asked, self.alone = asked, alone
        self.ahead = clocks(asked)
        self.units = {name: node.get("exit") for name, node in asked.items()}
        self.stopped = {
            name: unit for name, unit in self.units.items() if unit and unit.get("stopped_by")
        }
        self.fine = [
            name for name, unit in self.units.items() if unit and succeeded(unit, asked[name])
        ]
        self.failed = [
            name
            for name, unit in self.units.items()
            if unit and name not in self.stopped and name not in self.fine
        ]
        self.ranks = [
            dict(rank, node=name)
            for name, node in asked.items()
            for rank in node.get("ranks") or []
        ]
        self.firsts = self._first_deaths()
        out = [candidate for candidate in map(self._rank, self.ranks) if candidate]
        spoken = {candidate["node"] for candidate in out if candidate["weight"] > STOPPED}
        out += [
            self._launcher(name)
            for name in self.failed
            if name not in spoken or self._cut_down(name)
        ]
        out += [scheduler for scheduler in map(self._scheduler, self.failed) if scheduler]
        primary = [candidate for candidate in out if candidate["weight"] == PRIMARY]
        for candidate in out:
            # Nobody of ours kills before something has failed: such a death, if it came first,
            # began it all.
            if (
                primary
                and candidate["weight"] in (OOM, KILLED)
                and all(self.precedes(candidate, other) for other in primary)
            ):
                candidate["weight"] = PRIMARY
        self._believe_launchers(out)
        self._told_to_stop(out)
        out += self._suspect(out)
        self.candidates = sorted(
            out,
            key=lambda c: (
                -c["weight"],
                *(_FAR if c[key] is None else c[key] for key in ("when", "rank")),
            ),
        )

    def precedes(self, one, other):
        """Whether one candidate's end came before another's, beyond doubt."""
        if one["when"] is None or other["when"] is None:
            return False
        margin = BEFORE
        if one["node"] != other["node"]:
            asked = [self.asked[c["node"]].get("now") or 0.0 for c in (one, other)]
            apart = abs(asked[0] - asked[1])  # time to ask them, or clocks that nothing corrected
            margin = max(BEFORE_ELSEWHERE, apart + 1.0 if apart < CLOCKS_APART else 0.0)
        return other["when"] - one["when"] > margin

    def rivals(self):
        """Candidates that may as well be the beginning as the first one: another failure, and none
        was the earlier beyond doubt.
        """
        best = self.candidates[0]
        return [c for c in self.candidates[1:] if self._rival(best, c)]

    def _rival(self, best, other):
        if (
            other["weight"] < DECIDES
            or self.precedes(best, other)
            or signature(best) == signature(other)
        ):
            return False
        if other["weight"] == best["weight"]:
            return True
        # An exception in words that nobody knows may follow a kill on another node, where no
        # launcher of its own did it.
        vague = best["weight"] == PRIMARY and best["error"] and best["error"]["cause"] in _ANY
        return (
            bool(vague)
            and other["weight"] in (OOM, KILLED)
            and other["signal"] == "SIGKILL"
            and other["node"] != best["node"]
        )

    def _believe_launchers(self, candidates):
        """msrun and mpirun name the child that ended first; what ended with it then, without a word
        of its own, was ended by them.
        """
        mute = [
            c for c in candidates if c["rank"] is not None and c["weight"] in (OOM, KILLED, SILENT)
        ]
        for name, node in self.asked.items():
            told = next(
                (
                    said
                    for said in (node.get("launcher") or {}).get("children") or ()
                    if said["first"]
                ),
                None,
            )
            scope = [c for c in mute if told and (c["node"] == name or told["rank"] is not None)]
            if any(is_child(told, c) for c in scope):
                for candidate in scope:
                    if not is_child(told, candidate) and candidate["signal"] in (None, "SIGKILL"):
                        candidate["weight"], candidate["why"] = (
                            LATE,
                            "ended after the child that its launcher names as the first",
                        )

    def _told_to_stop(self, candidates):
        """A SIGTERM, the first end on its node, while nothing of ours was stopping anything: it
        came from somebody else.
        """
        told = [
            c
            for c in candidates
            if c["signal"] == "SIGTERM"
            and c["weight"] == SECONDARY
            and c["node"] not in self.stopped
        ]
        told = [
            c
            for c in told
            if self._first(c) and (not c["error"] or c["error"]["cause"] == "terminated")
        ]
        if len({c["node"] for c in told}) != 1 or any(c["weight"] >= SHARED for c in candidates):
            return
        named = [c["rank"] for c in told]
        beside = [
            rank
            for rank in self.ranks
            if rank["node"] == told[0]["node"] and rank["rank"] not in named
        ]
        if all(rank.get("ended") is not None and not self._first(rank) for rank in beside):
            for candidate in told:
                candidate["weight"], candidate["why"] = (
                    TERMINATED,
                    "was told to stop before anything else had failed",
                )

    def _first(self, rank):
        """Whether a rank's end was seen and was the first on its node, or came with the first."""
        return (
            rank.get("ended") is not None
            and rank["ended"] - self.firsts.get(rank["node"], _FAR) < BEFORE
        )

    def _first_deaths(self):
        """{node: time of its first rank's abnormal end}, by the node's own clock."""
        firsts = {}
        for rank in self.ranks:
            if rank.get("ended") is not None and rank.get("exit_code") != 0:
                firsts[rank["node"]] = min(firsts.get(rank["node"], _FAR), rank["ended"])
        return firsts

    def _by_us(self, rank):
        """Whether this end is what stopping the attempt does, or what systemd does to the ranks of
        a launcher that is gone.
        """
        node, ended = rank["node"], rank.get("ended")
        if node in self.stopped:
            at = self.stopped[node].get("stopped_at")
            return at is None or ended is None or ended >= at
        gone = (self.asked[node].get("launcher") or {}).get("ended")
        return gone is not None and ended is not None and ended >= gone

    def _rank(self, rank):
        """What the findings about one rank weigh, or None where it ended well or says nothing."""
        error, code, signal, ended = (
            rank.get(key) for key in ("first_error", "exit_code", "signal", "ended")
        )
        if error and self.alone and error["cause"] == "loopback_address":
            error = dict(error, **entry_of("connection_lost"))
        if (
            error
            and error["kind"] == "Traceback"
            and error["text"].startswith("cut short")
            and self._full(rank["node"])
        ):
            # The words that name the cause had no room on the disk that they tell of.
            error = dict(error, text="its disk is full: " + error["text"], **entry_of("disk_full"))
        if (
            code == 0
            or not (error or code or signal)
            or (rank["node"] in self.fine and not code and not signal)
        ):
            return None
        is_first = ended is None or ended - self.firsts[rank["node"]] < BEFORE
        primary = bool(error) and error["grade"] == "primary"
        # Paddle's handler and faulthandler print a signal, which is no mistake in the code or the
        # data.
        crash = primary and (error["kind"] == "FatalError" or error["cause"] == "segfault")
        passing = primary and not crash and (error.get("handled") or error.get("survived"))
        if primary and not crash and not passing:
            weight, why = self._primary(rank, error, is_first)
        elif self._by_us(rank) and not (passing and error.get("thread")):
            weight, why = STOPPED, "was stopped with the attempt"
        elif signal == "SIGKILL" and self._oom(rank["node"]):
            weight, why = OOM, "the kernel killed it for want of memory"
        elif crash or (signal in _FATAL and (passing or not error)):
            weight, why = (
                (KILLED, "died of a signal, first on its node")
                if is_first
                else (LATE, "died of a signal, not first on its node")
            )
        elif passing:
            weight, why = (
                (DOUBTFUL if is_first else LATE),
                "its log holds an error, but one that was handled or that steps followed",
            )
        elif error and error["grade"] == "shared":
            weight, why = SHARED, "met a condition that all ranks share"
        elif not error and rank.get("bytes") is None and (code or signal == "SIGABRT"):
            weight, why = LATE, "ended, and its log is not there to say why"
        elif error or not (code or signal == "SIGABRT"):
            weight, why = SECONDARY, "lost its peers or was told to stop"
        else:
            weight, why = (
                (SILENT if is_first else LATE),
                "ended without a message" + (", first on its node" if is_first else ""),
            )
        return self._candidate(rank, weight, why, error)

    def _full(self, node):
        """Whether the disk of the logs was full when the node was asked."""
        free = self.asked[node].get("free")
        return free is not None and free < FULL

    def _primary(self, rank, error, is_first):
        at = self.stopped.get(rank["node"], {}).get("stopped_at")
        if at is not None and all(
            rank.get(key) is None or rank[key] >= at for key in ("ended", "mtime")
        ):
            return DOUBTFUL, "its log holds an error, but one that stopping it may have made"
        if error["cause"] == "worker_died" and not is_first:
            return LATE, "its loader workers died, after another rank of its node"
        return PRIMARY, "its log holds an error of its own"

    def _oom(self, name):
        unit = self.units.get(name) or {}
        return unit.get("service_result") == "oom-kill" or bool(unit.get("oom_kills"))

    def _cut_down(self, name):
        """Whether the unit's own process was killed by a signal while its launcher still ran:
        nobody of ours does that to an attempt.
        """
        launcher = self.asked[name].get("launcher") or {}
        unseen = launcher.get("exit_code") is None and not launcher.get("signal")
        return unseen and (self.units[name] or {}).get("service_result") in (
            "signal",
            "core-dump",
            "watchdog",
        )

    def _launcher(self, name):
        """A node whose unit failed without a rank to blame: its launcher, or the start itself,
        speaks.
        """
        node, unit = self.asked[name], self.units[name]
        started = any(r.get("pid") or r.get("bytes") for r in self.ranks if r["node"] == name)
        launcher = dict(node.get("launcher") or {}, node=name)
        error, code, signal = (launcher.get(key) for key in ("first_error", "exit_code", "signal"))
        if (
            code is None and signal is None
        ):  # systemd's $EXIT_CODE and $EXIT_STATUS, of the unit's main process
            status = str(unit.get("exit_status"))
            if status.isdecimal():
                launcher["exit_code"] = int(status)
            elif unit.get("exit_code") in ("killed", "dumped"):
                launcher["signal"] = "SIG" + status
        if unit.get("service_result") == "oom-kill":
            weight = OOM
        elif self._cut_down(name):
            weight = KILLED
        elif error and error["grade"] != "primary":
            weight = SHARED if error["grade"] == "shared" else SECONDARY
        elif not started:
            weight = LAUNCHER
        else:
            weight = LAUNCHER_LATER if error or signal in _FATAL else LATE
        why = (
            f"its unit ended with {unit.get('service_result')}"
            f" {'after its ranks had started' if started else 'before any rank started'}"
        )
        return dict(
            self._candidate(launcher, weight, why, error),
            home=f"launcher.{name}.log",
            started=started,
        )

    def _scheduler(self, name):
        """MindSpore's scheduler on a node whose unit failed, where its log holds an error; None
        elsewhere.
        """
        found = self.asked[name].get("scheduler") or {}
        error = found.get("first_error")
        if not error:
            return None
        weight = {"primary": LAUNCHER, "shared": SHARED}.get(error["grade"], SECONDARY)
        rank = {"node": name, "home": found["home"], "mtime": found.get("mtime")}
        return dict(
            self._candidate(rank, weight, "the scheduler's log holds an error", error),
            who="scheduler",
            started=True,
        )

    def _candidate(self, rank, weight, why, error):
        found = {
            key: rank.get(key)
            for key in (
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
            )
        }
        when = rank.get("ended")
        if when is None and error:
            when = error.get("time") or rank.get("mtime")
        elif weight == PRIMARY and rank.get("mtime"):
            when = min(when, rank["mtime"])  # a rank may take long to go after it has said why
        if when is not None:
            when -= self.ahead.get(rank["node"], 0.0)
        return dict(found, weight=weight, why=why, error=error, when=when)

    def _suspect(self, candidates):
        """A rank that fell silent, or aborted without losing anybody, while its peers lost it: at
        most one, or it is a guess.
        """
        votes = {}
        for candidate in candidates:
            votes.setdefault((candidate["error"] or {}).get("peer"), []).append(candidate)
        silent = [
            r
            for r in self.ranks
            if r.get("exit_code") is None and not (r.get("signal") or r.get("first_error"))
        ]
        # a node without a record of its end may run still, or was restarted: that is to be said,
        # and no rank of it to be blamed
        silent = [r for r in silent if r["node"] not in self.stopped and self.units.get(r["node"])]
        aborted = [
            c
            for c in candidates
            if c["weight"] == SECONDARY and c["error"] and c["error"]["cause"] == "aborted"
        ]
        aborted = [
            c for c in aborted if c["error"]["peer"] is None and c["node"] not in self.stopped
        ]
        if len(silent) + len(aborted) != 1 or (silent or aborted)[0]["rank"] not in votes:
            return []
        voters = votes[(silent or aborted)[0]["rank"]]
        by = ", ".join(
            "the " + c.get("who", "launcher") if c["rank"] is None else f"rank {c['rank']}"
            for c in sorted(voters, key=_by_rank)
        )
        if aborted:
            aborted[0].update(weight=SILENT, why=f"aborted, and {by} lost contact with it")
            return []
        return [
            self._candidate(silent[0], SILENT, f"fell silent, and {by} lost contact with it", None)
        ]


def _by_rank(candidate):
    return _FAR if candidate["rank"] is None else candidate["rank"]
