# SPDX-License-Identifier: Apache-2.0
"""The reason for an attempt's end.

It names node, rank, exit code or signal, first error, log and remedy. A pure function over what
every node found. candidates.py weighs the evidence. Here it is decided whether it is enough to name
a rank, and put into words. Where nothing decides, the verdict says so and lists the candidates.
"""

from __future__ import annotations

import typing

from ..attempts import guard_findings
from ..attempts.states import Outcome
from ..base import folding
from ..gate.isolation import judge_apart
from ..logs.failure_catalogue import entry_of
from ..logs.root_error import GENERAL
from . import named_peers
from .candidates import LOST_CONTACT, Weighing
from .clocks import BEFORE, BEFORE_ELSEWHERE
from .common_failures import find_common
from .device_evidence import DeviceEvidence
from .weights import DECIDES, KILLED, PRIMARY, SHARED, TERMINATED
from .wording import (
    count_of,
    describe_end,
    describe_exit,
    end_key,
    group_line,
    is_blamed,
    list_names,
    name_of,
    silent_cause,
    stop_line,
)

# What the kernel's memory killer leaves in logs; where its counter says that it was there, it is
# the cause.
_OF_OOM = frozenset(("killed", "worker_died", "silent_end"))
MANY = 8  # candidates, and groups of them with one end, that are listed
_LOST_CONTACT = frozenset(
    ("connection_lost", "aborted", "terminated", "seen_by_launcher", "mpi_runtime")
)


class Verdict(typing.TypedDict):
    """The verdict on an attempt, as run.json keeps it. An unknown value is None."""

    outcome: str
    code: str  # which explanation holds, `verdict.<explanation>`
    cause: str | None  # of the failure catalogue; its code is `cause.<cause>`
    text: str
    node: str | None
    rank: int | None
    local_rank: int | None
    exit_code: int | None
    signal: str | None
    meaning: str | None
    error: dict[str, typing.Any] | None
    log: str | None
    line: int | None
    remedy: str | None
    unreachable: list[str]
    evidence: list[str]
    candidates: list[dict[str, typing.Any]]


_RESULT_KEYS = (
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
_END_KEYS = ("node", "rank", "local_rank", "exit_code", "signal")
_CANDIDATE_KEYS = ("rank", "node", "local_rank", "exit_code", "signal", "weight", "why")
_READ_LOGS = "read the logs of the candidates in the order given"


def decide(plan_ranks, nodes, log_dir=""):
    """Return the Verdict of one attempt.

    plan_ranks: the plan's `ranks`. nodes: what rank_logs_info returned for each node, a list or
    {name: result}. A node that could not be asked is {"node": name, "unreachable": reason}, and a
    planned node that is missing counts as such. log_dir: where the logs were copied to, for the
    text.
    """
    findings = nodes
    if not isinstance(nodes, dict):
        findings = {node.get("node"): node for node in nodes}
    names = list(dict.fromkeys(rank["node"] for rank in plan_ranks))

    def judge(kept):
        """Return the verdict by the answers of some nodes alone."""
        usable = dict.fromkeys(names, {"unreachable": "its answer cannot be judged"})
        usable.update((name, findings.get(name)) for name in kept)
        return _judge(plan_ranks, usable, log_dir)

    result, _excluded = judge_apart(judge, names)
    return result


def _judge(plan_ranks, findings, log_dir):
    """Return the verdict over {node: findings}.

    Findings may be missing.
    """
    missing = {
        name: str((node or {}).get("unreachable") or "no findings")
        for name, node in findings.items()
        if not node or node.get("unreachable")
    }
    answers = {name: node for name, node in findings.items() if name not in missing}
    return _Case(plan_ranks, answers, missing, log_dir).verdict()


class _Case:
    """The evidence about one attempt's end, and the verdict over it."""

    def __init__(self, plan_ranks, answers, missing, log_dir):
        self.plan_ranks = plan_ranks
        answers = named_peers.resolve_addresses(answers, plan_ranks)
        self.answers = answers  # {node: its findings}
        self.missing = missing  # {node: the reason for its silence}
        self.log_dir = log_dir
        weighing = Weighing(answers, alone=len({rank["node"] for rank in plan_ranks}) == 1)
        self.weighing = weighing
        self.devices = DeviceEvidence(answers, plan_ranks, weighing.ahead)
        self.units = weighing.units
        self.stopped = weighing.stopped
        self.failed = weighing.failed
        self.ahead = weighing.ahead
        self.ranks = weighing.ranks
        self.candidates = weighing.candidates
        self.best = None  # the candidate that weighs enough to be named
        self.rivals = []
        if self.candidates and self.candidates[0]["weight"] >= DECIDES:
            self.best = self.candidates[0]
            self.rivals = weighing.rivals()

    def verdict(self):
        """Return the verdict: the first explanation that holds."""
        user_stops = {
            name: unit
            for name, unit in self.stopped.items()
            if unit["stopped_by"] not in ("peer", "guard")
        }
        if user_stops and not self._failed_before(user_stops) and not self._ended_before_stop():
            return self._stopped(user_stops)
        halt = guard_findings.find_halt(self.answers)
        if halt and not self._failed_by_then(halt):
            return self._halted(halt)
        if self.best:
            return self._name_failure()
        if self.missing:
            return self._lost()
        return self._judge_units()

    def _name_failure(self):
        """Return the verdict where a candidate weighs enough to be named."""
        if self.missing and self.best["weight"] < KILLED:
            # what ended without a word of its own may have followed what is out of sight
            return self._lost()
        fault = self.devices.sole_fault(self.best["when"])
        if fault and (self.rivals or self.best["weight"] < KILLED):
            return self._device_failed(fault)
        common = find_common(self.candidates, self.plan_ranks)
        if self.rivals and not common:
            return self._tied()
        return self._failed(self.best, common)

    def _judge_units(self):
        """Return the verdict where all nodes answered and no candidate weighs enough."""
        open_ended = [name for name, unit in self.units.items() if unit is None]
        restarted = [name for name in open_ended if self.answers[name].get("restarted")]
        if restarted:
            return self._restarted(restarted)
        if open_ended:
            return self._no_end_recorded(open_ended)
        if not self.stopped and not self.candidates:
            return self._completed()
        fault = self.devices.sole_fault()
        if fault:
            return self._device_failed(fault)
        return self._undecided()

    def _no_end_recorded(self, names):
        """Return the verdict that units of some nodes recorded no end."""
        text = (
            f"UNKNOWN: {list_names(names)} recorded no end: the unit still runs there, or the"
            " node was restarted"
        )
        return self._build_verdict(
            "verdict.no_end_recorded",
            Outcome.UNKNOWN,
            text,
            node=names[0],
            cause="no_end_recorded",
            remedy=entry_of("no_end_recorded")["remedy"],
        )

    def _restarted(self, names):
        """Return the verdict that nodes were restarted during the attempt."""
        ranks = self._ranks_of(names)
        entry = entry_of("node_lost")
        verb = "was"
        if len(names) > 1:
            verb = "were"
        text = (
            f"LOST: {list_names(names)} {verb} restarted while the attempt ran there, with"
            f" {folding.list_ranks(ranks)}; remedy: {entry['remedy']}"
        )
        return self._build_verdict(
            "verdict.node_restarted",
            Outcome.LOST,
            text,
            node=names[0],
            cause="node_lost",
            remedy=entry["remedy"],
        )

    def _ranks_of(self, names):
        """Return the numbers of the planned ranks of some nodes."""
        return [rank["rank"] for rank in self.plan_ranks if rank["node"] in names]

    def _diverged(self):
        """Return a rank whose loss was no finite number to the end, or None."""
        for rank in self.ranks:
            if rank.get("nan") and (rank.get("last_step") or {}).get("loss", 0) is None:
                return rank
        return None

    def _stop_times(self, units):
        """Return the times at which some units were stopped, by the middle clock."""
        return [
            unit["stopped_at"] - self.ahead.get(name, 0.0)
            for name, unit in units.items()
            if unit.get("stopped_at") is not None
        ]

    def _failed_before(self, user_stops):
        """Return the nodes whose units failed before the user's stop.

        A failure because of peers that the stop had just ended does not count.
        """
        stops = self._stop_times(user_stops)
        if not stops:
            return self.failed
        latest = min(stops) - BEFORE_ELSEWHERE
        return [
            name
            for name in self.failed
            if (self.units[name].get("time") or 0.0) - self.ahead.get(name, 0.0) < latest
        ]

    def _ended_before_stop(self):
        """Return whether the named candidate ended before anything was stopped."""
        if not self.best or self.best["when"] is None:
            return False
        stops = self._stop_times(self.stopped)
        return bool(stops) and self.best["when"] < min(stops) - BEFORE

    def _failed(self, best, common):
        """Return the verdict that names one candidate, the first of those with a common failure.

        An error in unknown words that all have at once may be a condition between them, and one
        that some have may be what another rank did to them: then none is named.
        """
        entry = self._cause_entry(best)
        note = ""
        diverged = self._diverged()
        if diverged and entry["cause"] in ("python_exception", "cpp_exception"):
            # What is raised then (an input below 0, a failed assertion) only says where the nan
            # first hurt.
            entry = entry_of("nan")
            note = (
                f"; the loss had been {diverged['nan']['loss']} since line"
                f" {diverged['nan'].get('line')} of rank {diverged['rank']}'s log"
            )
        fault = self.devices.explain(best, entry["cause"])
        if fault:
            common = []
            entry = entry_of("device_error")
            note = f"; evidence: {fault.text} (devices.{fault.node}.json)"
        code, who, named = "verdict.named", name_of(best), best
        if common:
            code, who = "verdict.common", f"{folding.name_ranks(common)} failed alike: the first"
            is_first = all(self.weighing.precedes(best, c) for c in common[1:])
            is_open = entry["cause"] in GENERAL or len(common) < len(self.plan_ranks)
            if is_open and not is_first:
                named = None
        log = self._log(best)
        error = line = None
        if is_blamed(best):
            error = best["error"]
            line = error["line"]
        location = log
        if line:
            location = f"{log}:{line}"
        text = (
            f"FAILED: {who} {describe_end(best)} ({describe_exit(best)}){note}; log"
            f" {location}; remedy: {entry['remedy']}{self._not_asked(self.missing)}"
        )
        return self._build_verdict(
            code,
            Outcome.FAILED,
            text,
            best=named,
            cause=entry["cause"],
            error=error,
            log=log,
            line=line,
            remedy=entry["remedy"],
        )

    def _cause_entry(self, best):
        """Return the catalogue's entry for a candidate's failure."""
        cause = silent_cause(best)
        if is_blamed(best) and best["weight"] != TERMINATED:
            cause = best["error"]["cause"]
        entry = entry_of(cause)
        counted = (self.units.get(best["node"]) or {}).get("oom_kills")
        if entry["cause"] in _OF_OOM and (counted or self.weighing.is_killed_for_memory(best)):
            return entry_of("out_of_memory")
        return entry

    def _not_asked(self, names):
        """Return the end of a text that names the nodes that did not answer, '' for none."""
        if not names:
            return ""
        return f"; not asked: {list_names(names)}"

    def _stopped(self, user_stops):
        """Return the verdict that a user stopped the attempt."""
        units = user_stops.values()
        stoppers = sorted({str(unit["stopped_by"]) for unit in units})
        sources = sorted({str(unit["stopped_from"]) for unit in units if unit.get("stopped_from")})
        text = f"STOPPED: by the {list_names(stoppers)}"
        if sources:
            text += f" ({list_names(sources)})"
        if self.best:
            text += f"; around then {name_of(self.best)} {describe_end(self.best)}"
        return self._build_verdict(
            "verdict.stopped",
            Outcome.STOPPED,
            text + self._not_asked(self.missing),
            cause="stopped_by_" + stoppers[0],
            remedy=entry_of("stopped_by_user")["remedy"],
        )

    def _failed_by_then(self, halt):
        """Return whether a failure beyond doubt came before the guards ended the training.

        What came after they saw the training hang or a node vanish followed from that.
        """
        best = self.best
        if not best or best["when"] is None:
            return False
        enough = KILLED
        if halt.cause == "hang" and best["exit_code"] == 0:
            enough = DECIDES  # the others waited for a rank that had ended early
        if best["node"] in halt.nodes:
            # of a node that is called lost only an error of its own counts: a full disk, say, on
            # which its end could not be written
            enough = PRIMARY
        if best["weight"] < enough:
            return False
        return best["when"] < halt.time - self.ahead.get(halt.by, 0.0) - BEFORE

    def _device_failed(self, fault):
        """Return the verdict that a device failed, where no log names its rank."""
        entry, fields = entry_of("device_error"), {"node": fault.node}
        device = f"a device of {fault.node}"
        if fault.device is not None:
            device = f"device {fault.device} of {fault.node}"
        planned = _rank_of(self.plan_ranks, fault.rank)
        if planned:
            fields.update((key, planned[key]) for key in ("rank", "local_rank"))
            device += f" (rank {fault.rank})"
        text = (
            f"FAILED: {device} failed: {fault.text} (devices.{fault.node}.json); remedy:"
            f" {entry['remedy']}{self._not_asked(self.missing)}"
        )
        return self._build_verdict(
            "verdict.device_failed",
            Outcome.FAILED,
            text,
            cause=entry["cause"],
            remedy=entry["remedy"],
            **fields,
        )

    def _explain_hang(self, halt):
        """Return the halt with the cause of a hang that full memory of a device explains.

        Several such devices name no rank. Where the stacks name another one, they count.
        """
        full = self.devices.full_cards()
        if halt.cause != "hang" or not full or halt.rank not in (None, full[0].rank):
            return halt
        where = ", ".join(f"device {card.device} of {card.node}" for card in full[:MANY])
        halt = halt._replace(
            cause="device_memory_full", text=f"{halt.text}; the memory of {where} is full"
        )
        if len(full) == 1:
            return halt._replace(rank=full[0].rank)
        return halt._replace(rank=None)

    def _halted(self, halt):
        """Return the verdict where a guard ended the training."""
        fault = None
        if halt.cause == "hang":
            fault = self.devices.sole_fault(halt.time - self.ahead.get(halt.by, 0.0))
        if fault:
            return self._device_failed(fault)
        halt = self._explain_hang(halt)
        entry = entry_of(halt.cause)
        is_lost = halt.outcome == Outcome.LOST
        fields = {"node": None, "log": None}
        code = "verdict.hung"
        if halt.cause == "node_lost":
            code = "verdict.node_lost"
        text = f"{halt.outcome.value.upper()}: {halt.text}"
        ranks = self._ranks_of(halt.nodes)
        if is_lost:
            fields["node"] = halt.nodes[0]
            if ranks:
                text += f"; with {folding.list_ranks(ranks)}"
        planned = _rank_of(self.plan_ranks, halt.rank)
        if planned:
            fields.update((key, planned[key]) for key in ("node", "rank", "local_rank"))
        findings = _rank_of(self.ranks, halt.rank)
        if findings:
            fields["log"] = self._log(findings)
            text += f"; log {fields['log']}"
        text += f"; remedy: {entry['remedy']}"
        text += self._not_asked([name for name in self.missing if name not in halt.nodes])
        return self._build_verdict(
            code, halt.outcome, text, cause=halt.cause, remedy=entry["remedy"], **fields
        )

    def _lost(self):
        """Return the verdict that nodes did not answer."""
        node = next(iter(self.missing))
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.missing.items())
        ranks = self._ranks_of(self.missing)
        remedy = entry_of("unreachable")["remedy"]
        explanation = "the other nodes show no cause of their own"
        if not self.answers:
            # As likely it is the controller that is cut off. Then no node is to be blamed, and the
            # training goes on.
            node = None
            explanation = (
                "no node answered, so it may be this controller that was cut off, and the"
                " training may go on"
            )
            remedy = "when they answer again: ansible-playbook playbooks/follow.yml; else " + remedy
        return self._build_verdict(
            "verdict.unreachable",
            Outcome.LOST,
            f"LOST: {list_names(self.missing)} did not answer ({reasons}), with"
            f" {folding.list_ranks(ranks)}; {explanation}; remedy: {remedy}",
            node=node,
            cause="unreachable",
            remedy=remedy,
        )

    def _completed(self):
        """Return the verdict where all units ended well."""
        started = {rank["rank"] for rank in self.ranks if rank.get("pid") or rank.get("file")}
        unstarted = [rank for rank in self.plan_ranks if rank["rank"] not in started]
        if unstarted:
            return self._rank_missing(unstarted[0])
        text = (
            f"COMPLETED: {count_of(self.plan_ranks, 'rank')} on {count_of(self.answers, 'node')}"
            " ended with exit code 0"
        )
        if any(rank.get("exit_code") != 0 for rank in self.ranks):
            text += " (some seen by their unit only)"
        swept = [name for name, unit in self.units.items() if unit.get("swept")]
        if swept:
            text += f"; what the training left behind on {list_names(swept)} was ended after that"
        diverged = self._diverged()
        if not diverged:
            return self._build_verdict("verdict.completed", Outcome.COMPLETED, text)
        entry = entry_of("nan")
        text += (
            f"; but the loss of rank {diverged['rank']} was {diverged['nan']['loss']} to the end;"
            f" remedy: {entry['remedy']}"
        )
        return self._build_verdict(
            "verdict.completed", Outcome.COMPLETED, text, cause="nan", remedy=entry["remedy"]
        )

    def _rank_missing(self, rank):
        """Return the verdict that a rank was never started."""
        remedy = entry_of("rank_missing")["remedy"]
        text = (
            f"FAILED: {name_of(rank)} was never started although its launcher ended well; remedy:"
            f" {remedy}"
        )
        return self._build_verdict(
            "verdict.rank_missing",
            Outcome.FAILED,
            text,
            node=rank["node"],
            rank=rank["rank"],
            local_rank=rank["local_rank"],
            cause="rank_missing",
            remedy=remedy,
        )

    def _tied(self):
        """Return the verdict over failures that may each have been the first.

        To name one would be a guess that may accuse the wrong rank.
        """
        tied = [self.best, *self.rivals]
        reason = f"{len(tied)} failures came too close to each other to tell which began it"
        return self._list_candidates("verdict.tied", reason, tied, "unknown", _READ_LOGS)

    def _undecided(self):
        """Return the verdict where no candidate weighs enough."""
        causes = {c["error"]["cause"] for c in self.candidates if c["error"]}
        shared = next((c["error"] for c in self.candidates if c["weight"] == SHARED), None)
        if shared and shared["cause"] in LOST_CONTACT and self._has_suspect():
            shared = None  # they may only say that one of them has gone
        cause = "unknown"
        reason = "no evidence decides where it began"
        remedy = _READ_LOGS
        if shared:
            entry = entry_of(shared["cause"])
            cause, remedy = entry["cause"], entry["remedy"]
            reason = entry["meaning"].rstrip(".")
        elif "connection_lost" in causes and causes <= _LOST_CONTACT:
            cause = "connection_lost"
            reason = "the ranks lost contact with each other and none shows an error of its own"
            remedy = (
                f"look at the network between {list_names(self.answers)}, then at each rank's log"
            )
        elif causes == {"terminated"} and all(c["error"] for c in self.candidates):
            entry = entry_of("terminated")
            cause, remedy, reason = entry["cause"], entry["remedy"], entry["meaning"].rstrip(".")
        if self.stopped and not self.failed:
            verb = "were"
            if len(self.stopped) == 1:
                verb = "was"
            reason = f"{list_names(self.stopped)} {verb} stopped by a peer, and no node says why"
        return self._list_candidates("verdict.undecided", reason, self.candidates, cause, remedy)

    def _has_suspect(self):
        """Return whether the end of one rank may be what the others lost contact with."""
        return any(c.get("is_suspect") for c in self.candidates)

    def _list_candidates(self, code, reason, candidates, cause, remedy):
        """Return the verdict `failed` that names no candidate and lists them."""
        groups = folding.group(candidates, end_key)
        listed = "; ".join(group_line(group) for group in groups[:MANY]) or "none"
        text = f"FAILED: {reason}; candidates: {listed}; remedy: {remedy}"
        return self._build_verdict(code, Outcome.FAILED, text, cause=cause, remedy=remedy)

    def _log(self, candidate):
        """Return the path of a candidate's log on the controller."""
        if not self.log_dir:
            return candidate["home"]
        return f"{self.log_dir.rstrip('/')}/{candidate['home']}"

    def _build_verdict(self, code, outcome, text, best=None, **fields):
        """Return the Verdict.

        code: of the explanation. best: the candidate that it names.
        """
        result = dict.fromkeys(_RESULT_KEYS)
        if best:
            result.update((key, best[key]) for key in _END_KEYS)
        result.update(
            fields,
            outcome=Outcome(outcome).value,
            code=code,
            text=text,
            unreachable=sorted(self.missing),
            evidence=self._evidence(),
        )
        if result["cause"]:
            result["meaning"] = entry_of(result["cause"])["meaning"]
        result["candidates"] = [self._publish(c) for c in self.candidates[:MANY]]
        return result

    def _publish(self, candidate):
        """Return what the verdict keeps of a candidate."""
        error = candidate["error"] or {"cause": None, "line": None}
        return dict(
            {key: candidate[key] for key in _CANDIDATE_KEYS},
            cause=error["cause"],
            log=self._log(candidate),
            line=error["line"],
        )

    def _evidence(self):
        """Return the lines of evidence."""
        begin = min((c["when"] for c in self.candidates if c["when"] is not None), default=None)
        groups = folding.group(self.candidates, end_key)
        return [
            *(group_line(group, begin) for group in groups[:MANY]),
            *self._same_error_lines(groups[:MANY]),
            *named_peers.evidence_lines(self.ranks, self.plan_ranks),
            *self._nan_lines(),
            *self._memory_lines(),
            *guard_findings.evidence_lines(self.answers),
            *self.devices.lines(),
            *(stop_line(name, unit) for name, unit in self.stopped.items()),
            *(f"{name} was not asked: {reason}" for name, reason in self.missing.items()),
            *(
                f"the clock of {name} is {ahead:+.0f} s off; its times were corrected"
                for name, ahead in self.ahead.items()
                if ahead
            ),
        ]

    def _same_error_lines(self, groups):
        """Return one line per error that several ranks have.

        groups: of candidates, as they are listed. What one line of them says is left out.
        """
        same = {}
        for candidate in self.candidates:
            error = candidate["error"]
            if error and candidate["rank"] is not None:
                same.setdefault((error["kind"], error["text"]), []).append(candidate["rank"])
        listed = [{c["rank"] for c in group} for group in groups]
        return [
            f"{folding.list_ranks(ranks)} say the same: {kind}"
            for (kind, _text), ranks in same.items()
            if len(ranks) > 1 and not any(set(ranks) <= numbers for numbers in listed)
        ]

    def _nan_lines(self):
        """Return one line per rank whose loss was no finite number at some time."""
        return [
            f"rank {rank['rank']}: the loss was {rank['nan']['loss']}"
            f" ({rank['home']}:{rank['nan'].get('line')})"
            for rank in self.ranks
            if rank.get("nan")
        ]

    def _memory_lines(self):
        """Return one line per node where the kernel killed processes when memory ran out."""
        lines = []
        for name, unit in self.units.items():
            if unit and (unit.get("oom_kills") or unit.get("service_result") == "oom-kill"):
                count = unit.get("oom_kills") or "some"
                lines.append(
                    f"{name}: the kernel killed {count} of its processes because memory was short"
                    f" (exit.{name}.json)"
                )
        return lines


def _rank_of(ranks, number):
    """Return the mapping of a rank from a list of them, or None."""
    return next((rank for rank in ranks if rank["rank"] == number), None)
