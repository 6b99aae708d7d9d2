# SPDX-License-Identifier: Apache-2.0
"""Raft, to the letter.

The source is figure 3.1 of Ongaro, Consensus: Bridging Theory and Practice (2014), with changes of
one voter at a time (4.1 to 4.3), learners that get the log and have no vote (4.2.1), leaders that
see when they are cut off (6.2), and reads that a round of heartbeats confirms (6.4).

Pure: messages and the time come in, messages go out. The caller writes `state()` to stable storage,
with fsync, before it sends what `take_outbox()` returns, whenever `is_changed` says so. Times are
seconds of a clock that runs on while the machine sleeps (CLOCK_BOOTTIME).

Why no library: PySyncObj 0.3, the pure Python one, sends pickles, which whoever may write to its
port can make into any code, and reads the clock itself, so that no simulator can run it.
"""

from __future__ import annotations

import random
import typing

HEARTBEAT = 0.5  # seconds between two rounds of a leader
LEARN = 2.0  # seconds between two messages to a learner, where nothing is new
ELECTION = (2.0, 4.0)  # seconds without a leader until a follower stands for election
MOST_ENTRIES = 64  # entries of one message
# Terms by which one message may raise that of a node: a hundred years of elections.
MOST_AHEAD = 10**9

# A message, or the value of an entry: a JSON object.
Json = typing.Dict[str, typing.Any]


class Entry(typing.NamedTuple):
    """An entry of the log. value None: an empty one, with which a leader begins its term."""

    term: int
    value: Json | None


class Raft:
    """One voter, or a node that only follows: a learner, or one that the voters have left out.

    `role` is follower, candidate or leader, `leader` the one that this node follows, `commit` the
    number of entries that are committed. Entries are counted from 1. `denied_by` is the last
    leader whose entries contradicted committed ones: that one or an earlier one lied.
    """

    def __init__(
        self,
        me: str,
        voters: typing.Iterable[str],
        saved: Json | None,
        now: float,
        chance: random.Random,
        learners: typing.Iterable[str] = (),
    ) -> None:
        """Begin as a follower.

        voters: the first ones, the same on all nodes. saved: what `state()` gave last, None on the
        first start. chance: for the time until an election. learners: nodes that get the log and
        never vote, the same on all nodes.
        """
        self.learners = tuple(learners)
        self.me, self.first_voters, self.chance = me, tuple(voters), chance
        self.term = 0
        self.voted_for: str | None = None
        self.log: list[Entry] = []
        if saved:
            self.term, self.voted_for = saved["term"], saved["voted_for"]
            self.log = [Entry(*entry) for entry in saved["log"]]
        self._voters = self._find_voters()
        self.role, self.commit = "follower", 0
        self.leader: str | None = None
        self.denied_by: str | None = None
        self.is_changed = False
        self._outbox: list[tuple[str, Json]] = []
        self._votes: set[str] = set()
        self._next: dict[str, int] = {}
        self._match: dict[str, int] = {}
        self._round = 0
        self._rounds: dict[str, int] = {}  # the newest round that each voter has, its own as well
        self._answered: dict[str, float] = {}  # when each voter answered last
        self._heard = self._taught = now
        self._handlers = {
            "ask_vote": self._on_ask_vote,
            "vote": self._on_vote,
            "append": self._on_append,
            "appended": self._on_appended,
        }
        self._rest(now)

    # -- what the caller needs --

    def state(self) -> Json:
        """Return what has to be on stable storage before the outbox is sent."""
        self.is_changed = False
        return {
            "term": self.term,
            "voted_for": self.voted_for,
            "log": list(self.log),
        }

    def take_outbox(self) -> list[tuple[str, Json]]:
        """Return [(receiver, message)] that wait to be sent, and forget them."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def send(self, receiver: str, message: Json) -> None:
        """Put a message of the caller into the outbox, so that all leave in order."""
        self._outbox.append((receiver, message))

    def voters(self) -> tuple[str, ...]:
        """Return the voters: those of the newest entry that changes them, committed or not."""
        return self._voters

    def propose(self, value: Json | None, now: float) -> int | None:
        """Append an entry as the leader. Return its number, None where this node does not lead.

        A change of the voters has to differ in one of them, and waits until the one before it and
        an entry of this term are committed.
        """
        if self.role != "leader":
            return None
        if value and "voters" in value and not self._may_change(value["voters"]):
            return None
        self._append(Entry(self.term, value))
        self._match[self.me] = len(self.log)
        self._tell_all(now)
        before = self.commit
        self._advance()
        if before < self.commit:  # a single voter is its own majority
            self._tell_all(now)
        return len(self.log)

    def begin_read(self, now: float) -> int | None:
        """Begin a round whose answers prove that this node leads still. Return its number, or None.

        A leader that has committed nothing in its term does not know yet what is committed.
        """
        if self.role != "leader" or not self._has_committed_in_term():
            return None
        self._beat(now)
        return self._round

    def is_confirmed(self, number: int) -> bool:
        """Return whether a majority has answered a round of this term, or a later one."""
        if self.role != "leader":
            return False
        return self._majority_has(self._rounds, number)

    def due_in(self, now: float) -> float:
        """Return the seconds until the time asks for something. A learner's may be over."""
        return self._due - now

    def tick(self, now: float) -> None:
        """Do what the time asks for."""
        if self.role == "leader":
            self._check_quorum(now)
        if now < self._due:
            return
        if self.role == "leader":
            self._beat(now)
        elif self.me in self._voters:
            self._stand(now)
        elif now - self._heard > ELECTION[1] + LEARN:
            # Another node may lead by now. A leader sends nothing to a node without a vote.
            self.leader = None

    def receive(self, sender: str, message: Json, now: float) -> None:
        """Take a message of another node."""
        if message["term"] > self.term:
            if message["kind"] == "ask_vote" and self._has_leader(now):
                return  # a node that was cut off does not depose a leader (4.2.3)
            if message["term"] > self.term + MOST_AHEAD:
                # It lies. At once in its term, no later one would be a number that the others take.
                # Not to follow at all would part this node from one that it has lied to in steps.
                self._follow(self.term + MOST_AHEAD, None, now)
                return
            self._follow(message["term"], None, now)
        self._handlers[message["kind"]](sender, message, now)

    def _check_quorum(self, now: float) -> None:
        """Stop leading where no majority has answered for a while, so that others may (6.2)."""
        recent, count = now - ELECTION[1], 0
        for voter in self._voters:
            if voter == self.me or self._answered.get(voter, now) > recent:
                count += 1
        if not self._is_majority(count):
            self.role, self.leader = "follower", None
            self._rest(now)

    # -- elections --

    def _rest(self, now: float) -> None:
        self._due = now + self.chance.uniform(*ELECTION)

    def _has_leader(self, now: float) -> bool:
        if self.role == "leader":
            return True
        return self.leader is not None and now - self._heard < ELECTION[0]

    def _follow(self, term: int, leader: str | None, now: float) -> None:
        if term > self.term:
            self.term, self.voted_for, self.is_changed = term, None, True
        if self.role == "leader":
            self._rest(now)
        self.role, self.leader = "follower", leader

    def _stand(self, now: float) -> None:
        self.term, self.voted_for, self.is_changed = self.term + 1, self.me, True
        self.role, self.leader, self._votes = "candidate", None, {self.me}
        self._rest(now)
        last = self._last()
        for voter in self._others():
            self._send(voter, kind="ask_vote", last_index=last[1], last_term=last[0])
        self._count_votes(now)

    def _on_ask_vote(self, sender: str, message: Json, now: float) -> None:
        granted = (
            message["term"] == self.term
            and self.voted_for in (None, sender)
            and (message["last_term"], message["last_index"]) >= self._last()
        )
        if granted:
            if self.voted_for is None:
                self.voted_for, self.is_changed = sender, True
            self._rest(now)
        self._send(sender, kind="vote", granted=granted)

    def _on_vote(self, sender: str, message: Json, now: float) -> None:
        if self.role == "candidate" and message["term"] == self.term and message["granted"]:
            self._votes.add(sender)
            self._count_votes(now)

    def _count_votes(self, now: float) -> None:
        if not self._is_majority(len(self._votes.intersection(self._voters))):
            return
        self.role, self.leader = "leader", self.me
        self._next = {}
        self._match, self._round, self._rounds = {self.me: len(self.log)}, 0, {}
        self._answered = dict.fromkeys(self._voters, now)
        self.propose(None, now)

    # -- the log --

    def _beat(self, now: float) -> None:
        """Begin a round with the voters, and with the learners where it is time for them."""
        if now - self._taught >= LEARN:
            self._tell_all(now)
        else:
            self._broadcast(now, self._voters)

    def _tell_all(self, now: float) -> None:
        """Send every node what is new. Learners alone may be hundreds."""
        self._taught = now
        self._broadcast(now, (*self._voters, *self.learners))

    def _broadcast(self, now: float, nodes: typing.Iterable[str]) -> None:
        """Begin a round with some nodes."""
        self._due = now + HEARTBEAT
        self._round += 1
        self._rounds[self.me] = self._round
        for node in nodes:
            if node != self.me:
                self._append_to(node)

    def _append_to(self, node: str) -> None:
        before = min(self._next.get(node, len(self.log)) - 1, len(self.log))
        before = max(before, 0)
        previous = 0
        if before:
            previous = self.log[before - 1].term
        entries: list[list[typing.Any]] = []
        if before < len(self.log):
            entries = [list(entry) for entry in self.log[before : before + MOST_ENTRIES]]
        self._send(
            node,
            kind="append",
            prev_index=before,
            prev_term=previous,
            entries=entries,
            commit=self.commit,
            round=self._round,
        )

    def _on_append(self, sender: str, message: Json, now: float) -> None:
        if message["term"] < self.term:
            self._send(sender, kind="appended", success=False, match=0, round=0)
            return
        self._follow(message["term"], sender, now)
        self._heard = now
        self._rest(now)
        before = message["prev_index"]
        is_known = before <= len(self.log) and (
            before == 0 or self.log[before - 1].term == message["prev_term"]
        )
        if not is_known:
            last = min(len(self.log), before - 1)
            self._send(sender, kind="appended", success=False, match=last, round=message["round"])
            return
        entries = [Entry(*entry) for entry in message["entries"]]
        if self._denies_committed(entries, before):
            self.denied_by = sender
            return
        for place, entry in enumerate(entries, before):
            if place < len(self.log) and self.log[place].term != entry.term:
                del self.log[place:]
                self._voters = self._find_voters()
            if place >= len(self.log):
                self._append(entry)
        match = before + len(entries)
        self.commit = max(self.commit, min(message["commit"], match))
        self._send(sender, kind="appended", success=True, match=match, round=message["round"])

    def _denies_committed(self, entries: list[Entry], before: int) -> bool:
        """Return whether entries contradict committed ones.

        before: the number of entries that come before them.
        """
        committed = self.log[before : self.commit]
        return any(mine.term != theirs.term for mine, theirs in zip(committed, entries))

    def _on_appended(self, sender: str, message: Json, now: float) -> None:
        if self.role != "leader" or message["term"] != self.term:
            return
        self._answered[sender] = now
        self._rounds[sender] = max(self._rounds.get(sender, 0), message["round"])
        if not message["success"]:
            self._next[sender] = max(message["match"], self._match.get(sender, 0)) + 1
            return
        if message["match"] <= self._match.get(sender, 0):
            return  # an old or doubled answer: the next round sends what is missing
        self._match[sender] = message["match"]
        self._next[sender] = message["match"] + 1
        before = self.commit
        self._advance()
        if before < self.commit:
            self._tell_all(now)  # the others learn at once what is committed
        if message["match"] < len(self.log):
            self._append_to(sender)

    def _advance(self) -> None:
        """Commit what a majority has, where an entry of this term is among it."""
        for index in range(len(self.log), self.commit, -1):
            is_of_term = self.log[index - 1].term == self.term
            if is_of_term and self._majority_has(self._match, index):
                self.commit = index
                break
        if self.role == "leader" and self.me not in self._voters and self._is_settled():
            self.role, self.leader = "follower", None  # it has committed its own leaving

    def _has_committed_in_term(self) -> bool:
        return self.commit > 0 and self.log[self.commit - 1].term == self.term

    def _is_settled(self) -> bool:
        """Return whether the newest change of the voters is committed."""
        return not any(e.value and "voters" in e.value for e in self.log[self.commit :])

    def _may_change(self, voters: typing.Iterable[str]) -> bool:
        is_single = len(set(voters) ^ set(self._voters)) == 1
        return is_single and self._is_settled() and self._has_committed_in_term()

    def _append(self, entry: Entry) -> None:
        self.log.append(entry)
        self.is_changed = True
        if entry.value and "voters" in entry.value:
            self._voters = tuple(entry.value["voters"])

    def _find_voters(self) -> tuple[str, ...]:
        for entry in reversed(self.log):
            if entry.value and "voters" in entry.value:
                return tuple(entry.value["voters"])
        return self.first_voters

    # -- small things --

    def _last(self) -> tuple[int, int]:
        """Return (term, number) of the last entry."""
        if not self.log:
            return 0, 0
        return self.log[-1].term, len(self.log)

    def _others(self) -> list[str]:
        return [voter for voter in self._voters if voter != self.me]

    def _is_majority(self, count: int) -> bool:
        return 2 * count > len(self._voters)

    def _majority_has(self, numbers: dict[str, int], least: int) -> bool:
        count = 0
        for voter in self._voters:
            if numbers.get(voter, 0) >= least:
                count += 1
        return self._is_majority(count)

    def _send(self, receiver: str, **fields: typing.Any) -> None:
        fields["term"] = self.term
        self._outbox.append((receiver, fields))
