# SPDX-License-Identifier: Apache-2.0
"""Weigh what every node found: which rank (or launcher) may be where a failure began, and how much speaks for it.

When one rank dies the others lie: they abort, and launchers report those. A primary error in a log that no later step survived is the
strongest evidence; then a signal that came from outside and was the first death on its node; then a first silent exit. Lost connections,
aborts and stops are what the others say: they weigh too little to be named.
"""

from __future__ import annotations

# From DECIDES on a candidate is named as the beginning of the failure.
PRIMARY, LAUNCHER, OOM, KILLED, DOUBTFUL, LAUNCHER_LATER, SILENT, DECIDES = 100, 95, 90, 80, 70, 62, 60, 60
LATE, SECONDARY, STOPPED = 40, 20, 5
_FATAL = frozenset(("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGXCPU", "SIGXFSZ"))
CLOCKS_APART = 10.0  # seconds between two nodes' clocks from which times are corrected; less is the time it takes to ask them
BEFORE = 0.5  # seconds by which one death must precede another on the same node to be the earlier one
BEFORE_ELSEWHERE = 3.0  # the same between two nodes, whose clocks are not quite one
_FAR = float("inf")


def succeeded(unit, node):
    """Whether an attempt's unit and launcher ended well on a node, by themselves."""
    launcher = node.get("launcher") or {}
    well = unit.get("service_result") == "success" and not launcher.get("exit_code") and not launcher.get("signal")
    return well and not unit.get("stopped_by")


def clocks(asked):
    """{node: seconds its clock is ahead of the middle one}, 0 for differences that asking the nodes explains."""
    now = {name: node["now"] for name, node in asked.items() if node.get("now") is not None}
    middle = sorted(now.values())[(len(now) - 1) // 2] if now else 0.0
    return {name: value - middle if abs(value - middle) >= CLOCKS_APART else 0.0 for name, value in now.items()}


def precedes(one, other):
    """Whether one candidate's end came before another's, beyond doubt."""
    if one["when"] is None or other["when"] is None:
        return False
    return other["when"] - one["when"] > (BEFORE if one["node"] == other["node"] else BEFORE_ELSEWHERE)


class Weighing:
    """`candidates`, the heaviest first, from {node: what rank_logs returned}; with `units`, `stopped`, `failed`, `ahead` and `ranks`."""

    def __init__(self, asked):
        self.asked = asked
        self.ahead = clocks(asked)
        self.units = {name: node.get("exit") for name, node in asked.items()}
        self.stopped = {name: unit for name, unit in self.units.items() if unit and unit.get("stopped_by")}
        self.fine = [name for name, unit in self.units.items() if unit and succeeded(unit, asked[name])]
        self.failed = [name for name, unit in self.units.items() if unit and name not in self.stopped and name not in self.fine]
        self.ranks = [dict(rank, node=name) for name, node in asked.items() for rank in node.get("ranks") or []]
        firsts = self._first_deaths()
        out = [candidate for candidate in (self._rank(rank, firsts) for rank in self.ranks) if candidate]
        spoken = {candidate["node"] for candidate in out if candidate["weight"] > STOPPED}
        out += [self._launcher(name) for name in self.failed if name not in spoken or self._cut_down(name)]
        primary = [candidate for candidate in out if candidate["weight"] == PRIMARY]
        for candidate in out:
            # Nobody of ours kills before something has failed: such a death, if it came first, began it all.
            if primary and candidate["weight"] in (OOM, KILLED) and all(precedes(candidate, other) for other in primary):
                candidate["weight"] = PRIMARY
        out += self._suspect(out)
        self.candidates = sorted(out, key=lambda c: (-c["weight"], *(_FAR if c[key] is None else c[key] for key in ("when", "rank"))))

    def _first_deaths(self):
        """{node: time of its first rank's abnormal end}, by the node's own clock."""
        firsts = {}
        for rank in self.ranks:
            if rank.get("ended") is not None and rank.get("exit_code") != 0:
                firsts[rank["node"]] = min(firsts.get(rank["node"], _FAR), rank["ended"])
        return firsts

    def _by_us(self, rank):
        """Whether this end is what stopping the attempt does, or what systemd does to the ranks of a launcher that is gone."""
        node, ended = rank["node"], rank.get("ended")
        if node in self.stopped:
            at = self.stopped[node].get("stopped_at")
            return at is None or ended is None or ended >= at
        gone = (self.asked[node].get("launcher") or {}).get("ended")
        return gone is not None and ended is not None and ended >= gone

    def _rank(self, rank, firsts):
        """What the findings about one rank weigh, or None where it ended well or says nothing."""
        error, code, signal, ended = (rank.get(key) for key in ("first_error", "exit_code", "signal", "ended"))
        if code == 0 or not (error or code or signal) or (rank["node"] in self.fine and not code and not signal):
            return None
        is_first = ended is None or ended - firsts[rank["node"]] < BEFORE
        primary = bool(error) and error["grade"] == "primary"
        # Paddle's handler and faulthandler print a signal, which is no mistake in the code or the data.
        crash = primary and (error["kind"] == "FatalError" or error["cause"] == "segfault")
        passing = primary and not crash and (error.get("handled") or error.get("survived"))
        if primary and not crash and not passing:
            weight, why = self._primary(rank, error, is_first)
        elif self._by_us(rank) and not (passing and error.get("thread")):
            weight, why = STOPPED, "was stopped with the attempt"
        elif signal == "SIGKILL" and self._oom(rank["node"]):
            weight, why = OOM, "the kernel killed it for want of memory"
        elif crash or (signal in _FATAL and (passing or not error)):
            weight, why = (KILLED, "died of a signal, first on its node") if is_first else (LATE, "died of a signal, not first on its node")
        elif passing:
            weight, why = (DOUBTFUL if is_first else LATE), "its log holds an error, but one that was handled or that steps followed"
        elif error or not (code or signal == "SIGABRT"):
            weight, why = SECONDARY, "lost its peers or was told to stop"
        else:
            weight, why = (SILENT if is_first else LATE), "ended without a message" + (", first on its node" if is_first else "")
        return self._candidate(rank, weight, why, error)

    def _primary(self, rank, error, is_first):
        at = self.stopped.get(rank["node"], {}).get("stopped_at")
        if at is not None and all(rank.get(key) is None or rank[key] >= at for key in ("ended", "mtime")):
            return DOUBTFUL, "its log holds an error, but one that stopping it may have made"
        if error["cause"] == "worker_died" and not is_first:
            return LATE, "its loader workers died, after another rank of its node"
        return PRIMARY, "its log holds an error of its own"

    def _oom(self, name):
        unit = self.units.get(name) or {}
        return unit.get("service_result") == "oom-kill" or bool(unit.get("oom_kills"))

    def _cut_down(self, name):
        """Whether the unit's own process was killed by a signal while its launcher still ran: nobody of ours does that to an attempt."""
        launcher = self.asked[name].get("launcher") or {}
        unseen = launcher.get("exit_code") is None and not launcher.get("signal")
        return unseen and (self.units[name] or {}).get("service_result") in ("signal", "core-dump", "watchdog")

    def _launcher(self, name):
        """A node whose unit failed without a rank to blame: its launcher, or the start itself, speaks."""
        node, unit = self.asked[name], self.units[name]
        started = any(r.get("pid") or r.get("bytes") for r in self.ranks if r["node"] == name)
        launcher = dict(node.get("launcher") or {}, node=name)
        error, code, signal = (launcher.get(key) for key in ("first_error", "exit_code", "signal"))
        if code is None and signal is None:  # systemd's $EXIT_CODE and $EXIT_STATUS, of the unit's main process
            status = str(unit.get("exit_status"))
            if status.isdecimal():
                launcher["exit_code"] = int(status)
            elif unit.get("exit_code") in ("killed", "dumped"):
                launcher["signal"] = "SIG" + status
        if self._cut_down(name):
            weight = KILLED
        elif error and error["grade"] != "primary":
            weight = SECONDARY
        elif not started:
            weight = LAUNCHER
        else:
            weight = LAUNCHER_LATER if error or signal in _FATAL else LATE
        why = f"its unit ended with {unit.get('service_result')} {'after its ranks had started' if started else 'before any rank started'}"
        return dict(self._candidate(launcher, weight, why, error), home=f"launcher.{name}.log", started=started)

    def _candidate(self, rank, weight, why, error):
        found = {key: rank.get(key) for key in ("rank", "node", "local_rank", "exit_code", "signal", "observed", "ended", "home")}
        when = rank.get("ended")
        if when is None and error:
            when = error.get("time") or rank.get("mtime")
        elif weight == PRIMARY and rank.get("mtime"):
            when = min(when, rank["mtime"])  # a rank may take long to go after it has said why
        if when is not None:
            when -= self.ahead.get(rank["node"], 0.0)
        return dict(found, weight=weight, why=why, error=error, when=when)

    def _suspect(self, candidates):
        """A rank that fell silent, its end unseen, while its peers lost contact with it: at most one, or it would be guessing."""
        votes = {}
        for candidate in candidates:
            votes.setdefault((candidate["error"] or {}).get("peer"), []).append(candidate["rank"])
        silent = [r for r in self.ranks if r.get("exit_code") is None and not (r.get("signal") or r.get("first_error"))]
        silent = [r for r in silent if r["node"] not in self.stopped]
        if len(silent) != 1 or silent[0]["rank"] not in votes:
            return []
        by = ", ".join(f"rank {r}" for r in sorted(votes[silent[0]["rank"]]))
        return [self._candidate(silent[0], SILENT, f"fell silent, and {by} lost contact with it", None)]
