# SPDX-License-Identifier: Apache-2.0
"""Why an attempt ended: node, rank, real exit code or signal, first error, log, remedy. A pure function over what every node found.

When one rank dies the others lie: they abort, and launchers report those. So evidence is weighed. A primary error in a log that no
later step survived is the strongest; then a signal that came from outside and was the first death on its node; then a first silent
exit. Lost connections, aborts and stops are what the others say, and accuse nobody while anything better is known. Where nothing
decides, the verdict says so.
"""

from __future__ import annotations

from ansible.module_utils.trainyard.causes import entry_of

# How much a finding about one rank counts. From DECIDES on it is named as the beginning of the failure.
PRIMARY, LAUNCHER, OOM, KILLED, DOUBTFUL, SILENT, DECIDES = 100, 95, 90, 80, 70, 60, 60
LATE, SECONDARY, STOPPED = 40, 20, 5
_FATAL = frozenset(("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGXCPU", "SIGXFSZ"))
_SIGNAL_CAUSES = {
    "SIGSEGV": "segfault",
    "SIGILL": "segfault",
    "SIGFPE": "segfault",
    "SIGBUS": "bus_error",
    "SIGKILL": "killed",
    "SIGABRT": "aborted",
}
_STOPS = frozenset(("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"))
CLOCKS_APART = 10.0  # seconds between two nodes' clocks from which times are corrected; less is the time it takes to ask them
BEFORE = 0.5  # seconds by which one death must precede another on the same node to be the earlier one
BEFORE_ELSEWHERE = 3.0  # the same between two nodes, whose clocks are not quite one
MANY = 8  # candidates and evidence lines that are listed


def decide(plan_ranks, nodes, log_dir=""):
    """The verdict of one attempt.

    plan_ranks: the plan's `ranks`. nodes: what rank_logs returned for each node, as a list or as {name: result}; a node that could not
    be asked is {"node": name, "unreachable": reason}, and a planned node that is missing counts as such. log_dir: where the logs were
    brought to, for the text.
    """
    found = nodes if isinstance(nodes, dict) else {n.get("node"): n for n in nodes}
    names = list(dict.fromkeys(r["node"] for r in plan_ranks))
    missing = {
        n: str((found.get(n) or {}).get("unreachable") or "no findings") for n in names if not found.get(n) or found[n].get("unreachable")
    }
    asked = {n: found[n] for n in names if n not in missing}
    case = _Case(plan_ranks, asked, missing, log_dir)
    return case.verdict()


class _Case:
    def __init__(self, plan_ranks, asked, missing, log_dir):
        self.plan_ranks, self.asked, self.missing, self.log_dir = plan_ranks, asked, missing, log_dir
        self.ahead = _clocks(asked)
        self.units = {name: node.get("exit") for name, node in asked.items()}
        self.stopped = {name: unit for name, unit in self.units.items() if unit and unit.get("stopped_by")}
        self.failed = [
            name for name, unit in self.units.items() if unit and not unit.get("stopped_by") and not _succeeded(unit, asked[name])
        ]
        self.ranks = [dict(rank, node=name) for name, node in asked.items() for rank in node.get("ranks") or []]
        self.notes = []
        self.candidates = self._candidates()

    # -- weighing --

    def _candidates(self):
        firsts = self._first_deaths()
        out = [self._rank(rank, firsts.get(rank["node"])) for rank in self.ranks]
        out = [candidate for candidate in out if candidate]
        out += [candidate for candidate in map(self._node, self.failed) if candidate]
        primary = [c for c in out if c["weight"] == PRIMARY]
        for candidate in out:
            # Nobody of ours sends SIGKILL before something has failed: such a death, if it came first, began it all.
            outside = candidate["signal"] == "SIGKILL" and KILLED <= candidate["weight"] < PRIMARY
            if outside and primary and all(_precedes(candidate, other) for other in primary):
                candidate["weight"] = PRIMARY
        self._suspect(out)
        far = float("inf")
        return sorted(out, key=lambda c: (-c["weight"], far if c["when"] is None else c["when"], far if c["rank"] is None else c["rank"]))

    def _first_deaths(self):
        """{node: time of its first rank's abnormal end}, by the node's own clock."""
        firsts = {}
        for rank in self.ranks:
            if rank.get("ended") is not None and rank.get("exit_code") != 0:
                firsts[rank["node"]] = min(firsts.get(rank["node"], rank["ended"]), rank["ended"])
        return firsts

    def _by_us(self, rank):
        """Whether this end is what stopping the attempt does."""
        unit, ended = self.stopped.get(rank["node"]), rank.get("ended")
        if not unit:
            # Once the launcher is gone, systemd ends what is left of the unit.
            gone = (self.asked[rank["node"]].get("launcher") or {}).get("ended")
            return gone is not None and ended is not None and ended >= gone and rank.get("signal") in _STOPS
        at = unit.get("stopped_at")
        if at is not None and ended is not None and ended < at:
            return False
        return rank.get("signal") in _STOPS or rank.get("exit_code") in (130, 143) or ended is None

    def _rank(self, rank, first):
        """What the findings about one rank weigh, or None where it ended well or says nothing."""
        error, code, signal, ended = rank.get("first_error"), rank.get("exit_code"), rank.get("signal"), rank.get("ended")
        unit = self.units.get(rank["node"])
        fine = unit is not None and not unit.get("stopped_by") and rank["node"] not in self.failed
        if code == 0 or not (error or code or signal or ended) or (fine and not code and not signal):
            return None
        is_first = first is None or ended is None or ended - first < BEFORE
        primary = bool(error) and error["grade"] == "primary"
        crash = primary and (error["kind"] == "FatalError" or error["cause"] == "segfault")  # the log of a signal, not of a mistake
        passing = primary and (error.get("handled") or error.get("survived"))
        if self._by_us(rank) and (not primary or crash or (passing and not error.get("thread"))):
            weight, why = STOPPED, "was stopped with the attempt"
        elif primary and not crash and not passing:
            weight, why = self._weigh_primary(rank, error, is_first)
        elif signal == "SIGKILL" and self._oom(rank["node"]):
            weight, why = OOM, "the kernel killed it for want of memory"
        elif crash or (signal in _FATAL and (passing or not error)):
            weight, why = (
                (KILLED, "died of a signal, first on its node") if is_first else (LATE, "died of a signal, after another rank of its node")
            )
        elif passing:
            weight, why = (DOUBTFUL if is_first else LATE), "its log holds an error, but one that was handled or that steps followed"
        elif error:
            weight, why = SECONDARY, "says that it lost its peers or was told to stop"
        elif code or signal == "SIGABRT":
            weight, why = (
                (SILENT, "ended without a message, first on its node") if is_first else (LATE, "ended without a message, after another")
            )
        else:
            weight, why = SECONDARY, "ended, how was not observed"
        return self._candidate(rank, weight, why, error)

    def _weigh_primary(self, rank, error, is_first):
        at = (self.stopped.get(rank["node"]) or {}).get("stopped_at")
        if at is not None and min(rank.get("ended") or at, rank.get("mtime") or at) >= at:
            return DOUBTFUL, "its log holds an error, but one that stopping it may have made"
        if error["cause"] == "worker_died" and not is_first:
            return LATE, "its loader workers died, after another rank of its node"
        return PRIMARY, "its log holds an error of its own"

    def _node(self, name):
        """A node whose unit failed without a rank to blame: its launcher, or the start itself, speaks."""
        node = self.asked[name]
        ranks = [r for r in self.ranks if r["node"] == name]
        if any((r.get("first_error") or r.get("exit_code") or r.get("signal")) and not self._by_us(r) for r in ranks):
            return None
        started = any(r.get("pid") or r.get("bytes") for r in ranks)
        launcher, unit = node.get("launcher") or {}, self.units[name]
        error, code, signal = (launcher.get(key) for key in ("first_error", "exit_code", "signal"))
        if error and error["grade"] != "primary":
            weight = SECONDARY
        elif not started:
            weight = LAUNCHER
        else:
            weight = SILENT + 2 if error or signal in _FATAL else LATE
        if code is None and signal is None:
            status = str(unit.get("exit_status") or "")
            code = int(status) if status.isdigit() else None
            signal = "SIG" + status if unit.get("exit_code") in ("killed", "dumped") and status and not status.isdigit() else None
        rank = {"node": name, "rank": None, "local_rank": None, "exit_code": code, "signal": signal, "ended": launcher.get("ended")}
        why = f"its unit ended with {unit.get('service_result')} {'after its ranks had started' if started else 'before any rank started'}"
        candidate = self._candidate(rank, weight, why, error)
        candidate["started"] = started
        return candidate

    def _candidate(self, rank, weight, why, error):
        node, ended = rank["node"], rank.get("ended")
        when = ended if ended is not None else (error or {}).get("time") or (rank.get("mtime") if error else None)
        if weight == PRIMARY and rank.get("mtime") and when is not None:
            when = min(when, rank["mtime"])  # a rank may take long to go after it has said why
        return {
            "rank": rank.get("rank"), "node": node, "local_rank": rank.get("local_rank"), "exit_code": rank.get("exit_code"),
            "signal": rank.get("signal"), "observed": rank.get("observed"), "ended": ended, "weight": weight, "why": why, "error": error,
            "home": rank.get("home") if rank.get("rank") is not None else f"launcher.{node}.log",
            "when": None if when is None else when - self.ahead.get(node, 0.0),
        }  # fmt: skip

    def _oom(self, name):
        unit = self.units.get(name) or {}
        return unit.get("service_result") == "oom-kill" or bool(unit.get("oom_kills"))

    def _suspect(self, candidates):
        """With nobody's end observed, a rank that fell silent while its peers lost contact with it is the one that went first."""
        spoke = {c["rank"] for c in candidates if c["error"]}
        votes = {}
        for candidate in candidates:
            if candidate["error"] and candidate["error"].get("peer") is not None:
                votes.setdefault(candidate["error"]["peer"], []).append(candidate["rank"])
        silent = [r for r in self.ranks if r["rank"] not in spoke and r.get("exit_code") is None and not r.get("signal")]
        silent = [r for r in silent if r["node"] not in self.stopped]
        if len(silent) == 1 and silent[0]["rank"] in votes and all(c["weight"] <= SECONDARY for c in candidates):
            rank = silent[0]
            by = ", ".join(f"rank {r}" for r in sorted(votes[rank["rank"]]))
            candidates[:] = [c for c in candidates if c["rank"] != rank["rank"]]
            candidates.append(self._candidate(rank, SILENT, f"fell silent, and {by} lost contact with it", None))

    # -- the verdict --

    def verdict(self):
        best = self.candidates[0] if self.candidates else None
        decided = best if best and best["weight"] >= DECIDES else None
        user = {n: u for n, u in self.stopped.items() if u["stopped_by"] != "peer"}
        if user and not self.failed and not (decided and decided["weight"] >= KILLED and self._before_stop(decided)):
            return self._stopped(user, decided)
        if decided:
            return self._failed(decided)
        if self.missing:
            return self._lost()
        open_ended = [name for name, unit in self.units.items() if unit is None]
        if open_ended:
            text = f"UNKNOWN: {_list(open_ended)} recorded no end: the unit still runs there, or the node was restarted"
            return self._result(
                "unknown",
                text,
                node=open_ended[0],
                cause="no_end_recorded",
                remedy="look at the unit and the uptime of the node, then collect again",
            )
        if not self.failed and not self.stopped and not self.candidates:
            return self._completed()
        return self._undecided()

    def _diverged(self):
        """A rank whose loss was no finite number to the end, or None."""
        return next((r for r in self.ranks if r.get("nan") and (r.get("last_step") or {}).get("loss", 0) is None), None)

    def _before_stop(self, candidate):
        times = [u["stopped_at"] - self.ahead.get(n, 0.0) for n, u in self.stopped.items() if u.get("stopped_at") is not None]
        return bool(times) and candidate["when"] is not None and candidate["when"] < min(times) - BEFORE

    def _failed(self, best):
        error, unobserved = best["error"], best["exit_code"] is None and best["signal"] is None
        who = (
            f"the launcher on {best['node']}"
            if best["rank"] is None
            else f"rank {best['rank']} on {best['node']} (local rank {best['local_rank']})"
        )
        if best["rank"] is None:
            silent = "launcher_failed"
        elif best["weight"] == OOM:
            silent = "out_of_memory"
        else:
            silent = "silent_end" if unobserved else _SIGNAL_CAUSES.get(best["signal"], "killed") if best["signal"] else "silent_exit"
        entry = error if _blamed(best) else entry_of(silent)
        diverged, why = self._diverged(), ""
        if diverged and entry["cause"] in ("python_exception", "cpp_exception"):
            # What is raised then (an input below 0, a failed assertion) only says where the nan first hurt.
            entry = entry_of("nan")
            why = f"; the loss had been {diverged['nan']['loss']} since line {diverged['nan'].get('line')} of rank {diverged['rank']}'s log"
        how = (
            "exit code not observed"
            if unobserved
            else f"exit code {best['exit_code']}"
            if best["signal"] is None
            else f"signal {best['signal']}"
        )
        if best.get("observed") == "launcher":
            how += " as the launcher says"
        log = f"{self.log_dir.rstrip('/')}/{best['home']}" if self.log_dir else best["home"]
        line = error["line"] if _blamed(best) else None
        text = f"FAILED: {who} {_what(best)} ({how}){why}; log {log}{':' + str(line) if line else ''}; remedy: {entry['remedy']}"
        if self.missing:
            text += f"; not asked: {_list(self.missing)}"
        return self._result(
            "failed",
            text,
            best=best,
            cause=entry["cause"],
            error=error if _blamed(best) else None,
            log=log,
            line=line,
            remedy=entry["remedy"],
        )

    def _stopped(self, user, decided):
        by = sorted({str(u["stopped_by"]) for u in user.values()})
        source = sorted({str(u["stopped_from"]) for u in user.values() if u.get("stopped_from")})
        text = f"STOPPED: by the {_list(by)}" + (f" ({_list(source)})" if source else "")
        if decided:
            text += f"; before that rank {decided['rank']} on {decided['node']} {_what(decided)}"
        if self.missing:
            text += f"; not asked: {_list(self.missing)}"
        return self._result(
            "stopped", text, cause="stopped_by_" + by[0], remedy="none is needed; the same command or resume starts it again"
        )

    def _lost(self):
        first = next(iter(self.missing))
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.missing.items())
        ranks = [r["rank"] for r in self.plan_ranks if r["node"] in self.missing]
        text = f"LOST: {_list(self.missing)} did not answer ({reasons}), with {_ranks(ranks)}; the other nodes show no cause of their own"
        remedy = "bring the node back or take it out of the site, then collect again: its logs may hold the cause"
        return self._result("lost", f"{text}; remedy: {remedy}", node=first, cause="unreachable", remedy=remedy)

    def _completed(self):
        unstarted = [r for r in self.plan_ranks if not any(k["rank"] == r["rank"] and (k.get("pid") or k.get("file")) for k in self.ranks)]
        if unstarted:
            rank = unstarted[0]
            remedy = "compare the launcher's own view of the cluster (its console) with the plan"
            who = f"rank {rank['rank']} on {rank['node']} (local rank {rank['local_rank']})"
            text = f"FAILED: {who} was never started although its launcher ended well; remedy: {remedy}"
            return self._result(
                "failed", text, node=rank["node"], rank=rank["rank"], local_rank=rank["local_rank"], cause="rank_missing", remedy=remedy
            )
        seen = all(r.get("exit_code") == 0 for r in self.ranks)
        text = f"COMPLETED: {_count(self.plan_ranks, 'rank')} on {_count(self.asked, 'node')} ended with exit code 0"
        text += "" if seen else " (some seen by their unit only)"
        bad = self._diverged()
        if not bad:
            return self._result("completed", text)
        entry = entry_of("nan")
        text += f"; but the loss of rank {bad['rank']} was {bad['nan']['loss']} to the end; remedy: {entry['remedy']}"
        return self._result("completed", text, cause="nan", remedy=entry["remedy"])

    def _undecided(self):
        causes = {c["error"]["cause"] for c in self.candidates if c["error"]}
        listed = "; ".join(_line(c) for c in self.candidates[:MANY]) or "none"
        if "connection_lost" in causes and causes <= {"connection_lost", "aborted", "terminated"}:
            cause, said = "connection_lost", "the ranks lost contact with each other and none shows an error of its own"
            remedy = f"look at the network between {_list(self.asked)}, then at each rank's log"
        else:
            cause, said, remedy = "unknown", "no evidence decides where it began", "read the logs of the candidates in the order given"
        if self.stopped and not self.failed and not causes:
            said = f"{_list(self.stopped)} was stopped by a peer, and no node says why"
        return self._result("failed", f"FAILED: {said}; candidates: {listed}; remedy: {remedy}", cause=cause, remedy=remedy)

    def _result(self, outcome, text, best=None, **fields):
        out = dict.fromkeys(("node", "rank", "local_rank", "exit_code", "signal", "cause", "error", "log", "line", "remedy"))
        if best:
            out.update({key: best[key] for key in ("node", "rank", "local_rank", "exit_code", "signal")})
        out.update(fields, outcome=outcome, text=text, unreachable=sorted(self.missing), evidence=self._evidence())
        out["candidates"] = [
            {k: c[k] for k in ("rank", "node", "local_rank", "exit_code", "signal", "weight", "why")} for c in self.candidates[:MANY]
        ]
        return out

    def _evidence(self):
        begin = min((c["when"] for c in self.candidates if c["when"] is not None), default=None)
        lines = [_line(c, begin) for c in self.candidates[:MANY]]
        same = {}
        for candidate in self.candidates:
            if candidate["error"] and candidate["rank"] is not None:
                same.setdefault((candidate["error"]["kind"], candidate["error"]["text"]), []).append(candidate["rank"])
        lines += [f"{_ranks(ranks)} say the same: {kind}" for (kind, _text), ranks in same.items() if len(ranks) > 1]
        for rank in self.ranks:
            if rank.get("nan"):
                lines.append(f"rank {rank['rank']}: the loss was {rank['nan']['loss']} at line {rank['nan'].get('line')} of its log")
        lines += [f"{name} was stopped by {u['stopped_by']} {u.get('stopped_from') or ''}".rstrip() for name, u in self.stopped.items()]
        lines += [f"{name} was not asked: {reason}" for name, reason in self.missing.items()]
        lines += [f"the clock of {name} is {ahead:+.0f} s off; its times were corrected" for name, ahead in self.ahead.items() if ahead]
        return lines


def _clocks(asked):
    """{node: seconds its clock is ahead of the middle one}, 0 for differences that asking the nodes explains."""
    now = {name: node["now"] for name, node in asked.items() if node.get("now") is not None}
    if not now:
        return {}
    middle = sorted(now.values())[(len(now) - 1) // 2]
    return {name: value - middle if abs(value - middle) >= CLOCKS_APART else 0.0 for name, value in now.items()}


def _succeeded(unit, node):
    launcher = node.get("launcher") or {}
    return unit.get("service_result") == "success" and not launcher.get("exit_code") and not launcher.get("signal")


def _precedes(one, other):
    if one["when"] is None or other["when"] is None:
        return False
    return other["when"] - one["when"] > (BEFORE if one["node"] == other["node"] else BEFORE_ELSEWHERE)


def _blamed(candidate):
    """Whether the error in its log is what ended a rank: SIGKILL leaves none, so what stands there came before."""
    error = candidate["error"]
    return bool(error) and not (
        candidate["signal"] == "SIGKILL" and (error.get("handled") or error.get("survived") or error["grade"] != "primary")
    )


def _what(candidate):
    error = candidate["error"]
    if _blamed(candidate):
        said = f"{error['kind']}: {error['text']}" if error["text"] else error["kind"]
        said = said.split("\n")[0][:300]
        return {"python": "raised ", "cpp": "stopped with "}.get(error.get("origin"), "said ") + said
    if candidate["rank"] is None:
        return "ended " + ("after its ranks had started" if candidate.get("started") else "before any rank started")
    if candidate["signal"]:
        return f"was killed by {candidate['signal']} without a message"
    return candidate["why"] if candidate["exit_code"] is None else "exited without a message"


def _line(candidate, begin=None):
    who = f"launcher on {candidate['node']}" if candidate["rank"] is None else f"rank {candidate['rank']} on {candidate['node']}"
    how = candidate["signal"] or (f"exit code {candidate['exit_code']}" if candidate["exit_code"] is not None else "end not observed")
    when = "" if begin is None or candidate["when"] is None else f" at +{candidate['when'] - begin:.1f} s"
    error = candidate["error"]
    said = f"; {error['kind']}: {error['text'][:120]}" if error else ""
    return f"{who} ({how}{when}): {candidate['why']}{said}"


def _list(names):
    names = list(names)
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _ranks(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(r) for r in ranks)


def _count(items, word):
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"
