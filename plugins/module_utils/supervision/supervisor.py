# SPDX-License-Identifier: Apache-2.0
"""The supervisor of a run on one node.

It agrees with the others by raft.py and trains only under a lease. Where it leads, it ends attempts
that failed and begins the next ones.

A lease: a member asks the leader, the leader proves by a round that a majority follows it still,
and answers. The lease lasts LEASE seconds from the asking, by the asker's clock. So no lease that a
deposed leader gave lasts longer than LEASE from the election of the next one. A leader begins an
attempt once all members of the one before have said that they have ended, or LEASE + KILL seconds
after it led and knew the end of that attempt.

Pure: messages and the time in, messages and actions out.
"""

from __future__ import annotations

import random
import typing

from .raft import Json, Raft
from .run_state import RunState

LEASE = 15.0  # seconds that a member may train after it asked
KILL = 5.0  # seconds in which a node ends all processes of an attempt
ASK = 3.0  # seconds between two questions
LOST = 12.0  # seconds of silence after which the leader counts a member as lost
SKEW = 120.0  # seconds between the first and the last member's start by a controller, at most
FINDING = 60.0  # seconds after an attempt's end in which its members may say what they found
# Seconds after an attempt's end, and after a leader's election, in which a node that is away may
# come back before the run goes on with fewer nodes.
PATIENCE = 30.0


class Report(typing.NamedTuple):
    """What a node's processes do, as the caller sees it."""

    attempt: int  # whose processes run, or ran last. 0: none ever did
    is_running: bool
    has_failed: bool  # one of them has
    is_done: bool  # the training is complete
    step: int  # of the newest complete checkpoint of this attempt
    point: Json | None = None  # that checkpoint, as the caller describes it
    finding: Json | None = None  # what the caller found after the attempt's end here
    can_join: bool = True  # whether nothing else holds this node


class Beginning(typing.NamedTuple):
    """An attempt that a controller has started on all its members before there were supervisors."""

    attempt: int
    members: tuple[str, ...]
    until: float  # the controller's own lease
    step: int  # of the checkpoint that it began from, 0 without one
    point: Json | None
    granted: float  # seconds that this lease lasts from the start of each member's supervisor


# Returns the entry `verdict` of an ended attempt by what its members found.
Judge = typing.Callable[[RunState, "dict[str, Json]"], Json]
# Returns {step, point} of a checkpoint that the newest attempt's members found, and that is newer
# than the run's. None without one.
Newer = typing.Callable[[RunState, "dict[str, Json]"], "Json | None"]
# Returns the members of the next attempt, () for none, by the run, the nodes that are ready, and
# whether they may be fewer than those of the first attempt.
Choose = typing.Callable[[RunState, "list[str]", bool], typing.Sequence[str]]
IDLE = Report(0, False, False, False, 0)


def _saved(report: Report) -> Json:
    """Return the fields of a report's checkpoint, as an entry has them."""
    if report.point is None:
        return {"step": report.step}
    return {"step": report.step, "point": report.point}


def host_of(node: str) -> str:
    """Return a node's host, without the number that tells its empty disks apart."""
    return node.partition("#")[0]


def _number_of(node: str) -> int:
    """Return how many disks a node's host has begun with."""
    return int(node.partition("#")[2] or 1)


class Supervisor:
    """One node's part. `report` is set by the caller."""

    def __init__(
        self,
        me: str,
        voters: typing.Iterable[str],
        size: int,
        saved: Json | None,
        now: float,
        chance: random.Random,
        beginning: Beginning | None = None,
        judge: Judge | None = None,
        choose: Choose | None = None,
        learners: typing.Iterable[str] = (),
        least: int | None = None,
        newer: Newer | None = None,
    ) -> None:
        """Begin without a lease.

        size: how many nodes an attempt has. saved, learners: see Raft. Without a judge every failed
        attempt is followed by another one. Without `choose` any nodes may train together, and least
        is how many there have to be, None: size. Without `newer` no finding counts that comes after
        the verdict.
        """
        self.me, self.size, self.least = me, size, least or size
        self.raft = Raft(me, voters, saved, now, chance, learners)
        self.run, self.applied = RunState(), 0
        self.beginning, self.judge, self.newer = beginning, judge, newer
        self.choose = choose or self._first_ready
        if beginning:
            self.run = RunState(beginning.attempt - 1, beginning.step, beginning.point)
        self._judged_at = now
        self._planned_at: float | None = None  # when this node learned of the plan of `beginning`
        self.report = IDLE
        self.lease = (0, now)  # the attempt that this node may train in, and until when
        self.actions: list[Json] = []
        self.decisions: list[Json] = []  # entries that were proposed and committed by this leader
        self._begun = 0  # the attempt whose processes were told to begin
        self._told = 0  # the attempt whose processes were told to end
        self._next_ask = now
        self._asked_of: str | None = None  # the leader that was asked last
        # A number of its own in each life: an answer to a question before a restart counts nothing.
        self._nonce = int(now * 1e6)
        self._asked: dict[int, float] = {}  # {nonce: time of asking}
        self._seen: dict[str, float] = {}  # leader: {node: when it asked last}
        self._back: dict[str, float] = {}  # leader: {node: since when it is heard}
        self._reports: dict[str, Report] = {}
        self._over: dict[str, int] = {}
        self._reads: list[tuple[int, str, Json]] = []  # (round, node, its question)
        self._since = now  # leader: since when nobody else can have given a lease
        self._was_leader = False
        self._is_news = True  # leader: something was reported or applied since it looked
        self._may_be_left = True  # leader: the same, for what an attempt has left
        self._handlers = {
            "ask_lease": self._on_ask_lease,
            "lease": self._on_lease,
            "request": self._on_request,
        }

    # -- from outside --

    def request(self, value: Json, now: float) -> None:
        """Take the wish of a controller."""
        self._forward(value, now)
        self.tick(now)

    def receive(self, sender: str, message: Json, now: float) -> None:
        """Take a message of another node."""
        receive = self._handlers.get(message["kind"], self.raft.receive)
        receive(sender, message, now)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Do what the time and the committed entries ask for."""
        raft = self.raft
        raft.tick(now)
        if self.applied < raft.commit:
            self._apply(now)
        self._note_leading(now)
        if self._reads:
            self._answer_reads()
        self._obey(now)
        if now >= self._next_ask or (raft.leader and raft.leader != self._asked_of):
            self._ask(now)
        if raft.role == "leader":
            self._lead(now)
            self._apply(now)

    def tell(self, report: Report, now: float) -> None:
        """Take what this node's processes do. The leader learns of a change at once."""
        if report != self.report:
            self.report, self._next_ask = report, now

    def take_outbox(self) -> list[tuple[str, Json]]:
        """Return the messages to send, once `raft.state()` is on stable storage."""
        return self.raft.take_outbox()

    def take_actions(self) -> list[Json]:
        """Return what the caller has to do: start or end processes."""
        actions, self.actions = self.actions, []
        return actions

    def take_decisions(self) -> list[Json]:
        """Return the new entries that this leader has proposed. No other node returns them."""
        decisions, self.decisions = self.decisions, []
        return decisions

    # -- a node's own part --

    def _apply(self, now: float) -> None:
        while self.applied < self.raft.commit:
            term, value = self.raft.log[self.applied]
            self.applied += 1
            self._is_news = self._may_be_left = True
            before = self.run.is_superseded, self.run.is_done
            judged = self.run.judged
            if not self.run.apply(value):
                continue
            if value and self.raft.role == "leader" and term == self.raft.term:
                self.decisions.append(value)
            if before < (self.run.is_superseded, self.run.is_done):
                self._since = now
            if judged != self.run.judged:
                self._judged_at = now
            if self.beginning and self.run.attempt == self.beginning.attempt:
                self._planned_at = self._planned_at or now
            self._next_ask = now  # the leader learns at once that this node has learned it

    def _obey(self, now: float) -> None:
        """End processes that have no lease, and start those that have one."""
        attempt, until = self.lease
        running = self.report.attempt
        if self.report.is_running:
            may_run = attempt == running and now < until and self.run.may_train(self.me, running)
            may_run = may_run or self._is_granted(running, now)
            if not may_run and self._told < running:
                self._told = running
                self.actions.append({"do": "end", "attempt": running})
        elif max(running, self._begun) < attempt:
            may_start = now < until and self.run.may_train(self.me, attempt)
            if may_start:
                step, self._begun = self.run.step, attempt
                self.actions.append({"do": "start", "attempt": attempt, "step": step})

    def _is_granted(self, attempt: int, now: float) -> bool:
        """Return whether the controller's own lease holds, in which the nodes agree."""
        first, run = self.beginning, self.run
        if not first or attempt != first.attempt or now >= first.until:
            return False
        return run.is_open() and (run.attempt < attempt or run.may_train(self.me, attempt))

    def _ask(self, now: float) -> None:
        self._next_ask, self._asked_of = now + ASK, self.raft.leader
        self._nonce += 1
        self._asked = {n: at for n, at in self._asked.items() if now - at < LEASE}
        self._asked[self._nonce] = now
        over = 0  # the attempt that this node knows to be over, so that it starts nothing of it
        if self.run.is_superseded:
            over = self.run.attempt
        question = {
            "kind": "ask_lease",
            "nonce": self._nonce,
            "report": list(self.report),
            "over": over,
        }
        if self.raft.role == "leader":
            self._on_ask_lease(self.me, question, now)
            return
        receivers = [self.raft.leader or ""]
        if not self.raft.leader:
            receivers = [voter for voter in self.raft.voters() if voter != self.me]
        for receiver in receivers:
            self._send(receiver, question)

    def _on_lease(self, sender: str, message: Json, now: float) -> None:
        asked = self._asked.pop(message["nonce"], None)
        if asked is not None and message["attempt"] >= self.lease[0]:
            self.lease = (message["attempt"], max(self.lease[1], asked + LEASE))

    # -- the leader's part --

    def _note_leading(self, now: float) -> None:
        is_leader = self.raft.role == "leader"
        if is_leader == self._was_leader:
            return
        self._was_leader = is_leader
        if is_leader:
            self._is_news = self._may_be_left = True
            self._since, self._seen, self._reads = now, {}, []
            self._reports, self._over, self._back = {}, {}, {}

    def _on_ask_lease(self, sender: str, message: Json, now: float) -> None:
        if self.raft.role != "leader":
            return
        if sender not in self._seen or now - self._seen[sender] > LOST:
            self._back[sender] = now
        self._seen[sender] = now
        self._reports[sender] = Report(*message["report"])
        self._over[sender] = message["over"]
        self._is_news = self._may_be_left = True
        number = self.raft.begin_read(now)
        if number is not None:
            self._reads.append((number, sender, message))

    def _answer_reads(self) -> None:
        """Answer the questions that a round has confirmed, by what is committed now.

        The oldest question comes first, and a round confirms all before it as well.
        """
        while self._reads and self.raft.is_confirmed(self._reads[0][0]):
            _number, node, message = self._reads.pop(0)
            if self.run.may_train(node, self.run.attempt) and self.applied == self.raft.commit:
                answer = {"kind": "lease", "nonce": message["nonce"], "attempt": self.run.attempt}
                if node == self.me:
                    self._on_lease(self.me, answer, 0.0)
                else:
                    self._send(node, answer)
        del self._reads[:-64]

    def _lead(self, now: float) -> None:
        """Propose what follows from the nodes' reports."""
        run, commit = self.run, self.raft.commit
        if self.applied < commit or len(self.raft.log) > commit:
            return  # one entry after the other
        value = None
        if self._is_news:
            value = self._note_reports()
            self._is_news = value is not None  # it may be refused, and is proposed again
        value = value or self._verdict(now)
        if value is None and run.is_open():
            value = self._begin_or_end(now)
        if value:
            self.raft.propose(value, now)

    def _begin_or_end(self, now: float) -> Json | None:
        """Return the entry that begins the next attempt or ends a failed one, or None."""
        run = self.run
        if self.beginning and run.attempt < self.beginning.attempt:
            return self._first_plan(self.beginning, now)
        if not run.attempt:
            return None
        if not run.is_superseded and self._has_failed(now):
            return {"kind": "supersede", "attempt": run.attempt}
        if run.is_superseded and self._may_begin(now) and not self._is_awaited(now):
            return self._left() or self._next_plan(now)
        return None

    def _is_awaited(self, now: float) -> bool:
        """Return whether a member is back, and still reads what the ended attempt has left."""
        if not self.newer:
            return False
        return any(
            report.attempt == self.run.attempt
            and not report.finding
            and self._is_heard(node, now)
            and now < self._back.get(node, -FINDING) + FINDING
            for node, report in self._reports.items()
            if node in self.run.members
        )

    def _left(self) -> Json | None:
        """Return the entry of a newer checkpoint than the verdict of the attempt says, or None."""
        run = self.run
        if not self.newer or run.judged != run.attempt or not self._may_be_left:
            return None
        newer = self.newer(run, self._found())
        self._may_be_left = newer is not None  # it may be refused, and is proposed again
        return newer and dict(newer, kind="left", attempt=run.attempt)

    def _note_reports(self) -> Json | None:
        """Return the entry that one member's report asks for, or None."""
        run = self.run
        is_training = run.is_open() and not run.is_superseded
        if is_training and self._are_done():
            return {"kind": "done", "attempt": run.attempt}
        for node in run.members:
            report = self._reports.get(node, IDLE)
            is_of_attempt = report.attempt == run.attempt
            if is_training and is_of_attempt and report.step > run.step:
                return dict(kind="checkpoint", attempt=run.attempt, **_saved(report))
            if not run.is_superseded:
                continue
            is_running = is_of_attempt and report.is_running
            knows = self._over.get(node) == run.attempt
            if knows and not is_running and node not in run.ended:
                return {"kind": "ended", "attempt": run.attempt, "node": node}
        return self._readmission()

    def _are_done(self) -> bool:
        """Return whether all members have completed the newest attempt."""
        for node in self.run.members:
            report = self._reports.get(node, IDLE)
            if not report.is_done or report.attempt != self.run.attempt:
                return False
        return True

    def _verdict(self, now: float) -> Json | None:
        """Return the entry with the verdict of the attempt that is over, or None."""
        run = self.run
        if not self.judge or run.judged == run.attempt:
            return None
        if not (run.is_done or (run.is_superseded and self._may_begin(now))):
            return None
        found = self._found()
        missing = [node for node in run.members if node not in found]
        if any(self._is_heard(node, now) for node in missing) and now < self._since + FINDING:
            return None
        return self.judge(run, found)

    def _found(self) -> dict[str, Json]:
        """Return {member: what it has found after the newest attempt's end}."""
        reports = {node: self._reports.get(node, IDLE) for node in self.run.members}
        return {
            node: report.finding
            for node, report in reports.items()
            if report.attempt == self.run.attempt and report.finding
        }

    def _first_plan(self, first: Beginning, now: float) -> Json | None:
        """Return the plan of the controller's attempt, once all its members have asked.

        One that has not asked is lost, or its start is still to come, for a while.
        """
        if not set(first.members) <= set(self._seen) and now < first.until + SKEW:
            return None
        return self._plan(first.attempt, first.members)

    def _is_heard(self, node: str, now: float) -> bool:
        return now - self._seen.get(node, -LOST) <= LOST

    def _readmission(self) -> Json | None:
        """Return the change of the voters that a node with an empty disk asks for, or None.

        Such a node comes back under a new name (`node2#2`). Its old one loses the vote first.
        """
        voters = self.raft.voters()
        if {*voters, *self.raft.learners}.issuperset(self._seen):
            return None
        for node in self._seen:
            if node in voters or node in self.raft.learners:
                continue
            same = [n for n in {*voters, *self._seen} if host_of(n) == host_of(node)]
            if any(_number_of(n) > _number_of(node) for n in same):
                continue
            older = set(same) & set(voters)
            if older:
                return {"voters": [voter for voter in voters if voter not in older]}
            return {"voters": [*voters, node]}
        return None

    def _has_failed(self, now: float) -> bool:
        """Return whether a member of the attempt has failed or gone."""
        attempt, has_led_long = self.run.attempt, now - self._since > LOST
        for node in self.run.members:
            report = self._reports.get(node, IDLE)
            is_ended = report.has_failed or not (report.is_running or report.is_done)
            if is_ended and report.attempt == attempt:
                return True
            if has_led_long and now - self._seen.get(node, 0.0) > LOST:
                return True
        return False

    def _may_begin(self, now: float) -> bool:
        """Return whether no process of the attempt before can still train."""
        if self.run.has_ended():
            return True
        return now >= self._since + LEASE + KILL and self._is_agreed(now)

    def _is_agreed(self, now: float) -> bool:
        """Return whether no member trains by the controller's lease any more.

        All supervisors had begun when the plan of the controller's attempt was committed.
        """
        first = self.beginning
        if not first or self.run.attempt > first.attempt:
            return True
        if self._planned_at is None:
            return False
        return now >= self._planned_at + first.granted + KILL

    def _next_plan(self, now: float) -> Json | None:
        """Return the next attempt's plan, None without enough nodes or before its time."""
        if self.judge and self.run.judged < self.run.attempt:
            return None  # whether there may be one is not decided yet
        if self.judge and now < self._judged_at + self.run.delay:
            return None
        nodes = (*self.raft.voters(), *self.raft.learners)
        ready = [node for node in nodes if self._is_ready(node, now)]
        members = self.choose(self.run, ready, now >= self._since + PATIENCE)
        if not members:
            return None
        return self._plan(self.run.attempt + 1, members)

    def _is_ready(self, node: str, now: float) -> bool:
        """Return whether a node can take part in the next attempt."""
        report = self._reports.get(node, IDLE)
        return self._is_heard(node, now) and (report.can_join or node in self.run.members)

    def _first_ready(
        self, run: RunState, ready: list[str], may_be_fewer: bool
    ) -> typing.Sequence[str]:
        """Return the nodes of the attempt before that are ready, and others for the missing."""
        stay = [node for node in run.members if node in ready]
        members = (stay + [node for node in ready if node not in stay])[: self.size]
        is_enough = len(members) == self.size or (may_be_fewer and len(members) >= self.least)
        if not is_enough:
            return ()
        return sorted(members)

    def _plan(self, attempt: int, members: typing.Iterable[str]) -> Json:
        return {
            "kind": "plan",
            "generation": self.run.generation,
            "attempt": attempt,
            "members": list(members),
            "step": self.run.step,
            "by": host_of(self.me),
        }

    # -- the wishes of a controller --

    def _forward(self, value: Json, now: float) -> None:
        if self.raft.role == "leader":
            self.raft.propose(value, now)
        elif self.raft.leader:
            self._send(self.raft.leader, {"kind": "request", "value": value})

    def _on_request(self, sender: str, message: Json, now: float) -> None:
        if self.raft.role == "leader":
            self.raft.propose(message["value"], now)

    def _send(self, receiver: str, message: Json) -> None:
        self.raft.send(receiver, message)
