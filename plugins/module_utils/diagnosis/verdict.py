# SPDX-License-Identifier: Apache-2.0
"""Why an attempt ended: node, rank, real exit code or signal, first error, log, remedy. A pure
function over what every node found.

weighing.py weighs the evidence. Here it is decided whether it is enough to name somebody, and said
in words; where nothing decides, the verdict says so and lists the candidates.
"""

from __future__ import annotations

from ..attempts import guard_findings
from ..gate.isolation import judge_apart
from ..logs.failure_catalogue import classify, entry_of
from .candidates import (
    BEFORE,
    BEFORE_ELSEWHERE,
    DECIDES,
    KILLED,
    OOM,
    PRIMARY,
    SHARED,
    TERMINATED,
    Weighing,
)

_SIGNAL_CAUSES = {
    "SIGSEGV": "segfault",
    "SIGILL": "segfault",
    "SIGFPE": "segfault",
    "SIGBUS": "bus_error",
    "SIGABRT": "aborted",
    "SIGTERM": "sigterm",
    "SIGXCPU": "resource_limit",
    "SIGXFSZ": "resource_limit",
}
# What the kernel's memory killer leaves in logs; where its counter says that it was there, it is
# the cause.
_OF_OOM = frozenset(("killed", "worker_died", "silent_end"))
# What a rank that ended by itself may have said as its last line, and is believed in: words that
# name a thing, not a condition of the peers.
_LAST_WORDS = frozenset(
    (
        "bad_argument",
        "bad_config",
        "data_corrupt",
        "data_missing",
        "disk_full",
        "download_failed",
        "permission",
        "version_mismatch",
    )
)
LAST_WORDS = 20  # lines of a log after an error that can still be of it or of the end that it made
MANY = 8  # candidates and evidence lines that are listed


def decide(plan_ranks, nodes, log_dir=""):
    """The verdict of one attempt.

    plan_ranks: the plan's `ranks`. nodes: what rank_logs returned for each node, as a list or as
    {name: result}; a node that could not be asked is {"node": name, "unreachable": reason}, and a
    planned node that is missing counts as such. log_dir: where the logs were brought to, for the
    text.
    """
    found = nodes if isinstance(nodes, dict) else {n.get("node"): n for n in nodes}
    names = list(dict.fromkeys(r["node"] for r in plan_ranks))
    unreadable = {"unreachable": "its answer cannot be judged"}
    decided, _left = judge_apart(
        lambda kept: _decide(
            plan_ranks,
            names,
            {name: found.get(name) if name in kept else unreadable for name in names},
            log_dir,
        ),
        names,
    )
    return decided


def _decide(plan_ranks, names, found, log_dir):
    missing = {
        n: str((found.get(n) or {}).get("unreachable") or "no findings")
        for n in names
        if not found.get(n) or found[n].get("unreachable")
    }
    asked = {n: found[n] for n in names if n not in missing}
    case = _Case(plan_ranks, asked, missing, log_dir)
    return case.verdict()


class _Case:
    def __init__(self, plan_ranks, asked, missing, log_dir):
        self.plan_ranks, self.asked, self.missing, self.log_dir = (
            plan_ranks,
            asked,
            missing,
            log_dir,
        )
        weighed = Weighing(asked, alone=len({r["node"] for r in plan_ranks}) == 1)
        self.units, self.stopped, self.failed, self.ahead = (
            weighed.units,
            weighed.stopped,
            weighed.failed,
            weighed.ahead,
        )
        self.ranks, self.candidates = weighed.ranks, weighed.candidates
        best = self.candidates[0] if self.candidates else None
        self.decided = best if best and best["weight"] >= DECIDES else None
        self.rivals = weighed.rivals() if self.decided else []

    def verdict(self):
        decided = self.decided
        user = {n: u for n, u in self.stopped.items() if u["stopped_by"] not in ("peer", "guard")}
        if user and not self._failed_before(user) and not (decided and self._before_stop(decided)):
            return self._stopped(user, decided)
        told = guard_findings.halt(self.asked)
        if told and not self._failed_by_then(decided, told):
            return self._halted(told)
        if decided and self.missing and decided["weight"] < KILLED:
            return (
                self._lost()
            )  # what ended without a word of its own may have followed what is out of sight
        if decided:
            return self._tied() if self.rivals else self._failed(decided)
        if self.missing:
            return self._lost()
        open_ended = [name for name, unit in self.units.items() if unit is None]
        restarted = [name for name in open_ended if self.asked[name].get("restarted")]
        if restarted:
            return self._restarted(restarted)
        if open_ended:
            text = (
                f"UNKNOWN: {_list(open_ended)} recorded no end: the unit still runs there, or the"
                " node was restarted"
            )
            return self._result(
                "unknown",
                text,
                node=open_ended[0],
                cause="no_end_recorded",
                remedy=entry_of("no_end_recorded")["remedy"],
            )
        if not self.stopped and not self.candidates:
            return self._completed()
        return self._undecided()

    def _restarted(self, names):
        ranks = [r["rank"] for r in self.plan_ranks if r["node"] in names]
        entry = entry_of("node_lost")
        verb = "were" if len(names) > 1 else "was"
        text = (
            f"LOST: {_list(names)} {verb} restarted while the attempt ran there, with"
            f" {_ranks(ranks)}; remedy: {entry['remedy']}"
        )
        return self._result("lost", text, node=names[0], cause="node_lost", remedy=entry["remedy"])

    def _diverged(self):
        """A rank whose loss was no finite number to the end, or None."""
        return next(
            (
                r
                for r in self.ranks
                if r.get("nan") and (r.get("last_step") or {}).get("loss", 0) is None
            ),
            None,
        )

    def _failed_before(self, user):
        """The nodes whose units failed by themselves, not for want of the peers that a stop had
        just ended.
        """
        asked = [
            u["stopped_at"] - self.ahead.get(n, 0.0)
            for n, u in user.items()
            if u.get("stopped_at") is not None
        ]
        own = {n: (self.units[n].get("time") or 0.0) - self.ahead.get(n, 0.0) for n in self.failed}
        return [n for n, when in own.items() if not asked or when < min(asked) - BEFORE_ELSEWHERE]

    def _before_stop(self, candidate):
        times = [
            u["stopped_at"] - self.ahead.get(n, 0.0)
            for n, u in self.stopped.items()
            if u.get("stopped_at") is not None
        ]
        return (
            bool(times)
            and candidate["when"] is not None
            and candidate["when"] < min(times) - BEFORE
        )

    def _failed(self, best):
        error, unobserved = best["error"], best["exit_code"] is None and best["signal"] is None
        if best["weight"] == OOM:
            silent = "out_of_memory"
        elif best["rank"] is None:
            silent = "launcher_failed"
        else:
            silent = (
                "silent_end"
                if unobserved
                else (
                    _SIGNAL_CAUSES.get(best["signal"], "killed")
                    if best["signal"]
                    else _last_words(best)
                )
            )
        told = _blamed(best) and best["weight"] != TERMINATED
        entry = entry_of(error["cause"] if told else silent)
        if entry["cause"] in _OF_OOM and (self.units.get(best["node"]) or {}).get("oom_kills"):
            entry = entry_of("out_of_memory")
        diverged, why = self._diverged(), ""
        if diverged and entry["cause"] in ("python_exception", "cpp_exception"):
            # What is raised then (an input below 0, a failed assertion) only says where the nan
            # first hurt.
            entry = entry_of("nan")
            why = (
                f"; the loss had been {diverged['nan']['loss']} since line"
                f" {diverged['nan'].get('line')} of rank {diverged['rank']}'s log"
            )
        how = (
            f"signal {best['signal']}"
            if best["signal"]
            else "exit code " + ("not observed" if unobserved else str(best["exit_code"]))
        )
        if best.get("observed") == "launcher":
            how += " as the launcher says"
        log = self._log(best)
        line = error["line"] if _blamed(best) else None
        text = (
            f"FAILED: {_who(best)} {_what(best)} ({how}){why}; log"
            f" {log}{':' + str(line) if line else ''}; remedy: {entry['remedy']}"
        )
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
            text += f"; around then {_who(decided)} {_what(decided)}"
        if self.missing:
            text += f"; not asked: {_list(self.missing)}"
        return self._result(
            "stopped",
            text,
            cause="stopped_by_" + by[0],
            remedy=entry_of("stopped_by_user")["remedy"],
        )

    def _failed_by_then(self, decided, told):
        """Whether a failure that is beyond doubt came before the guards saw the training hang or a
        node vanish; what came after followed.
        """
        # of a node that is called lost only an error of its own counts: a full disk, say, on which
        # its end could not be written
        enough = PRIMARY if decided and decided["node"] in told["nodes"] else KILLED
        if not decided or decided["weight"] < enough or decided["when"] is None:
            return False
        return decided["when"] < told["time"] - self.ahead.get(told["by"], 0.0) - BEFORE

    def _halted(self, told):
        entry = entry_of(told["cause"])
        rank = next((r for r in self.plan_ranks if r["rank"] == told["rank"]), None)
        found = next((r for r in self.ranks if r["rank"] == told["rank"]), None)
        ranks = [r["rank"] for r in self.plan_ranks if r["node"] in told["nodes"]]
        text = f"{told['outcome'].upper()}: {told['text']}" + (
            f"; with {_ranks(ranks)}" if ranks and told["outcome"] == "lost" else ""
        )
        text += f"; log {self._log(found)}" if found else ""
        others = [name for name in self.missing if name not in told["nodes"]]
        text += f"; remedy: {entry['remedy']}" + (f"; not asked: {_list(others)}" if others else "")
        node = rank["node"] if rank else told["nodes"][0] if told["outcome"] == "lost" else None
        fields = {"rank": rank["rank"], "local_rank": rank["local_rank"]} if rank else {}
        log = self._log(found) if found else None
        return self._result(
            told["outcome"],
            text,
            node=node,
            cause=told["cause"],
            log=log,
            remedy=entry["remedy"],
            **fields,
        )

    def _lost(self):
        first = next(iter(self.missing))
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.missing.items())
        ranks = [r["rank"] for r in self.plan_ranks if r["node"] in self.missing]
        text = f"LOST: {_list(self.missing)} did not answer ({reasons}), with {_ranks(ranks)}; "
        remedy = entry_of("unreachable")["remedy"]
        if not self.asked:
            # As likely it is the controller that is cut off; then nobody is to be blamed, and the
            # training goes on.
            first, said = (
                None,
                (
                    "no node answered, so it may be this controller that was cut off, and the"
                    " training may go on"
                ),
            )
            remedy = "when they answer again: playbooks/follow.yml; else " + remedy
        else:
            said = "the other nodes show no cause of their own"
        return self._result(
            "lost",
            f"{text}{said}; remedy: {remedy}",
            node=first,
            cause="unreachable",
            remedy=remedy,
        )

    def _completed(self):
        unstarted = [
            r
            for r in self.plan_ranks
            if not any(
                k["rank"] == r["rank"] and (k.get("pid") or k.get("file")) for k in self.ranks
            )
        ]
        if unstarted:
            rank = unstarted[0]
            remedy = entry_of("rank_missing")["remedy"]
            text = (
                f"FAILED: {_who(rank)} was never started although its launcher ended well; remedy:"
                f" {remedy}"
            )
            return self._result(
                "failed",
                text,
                node=rank["node"],
                rank=rank["rank"],
                local_rank=rank["local_rank"],
                cause="rank_missing",
                remedy=remedy,
            )
        seen = all(r.get("exit_code") == 0 for r in self.ranks)
        text = (
            f"COMPLETED: {_count(self.plan_ranks, 'rank')} on {_count(self.asked, 'node')} ended"
            " with exit code 0"
        )
        text += "" if seen else " (some seen by their unit only)"
        bad = self._diverged()
        if not bad:
            return self._result("completed", text)
        entry = entry_of("nan")
        text += (
            f"; but the loss of rank {bad['rank']} was {bad['nan']['loss']} to the end; remedy:"
            f" {entry['remedy']}"
        )
        return self._result("completed", text, cause="nan", remedy=entry["remedy"])

    def _tied(self):
        """Two failures, each of which may have been the first: a guess would accuse somebody."""
        tied = [self.decided, *self.rivals]
        said = f"{len(tied)} failures came too close to each other to tell which began it"
        listed, remedy = (
            "; ".join(_line(c) for c in tied[:MANY]),
            "read the logs of the candidates in the order given",
        )
        text = f"FAILED: {said}; candidates: {listed}; remedy: {remedy}"
        return self._result("failed", text, cause="unknown", remedy=remedy)

    def _undecided(self):
        causes = {c["error"]["cause"] for c in self.candidates if c["error"]}
        shared = next((c["error"] for c in self.candidates if c["weight"] == SHARED), None)
        listed = "; ".join(_line(c) for c in self.candidates[:MANY]) or "none"
        if shared:
            entry = entry_of(shared["cause"])
            cause, said, remedy = entry["cause"], entry["meaning"].rstrip("."), entry["remedy"]
        elif "connection_lost" in causes and causes <= {
            "connection_lost",
            "aborted",
            "terminated",
            "seen_by_launcher",
            "mpi_runtime",
        }:
            cause, said = (
                "connection_lost",
                "the ranks lost contact with each other and none shows an error of its own",
            )
            remedy = f"look at the network between {_list(self.asked)}, then at each rank's log"
        else:
            cause, said, remedy = (
                "unknown",
                "no evidence decides where it began",
                "read the logs of the candidates in the order given",
            )
        if self.stopped and not self.failed:
            said = (
                f"{_list(self.stopped)} {'was' if len(self.stopped) == 1 else 'were'} stopped by a"
                " peer, and no node says why"
            )
        return self._result(
            "failed",
            f"FAILED: {said}; candidates: {listed}; remedy: {remedy}",
            cause=cause,
            remedy=remedy,
        )

    def _log(self, candidate):
        return (
            f"{self.log_dir.rstrip('/')}/{candidate['home']}" if self.log_dir else candidate["home"]
        )

    def _result(self, outcome, text, best=None, **fields):
        out = dict.fromkeys(
            (
                "node",
                "rank",
                "local_rank",
                "exit_code",
                "signal",
                "cause",
                "meaning",
                "error",
                "log",
                "line",
                "remedy",
            )
        )
        if best:
            out.update(
                {key: best[key] for key in ("node", "rank", "local_rank", "exit_code", "signal")}
            )
        out.update(
            fields,
            outcome=outcome,
            text=text,
            unreachable=sorted(self.missing),
            evidence=self._evidence(),
        )
        out["meaning"] = entry_of(out["cause"])["meaning"] if out["cause"] else None
        out["candidates"] = [
            dict(
                {
                    k: c[k]
                    for k in ("rank", "node", "local_rank", "exit_code", "signal", "weight", "why")
                },
                cause=c["error"]["cause"] if c["error"] else None,
                log=self._log(c),
                line=c["error"]["line"] if c["error"] else None,
            )
            for c in self.candidates[:MANY]
        ]
        return out

    def _evidence(self):
        begin = min((c["when"] for c in self.candidates if c["when"] is not None), default=None)
        lines = [_line(c, begin) for c in self.candidates[:MANY]]
        same = {}
        for candidate in self.candidates:
            if candidate["error"] and candidate["rank"] is not None:
                same.setdefault(
                    (candidate["error"]["kind"], candidate["error"]["text"]), []
                ).append(candidate["rank"])
        lines += [
            f"{_ranks(ranks)} say the same: {kind}"
            for (kind, _text), ranks in same.items()
            if len(ranks) > 1
        ]
        for rank in self.ranks:
            if rank.get("nan"):
                lines.append(
                    f"rank {rank['rank']}: the loss was {rank['nan']['loss']}"
                    f" ({rank['home']}:{rank['nan'].get('line')})"
                )
        for name, unit in self.units.items():
            if unit and (unit.get("oom_kills") or unit.get("service_result") == "oom-kill"):
                count = unit.get("oom_kills") or "some"
                lines.append(
                    f"{name}: the kernel killed {count} of its processes for want of memory"
                    f" (exit.{name}.json)"
                )
        lines += guard_findings.lines(self.asked)
        for name, unit in self.stopped.items():
            by = (
                f"its guard: {unit.get('stop_reason')},"
                if unit["stopped_by"] == "guard"
                else unit["stopped_by"]
            )
            lines.append(f"{name} was stopped by {by} {unit.get('stopped_from') or ''}".rstrip())
        lines += [f"{name} was not asked: {reason}" for name, reason in self.missing.items()]
        lines += [
            f"the clock of {name} is {ahead:+.0f} s off; its times were corrected"
            for name, ahead in self.ahead.items()
            if ahead
        ]
        return lines


def _who(rank):
    if rank["rank"] is None:
        return f"the {rank.get('who', 'launcher')} on {rank['node']}"
    return f"rank {rank['rank']} on {rank['node']} (local rank {rank['local_rank']})"


def _blamed(candidate):
    """Whether the error in its log is what ended a rank.

    SIGKILL leaves none, so what stands there came before; what was handled, or outlived by steps,
    counts only as the last thing said.
    """
    error = candidate["error"]
    if not error:
        return False
    passing = error.get("handled") or error.get("survived")
    if candidate["signal"] == "SIGKILL":
        return not passing
    followed = (candidate.get("lines") or 0) - (error["line"] or 0) > LAST_WORDS
    return not (passing and followed) or bool(error.get("thread"))


def _what(candidate):
    error = candidate["error"]
    if _blamed(candidate):
        said = f"{error['kind']}: {error['text']}" if error["text"] else error["kind"]
        said = said.split("\n")[0][:300]
        return {"python": "raised ", "cpp": "stopped with "}.get(
            error.get("origin"), "said "
        ) + said
    if (
        candidate["weight"] == OOM and candidate["signal"] == "SIGKILL"
    ):  # a launcher's weight may stand for a child of it
        return "was killed by the kernel for want of memory"
    if candidate["rank"] is None:
        return "ended " + (
            "after its ranks had started" if candidate.get("started") else "before any rank started"
        )
    if candidate["signal"]:
        return f"was killed by {candidate['signal']} without a message"
    if candidate["exit_code"] is None:
        return candidate["why"]
    if _last_words(candidate) != "silent_exit":
        return f"exited; the last line of its log: {candidate['last_line'][:300]}"
    return "exited without a message"


def _last_words(candidate):
    """The cause that the last line of a log names whose rank ended by itself: sys.exit("...")
    prints its text and nothing else.
    """
    said = classify("", candidate.get("last_line") or "")["cause"]
    return said if said in _LAST_WORDS else "silent_exit"


def _line(candidate, begin=None):
    how = candidate["signal"] or (
        f"exit code {candidate['exit_code']}"
        if candidate["exit_code"] is not None
        else "end not observed"
    )
    when = (
        ""
        if begin is None or candidate["when"] is None
        else f" at +{candidate['when'] - begin:.1f} s"
    )
    error = candidate["error"]
    said = f"; {error['kind']}: {error['text'][:120]}" if error else ""
    if not error and candidate.get("last_line"):
        said = f"; the last line of its log: {candidate['last_line'][:160]}"
    place = f"{candidate['home']}:{error['line']}" if error and error["line"] else candidate["home"]
    return f"{_who(candidate)}, {how}{when}: {candidate['why']}{said} ({place})"


def _list(names):
    names = list(names)
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _ranks(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(r) for r in ranks)


def _count(items, word):
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"
