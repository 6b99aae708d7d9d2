# SPDX-License-Identifier: Apache-2.0
"""Guards of the protocol, each left out once.

The simulator notices those that have a seed. Their neighbours guard the others as well, or it
takes more than some hundred schedules: the tests of the modules notice them.
"""

from __future__ import annotations

import typing


class Mutant(typing.NamedTuple):
    """One change of one module's source."""

    module: str
    name: str
    old: str
    new: str
    seed: int | None = None  # a schedule that shows what the guard is for
    is_detached: bool = False  # whether it is one of a detached run
    stress: str = "all"  # what goes wrong in it

    def apply(self, source):
        """Return the source with the change."""
        assert source.count(self.old) == 1, (self.name, source.count(self.old))
        return source.replace(self.old, self.new)


_SAVED = 'self.term, self.voted_for = saved["term"], saved["voted_for"]'
_MAY_CHANGE = "return is_single and self._is_settled() and self._has_committed_in_term()"
_WAIT = "return now >= self._since + LEASE + KILL and self._is_agreed(now)"
MUTANTS = (
    Mutant("raft", "a vote for two", "            and self.voted_for in (None, sender)\n", "", 8),
    Mutant(
        "raft",
        "a vote for an older log",
        '            and (message["last_term"], message["last_index"]) >= self._last()\n',
        "",
        seed=4,
    ),
    Mutant(
        "raft",
        "an entry of an older term counts as committed",
        "if is_of_term and self._majority_has(self._match, index):",
        "if self._majority_has(self._match, index):",
    ),
    Mutant(
        "raft",
        "entries that differ stay",
        "if place < len(self.log) and self.log[place].term != entry.term:",
        "if False:",
        17,
    ),
    Mutant(
        "raft",
        "entries of a leader that lies",
        "if self._denies_committed(entries, before):",
        "if False:",
    ),
    Mutant(
        "raft",
        "a term beyond all others",
        'if message["term"] > self.term + MOST_AHEAD:',
        "if False:",
    ),
    Mutant(
        "raft",
        "half of the voters is enough",
        "2 * count >",
        "2 * count >=",
        0,
    ),
    Mutant(
        "raft",
        "a vote is forgotten at a restart",
        _SAVED,
        _SAVED.replace('saved["voted_for"]', "None"),
        seed=132,
        stress="restarts",
    ),
    Mutant(
        "raft",
        "the term is forgotten at a restart",
        _SAVED,
        "self.term, self.voted_for = 0, None",
        seed=32,
    ),
    Mutant(
        "raft",
        "the log is forgotten at a restart",
        'self.log = [Entry(*entry) for entry in saved["log"]]',
        "self.log = []",
        0,
    ),
    Mutant(
        "raft",
        "a read before an entry of the term is committed",
        'if self.role != "leader" or not self._has_committed_in_term():',
        'if self.role != "leader":',
    ),
    Mutant(
        "raft",
        "a read without a majority",
        "return self._majority_has(self._rounds, number)",
        "return True",
    ),
    Mutant(
        "raft",
        "the entry before is not compared",
        'before == 0 or self.log[before - 1].term == message["prev_term"]',
        "True",
        17,
    ),
    Mutant("raft", "two changes of the voters at once", _MAY_CHANGE, "return is_single"),
    Mutant(
        "raft",
        "several voters change at once",
        _MAY_CHANGE,
        _MAY_CHANGE.replace("is_single and ", ""),
    ),
    Mutant(
        "raft", "a deposed leader is followed", 'if message["term"] < self.term:', "if False:", 1024
    ),
    Mutant("supervisor", "an attempt begins at once", _WAIT, "return True", 4),
    Mutant(
        "supervisor",
        "the controller's lease is not waited for",
        _WAIT,
        _WAIT.replace(" and self._is_agreed(now)", ""),
        seed=8,
        is_detached=True,
        stress="splits",
    ),
    Mutant(
        "supervisor",
        "the last member's start is not waited for",
        "self._planned_at + first.granted",
        "self._planned_at",
        seed=8,
        is_detached=True,
        stress="splits",
    ),
    Mutant(
        "supervisor",
        "the controller's attempt is agreed on before its last member has asked",
        "if not set(first.members) <= set(self._seen) and now < first.until + SKEW:",
        "if False:",
        is_detached=True,
        stress="splits",
    ),
    Mutant(
        "supervisor",
        "the controller's lease lasts for ever",
        "if not first or attempt != first.attempt or now >= first.until:",
        "if not first or attempt != first.attempt:",
        seed=8,
        is_detached=True,
        stress="splits",
    ),
    Mutant(
        "supervisor",
        "the controller's lease lasts after a stop",
        "return run.is_open() and (run.attempt < attempt or run.may_train(self.me, attempt))",
        "return True",
        seed=12,
        is_detached=True,
    ),
    Mutant(
        "supervisor",
        "no time to end processes",
        _WAIT,
        _WAIT.replace(" + KILL", ""),
        seed=13,
        stress="splits",
    ),
    Mutant("supervisor", "no time for a lease to end", _WAIT, _WAIT.replace(" + LEASE", ""), 39),
    Mutant(
        "supervisor",
        "a lease counts from its arrival",
        "asked + LEASE)",
        "max(self._asked.values(), default=asked) + 2 * ASK + LEASE)",
        seed=579,
        stress="splits",
    ),
    Mutant(
        "supervisor",
        "a new leader does not wait for older leases",
        "self._since, self._seen, self._reads = now, {}, []",
        "self._seen, self._reads = {}, []",
    ),
    Mutant(
        "supervisor",
        "a lease lasts for ever",
        "may_run = attempt == running and now < until and",
        "may_run = attempt == running and",
        97,
    ),
    Mutant(
        "supervisor",
        "processes start without a lease",
        "may_start = now < until and",
        "may_start =",
    ),
    Mutant(
        "supervisor",
        "a node that may still start counts as ended",
        "knows = self._over.get(node) == run.attempt",
        "knows = True",
        97,
    ),
    Mutant(
        "supervisor",
        "a lease for every node that asks",
        "if self.run.may_train(node, self.run.attempt) and self.applied == self.raft.commit:",
        "if True:",
    ),
    Mutant(
        "supervisor",
        "fewer nodes than the job permits",
        "(may_be_fewer and len(members) >= self.least)",
        "may_be_fewer",
        stress="shrink",
        seed=15,
    ),
    Mutant(
        "raft",
        "a learner stands for election",
        "elif self.me in self._voters:",
        "elif True:",
        stress="learners",
        seed=3,
    ),
    Mutant(
        "raft",
        "a node without a vote asks a leader of long ago for ever",
        "elif now - self._heard > ELECTION[1] + LEARN:",
        "elif False:",
        seed=133556,
    ),
    Mutant(
        "raft",
        "reads keep news from a learner",
        "        self._beat(now)\n        return self._round",
        "        self._broadcast(now, self._voters)\n        return self._round",
        is_detached=True,
        stress="learners",
    ),
    Mutant(
        "raft",
        "a learner is forgotten",
        "self._broadcast(now, (*self._voters, *self.learners))",
        "self._broadcast(now, self._voters)",
        stress="learners",
        seed=0,
    ),
    Mutant(
        "supervisor",
        "what runs counts as ended",
        "knows and not is_running and",
        "knows and",
        seed=1,
    ),
    Mutant(
        "run_state",
        "an attempt beside one that goes on",
        "            and self.is_superseded\n",
        "",
    ),
    Mutant(
        "run_state",
        "an attempt of an older generation",
        '            and value["generation"] == self.generation\n',
        "",
    ),
    Mutant(
        "run_state",
        "an attempt twice",
        '            and value["attempt"] == self.attempt + 1\n',
        "",
        seed=62,
        stress="wishes",
    ),
    Mutant(
        "run_state",
        "an attempt from an older checkpoint",
        '            and value["step"] == self.step\n',
        "",
    ),
    Mutant(
        "run_state",
        "a checkpoint of a superseded attempt",
        "fits = is_current and self.is_open()",
        "fits = self.is_open()",
    ),
    Mutant(
        "run_state",
        "an attempt after a stop",
        "            self.is_open()\n            and self.is_superseded",
        "            self.is_superseded",
        seed=28,
    ),
    Mutant(
        "run_state",
        "an older checkpoint counts again",
        'is_current and self.is_open() and value["step"] > self.step',
        "is_current and self.is_open()",
    ),
    Mutant(
        "supervisor",
        "what a node found after an older attempt counts",
        "            if report.attempt == self.run.attempt and report.finding\n",
        "            if report.finding\n",
        is_detached=True,
    ),
    Mutant(
        "run_state",
        "an older checkpoint is left by an attempt",
        'if newer and newer["step"] > self.step:',
        "if newer:",
        is_detached=True,
    ),
    Mutant(
        "supervisor",
        "a node that is back is not waited for while it reads",
        " and not self._is_awaited(now):",
        ":",
        is_detached=True,
    ),
    Mutant(
        "run_state",
        "what is left counts after the next attempt has begun",
        'is_judged = value["attempt"] == self.attempt == self.judged and self.is_superseded',
        "is_judged = self.judged > 0",
        is_detached=True,
    ),
    Mutant(
        "judgement",
        "an older checkpoint although a member does not answer",
        "if not run.point or not set(run.members) <= set(found):",
        "if not run.point:",
        seed=23,
        is_detached=True,
        stress="losses",
    ),
    Mutant(
        "judgement",
        "an older checkpoint although a member has the newest",
        'if any(finding.get("serves") for finding in findings):',
        "if False:",
        is_detached=True,
        stress="losses",
    ),
    Mutant(
        "judgement",
        "what an older attempt has left counts as newer",
        'if _is_sound(order, p) and p["attempt"] == run.attempt]',
        "if _is_sound(order, p)]",
        is_detached=True,
        stress="losses",
    ),
    Mutant(
        "run_state",
        "an older checkpoint stands instead of one that the attempt has written",
        ' and instead["step"] < self.step and self.written_by < self.attempt:',
        ' and instead["step"] < self.step:',
        is_detached=True,
        stress="losses",
    ),
    Mutant(
        "planned_attempts",
        "a team with a node that is away",
        "if set(team) <= set(ready)]",
        "if ready]",
        seed=0,
        is_detached=True,
        stress="losses",
    ),
    Mutant(
        "supervisor",
        "a spare that another run holds is taken",
        "return self._is_heard(node, now) and (report.can_join or node in self.run.members)",
        "return self._is_heard(node, now)",
        seed=70,
        is_detached=True,
        stress="losses",
    ),
    Mutant("host", "an empty disk keeps its vote", "", "", 23),
)
