# SPDX-License-Identifier: Apache-2.0
"""A deterministic world of nodes, disks, clocks and a network, in which supervisors keep a run.

One seed is one schedule of faults: crashes, empty disks, machines and supervisors that stand still,
partitions (also of one direction), late, lost and doubled messages, processes that die, nodes that
are lost for good with all checkpoints that they hold, spares that another run holds, and two
controllers that stop the run and open it. The safety rules are checked after every event, and after
a quiet time that a run with enough nodes trains.
"""

from __future__ import annotations

import heapq
import importlib
import json
import marshal
import math
import random
import sys
import types
from pathlib import Path

from supervision_stresses import STRESSES

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = PROJECT / "plugins/module_utils/supervision"
PACKAGE = "ansible_collections.trainyard.cluster.plugins.module_utils.supervision"
STANDBY = "ansible_collections.trainyard.cluster.plugins.plugin_utils.start.standby"
MODULES = ("raft", "run_state", "supervisor")
# The product's seconds, made shorter so that a schedule has more to tell.
ELECTION = (1.0, 2.0)
SECONDS = {
    "LEASE": 6.0,
    "KILL": 2.5,
    "ASK": 1.5,
    "LOST": 5.0,
    "FINDING": 6.0,
    "SKEW": 16.0,
    "PATIENCE": 10.0,
}
# Seconds for which a controller grants the first attempt: longer than a lease and what comes after.
GRANTED = 20.0
TICK = 0.5
GUARD_MARGIN = 1.0  # the share of KILL that LEASE_MARGIN of agent/guard.py has
FAULTY, QUIET = 70.0, 55.0  # seconds with faults, and without them at the end
SLACK = 2 * TICK  # in which a node that thawed notices it
TARGET = 300  # steps of the training
CHECKPOINT = 2  # steps between two checkpoints of a detached run
NOTED = 10  # steps between two that its nodes know of at once. Other runs save no others
COPIED = 0.08  # share of the seconds of training in which the newest checkpoint is copied
FOREVER = 1e9
PLACES = 1000  # more than a run has attempts
MOST_SPARES = 2  # as in attempts/supervisor_order.py
HELD_LONG = 20.0  # seconds after which a leader knows that another run holds a spare
TWICE = ((0,), (0,), (0,), (0,), (0, 1))  # the copies of one message, by chance
# Of the run's state, what the rules about a plan need.
KNOWN_BEFORE = ("attempt", "generation", "is_stopped", "is_done", "is_superseded")
FLAT = {"ask_vote", "vote", "appended", "lease"}  # messages in which nothing is the sender's


def load(mutant=None):
    """Return the parts of the protocol from their sources, with a Mutant's change or without.

    Each call makes modules of its own.
    """
    package = f"supervision_{id(mutant)}"
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = []
    made = {}
    for name in MODULES:
        source = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
        if mutant and mutant.module == name:
            source = mutant.apply(source)
        made[name] = types.ModuleType(f"{package}.{name}")
        made[name].__package__ = package
        sys.modules[f"{package}.{name}"] = made[name]
        exec(compile(source, name, "exec"), made[name].__dict__)
    vars(made["supervisor"]).update(SECONDS)
    made["raft"].ELECTION = ELECTION
    names = ("Supervisor", "Report", "Beginning")
    return types.SimpleNamespace(
        RunState=made["run_state"].RunState,
        keeps_names=bool(mutant and mutant.module == "host"),
        **{name: getattr(made["supervisor"], name) for name in names},
        **load_rules(mutant),
        **SECONDS,
    )


def load_rules(mutant=None):
    """Return {name: a function by which a leader decides}, with a Mutant's change or without.

    A simulated checkpoint is what `describe` returns.
    """
    made = {}
    for name in ("judgement", "planned_attempts"):
        source = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
        if mutant and mutant.module == name:
            source = mutant.apply(source)
        made[name] = {"__name__": f"{PACKAGE}.{name}", "__package__": PACKAGE}
        exec(compile(source, name, "exec"), made[name])
    standby = importlib.import_module(STANDBY)
    places = types.SimpleNamespace(order_of=lambda point: point["step"])
    made["judgement"].update(node_attempts=places, _is_sound=lambda _order, point: bool(point))
    return {
        "find_newer": made["judgement"]["find_newer"],
        "find_instead": made["judgement"]["_instead"],
        "choose": made["planned_attempts"]["choose"],
        "teams": standby.teams,
        "voters": standby.voters,
    }


class Unsafe(AssertionError):
    """A rule of safety does not hold."""


class Stuck(AssertionError):
    """After a quiet time the run does not train."""


def place_of(key):
    """Return a checkpoint's place among all of a run. key: (attempt, step)."""
    attempt, step = key
    return step * PLACES + attempt


def describe(key):
    """Return the point of a checkpoint (attempt, step), None for None."""
    if key is None:
        return None
    return {"attempt": key[0], "step": place_of(key), "digest": f"{key}", "key": list(key)}


def is_shared(message):
    """Return whether something in a message is its sender's still, so that it has to be copied.

    marshal makes the same copy as JSON, in a fifth of the time. A test shows that.
    """
    return message["kind"] not in FLAT and message.get("entries") != []


class Host:
    """A machine: its disk, its clock and the processes of a training."""

    def __init__(self, name):
        self.name, self.number = name, 1
        self.identity = name
        self.disk = None  # the state of Raft that it has kept. It is read as JSON
        self.granted = -1e9  # until when a controller has granted the first attempt
        self.supervisor = None
        self.booted = 0.0
        self.is_lost = self.is_damaged = False  # for good: the machine, and its supervisor alone
        self.is_destroyed = False
        self.began_from = None  # the checkpoint of its newest attempt
        self.borrowed_from = self.borrowed_until = -1e9  # another run holds this spare
        self.prepared = 0  # the newest attempt that has left something on its disk
        self.held = set()  # (attempt, step) of the complete checkpoints on its disk
        self.fetched = set()  # those that it has started from. Other hosts do not get them from it
        self.lacks = False  # whether its newest attempt did not start for want of a checkpoint
        self.unaware_at = -1e9  # when it trained by the controller's word and knew of no stop
        self.is_installed = False  # whether a detached run's supervisor has come to it
        self.frozen_until = self.thawed = -1e9
        self.mute_until = -1e9  # the supervisor alone stands still
        self.running = 0  # the attempt whose processes run, 0 for none
        self.ending_at = None
        self.newest = 0  # the newest attempt that this host has started (on its disk)
        self.failed = self.done = False
        self.step = self.began = 0
        self.written = 0
        self.checked = 0  # entries of its log that were compared
        self.compared = None  # the last committed one among them
        self.reported = None  # what its supervisor's report was made from

    def lose_disk(self, keeps_name):
        """Begin with an empty disk, under another name."""
        self.disk, self.newest, self.prepared = None, 0, 0
        self.failed = self.done = False
        self.written = 0
        if not keeps_name:
            self.number += 1
            self.identity = f"{self.name}#{self.number}"


class World:
    """All of it, from one seed."""

    def __init__(self, seed, parts, size=None, spares=None, is_detached=False, stress="all"):
        """Begin a schedule.

        stress: the name of one of STRESSES.
        is_detached: a controller has begun the first attempt before there were supervisors, and a
        verdict comes before each further one.
        """
        self.is_detached = is_detached
        self.parts, self.chance = parts, random.Random(seed)
        self.copies = random.Random(seed)
        self.stress = STRESSES[stress]
        self.size = size or self.chance.choice(self.stress.sizes)
        spare = self.chance.randint(0, self.size - 1)
        if is_detached:
            spare = min(spare, MOST_SPARES)
        if spares is not None:
            spare = spares
        self.hosts = {f"n{i}": Host(f"n{i}") for i in range(self.size + spare)}
        names = list(self.hosts)
        self.first = names[: self.size]  # the nodes of the first attempt
        self.least = self.size
        if self.stress.may_shrink:
            self.least = self.chance.randint(1, self.size)
        voters = names
        if is_detached:
            nodes = [{"name": name} for name in names]
            given = (nodes[: self.size], nodes[self.size :], self.least)
            voters = parts.voters(*given)
            self.teams = [tuple(node["name"] for node in team) for team in parts.teams(*given)]
        self.voters = voters[: self.stress.most_voters]
        self.learners = [name for name in names if name not in self.voters]
        self.now, self.sequence, self.events = 0.0, 0, []
        self.blocked = set()
        self.loss = self.chance.choice(self.stress.losses)
        self.delay = self.chance.choice(self.stress.delays)
        self._random, self._bits = self.chance.random, self.chance.getrandbits
        self.leaders = {}  # {term: its leader}
        self.committed = []
        self.texts = []  # the committed values as they were then
        self.state = parts.RunState()
        self.stopped_at = None
        self.planned = set()  # attempts
        self.saved = set()  # (attempt, step) of each complete checkpoint
        self.refused = 0  # starts on a spare that another run held
        self.started = {}  # {attempt: time}
        self.trained = 0.0
        for host in self.hosts.values():
            if is_detached:
                self.at(self.chance.uniform(0.0, SECONDS["SKEW"]), self._install, host)
            else:
                self._boot(host)
        if is_detached:
            self.started[1] = self.now

    def _install(self, host):
        """Begin the first attempt on a host as a controller does, with a supervisor."""
        host.is_installed = True
        self._boot(host)
        host.granted = self.clock(host) + GRANTED
        host.supervisor.beginning = self._beginning(host)
        if host.name in self.first:
            host.running = host.newest = host.prepared = 1

    def _beginning(self, host):
        """Return the controller's word about the first attempt, as the host has it on its disk."""
        return self.parts.Beginning(1, tuple(self.first), host.granted, 0, None, GRANTED)

    def _newer(self, run, found):
        """Return the newest checkpoint that the attempt has left, None without a newer one."""
        return self.parts.find_newer(None, run, found)

    def _choose(self, run, ready, may_be_fewer):
        """Return the nodes of the next attempt."""
        team = self.parts.choose(self.teams, run, ready, may_be_fewer)
        for name in set(team) - set(run.members):
            host = self.hosts[name]
            if host.borrowed_from + HELD_LONG < self.now < host.borrowed_until:
                raise Unsafe(f"{name} is chosen, which another run holds for long")
        return team

    def _judge(self, run, found):
        """Return the entry of a verdict. Every attempt that failed may be followed by another."""
        blamed = self.chance.sample(run.members, self.chance.choice([0, 0, 1]))
        return {
            "kind": "verdict",
            "attempt": run.attempt,
            "again": True,
            "delay": self.chance.choice([0.0, 0.0, 3.0]),
            "verdict": {},
            "decision": {},
            "newer": self._newer(run, found),
            "instead": self.parts.find_instead(None, run, found),
            "failed": blamed,
            "broken": self.chance.choice([[], blamed]),
        }

    # -- time --

    def at(self, delay, function, *arguments):
        self.sequence += 1
        heapq.heappush(self.events, (self.now + delay, self.sequence, function, arguments))

    def run(self, until):
        events, pop = self.events, heapq.heappop
        while events and events[0][0] <= until:
            self.now, _number, function, arguments = pop(events)
            function(*arguments)
        self.now = until

    def clock(self, host):
        return self.now - host.booted

    # -- hosts --

    def _boot(self, host):
        host.booted = self.now - self.chance.uniform(1.0, 30.0)
        host.running, host.ending_at, host.checked, host.reported = 0, None, 0, None
        saved = host.disk and json.loads(json.dumps(host.disk))
        host.granted = self.clock(host)  # as the product does after a boot
        # A start that failed has left nothing, and the supervisor that knew of it is a new one.
        host.newest, host.lacks = host.prepared, False
        more, newer = (None, None, None), None
        if self.is_detached:
            more, newer = (self._beginning(host), self._judge, self._choose), self._newer
        host.supervisor = self.parts.Supervisor(
            host.identity, self.voters, self.size, saved, self.clock(host),
            random.Random(self.chance.random()), *more, self.learners, self.least, newer,
        )  # fmt: skip
        if saved is None:
            host.disk = host.supervisor.raft.state()
        self.at(self.chance.uniform(0.0, TICK), self._tick, host, host.supervisor)

    def is_awake(self, host):
        return self.now >= host.frozen_until and host.supervisor is not None

    def _tick(self, host, supervisor):
        if host.supervisor is not supervisor:
            return
        if self.now < host.frozen_until or self.now < host.mute_until:
            wait = max(host.frozen_until, host.mute_until) - self.now
            self.at(wait + 0.01, self._tick, host, supervisor)
            return
        self._enter(host, supervisor.tick)
        self.at(TICK, self._tick, host, supervisor)

    def _enter(self, host, call, *arguments):
        """Call a host's supervisor, keep its state, then let out its messages and actions."""
        supervisor = host.supervisor
        is_borrowed = self.now < host.borrowed_until
        reported = (
            host.newest, host.running, host.failed, host.done, host.written, len(host.held),
            is_borrowed,
        )  # fmt: skip
        if reported != host.reported:
            host.reported = reported
            supervisor.report = self._report(host, is_borrowed)
        call(*arguments, self.now - host.booted)
        raft = supervisor.raft
        self._check(host, raft)
        if raft.is_changed:
            host.disk = raft.state()
        outbox = raft.take_outbox()
        if outbox:
            self._send(host, outbox)
        if not supervisor.actions:
            return
        for action in supervisor.take_actions():
            if action["do"] == "start":
                self._start(host, action)
            elif host.running == action["attempt"] and host.ending_at is None:
                host.ending_at = self.now + self.chance.uniform(0.1, self.parts.KILL - 2 * TICK)

    def _report(self, host, is_borrowed):
        """Return a host's Report."""
        finding, noted, point = None, host.written, None
        if self.is_detached:
            noted -= noted % NOTED  # a node that trains does not read every checkpoint
            if noted <= host.began:
                noted = 0  # that is one of the attempt before
            if noted:
                point = describe((host.newest, noted))
                noted = point["step"]
        if self.is_detached and host.newest and not host.running:
            own = [key for key in host.held if key[0] == host.newest]
            finding = {
                "holds": describe(max(host.held, key=place_of, default=None)),
                "saved": describe(max(own, key=place_of, default=None)),
                "lacks": host.lacks,
                "serves": host.began_from in host.held,
            }
        return self.parts.Report(
            host.newest, bool(host.running), host.failed, host.done, noted, point, finding,
            not is_borrowed,
        )  # fmt: skip

    def _send(self, host, outbox):
        """Let messages out, each of which may be lost, or come twice.

        The draws are those of `choice([1, 1, 1, 1, 2])` and `expovariate`, without the calls of
        Python that these make.
        """
        name, identity, now, loss = host.name, host.identity, self.now, self.loss
        rate, deliver = 1 / self.delay, self._deliver
        events, chance, bits = self.events, self._random, self._bits
        log, push = math.log, heapq.heappush
        for receiver, message in outbox:
            number = bits(3)
            while number >= 5:
                number = bits(3)
            packed = message
            if is_shared(message):
                packed = marshal.dumps(message)
            for _copy in TWICE[number]:
                if chance() >= loss:
                    self.sequence += 1
                    arguments = (name, identity, receiver, packed)
                    due = now - log(1.0 - chance()) / rate
                    push(events, (due, self.sequence, deliver, arguments))

    def _deliver(self, source, sender, receiver, packed):
        now = self.now
        host = self.hosts.get(receiver) or self.hosts[receiver.partition("#")[0]]
        if host.supervisor is None or now < host.frozen_until or now < host.mute_until:
            if self.stress.keeps_mail and host.supervisor is not None:
                wait = max(host.frozen_until, host.mute_until) - now
                self.at(wait, self._deliver, source, sender, receiver, packed)
            return
        if self.blocked and (source, host.name) in self.blocked:
            return
        if host.identity == receiver:
            if type(packed) is bytes:
                packed = marshal.loads(packed)
            self._enter(host, host.supervisor.receive, sender, packed)

    # -- the training --

    def _start(self, host, action):
        attempt = action["attempt"]
        for other in self.hosts.values():
            if other.running and other.running != attempt and not self._is_excused(other):
                raise Unsafe(f"{host.name} starts {attempt}, {other.name} runs {other.running}")
        if self.stopped_at is not None and self.now > self.stopped_at + self.parts.LEASE:
            raise Unsafe(f"{host.name} starts {attempt} after the stop")
        point = host.supervisor.run.point
        host.newest, host.failed, host.done, host.written = attempt, False, False, 0
        host.began_from = point and tuple(point["key"])
        host.lacks = bool(point) and not self._has_source(host, point)
        is_held = self.now < host.borrowed_until
        self.refused += is_held
        if host.lacks or is_held:
            host.failed = True
            return
        step = action["step"]
        if self.is_detached:
            step //= PLACES
        if point:
            host.fetched.add(tuple(point["key"]))
        self.started.setdefault(attempt, self.now)
        host.running = host.prepared = attempt
        host.step, host.began, host.ending_at = step, step, None

    def _has_source(self, host, point):
        """Return whether a host gets a checkpoint, from its own disk or from another's."""
        key = tuple(point["key"])
        if key in host.fetched:
            return True
        for other in self.hosts.values():
            is_up = other.supervisor is not None and self.now >= other.frozen_until
            pairs = {(host.name, other.name), (other.name, host.name)}
            if key in other.held and (other is host or (is_up and not pairs & self.blocked)):
                return True
        return False

    def _is_excused(self, host):
        """Return whether a host stands still, or has thawed a moment ago."""
        return self.now < host.frozen_until or self.now < host.thawed + self.parts.KILL + SLACK

    def train(self):
        """One second of all processes."""
        for host in self.hosts.values():
            if host.ending_at is not None and self.now >= host.ending_at:
                host.running, host.ending_at = 0, None
            if host.running and self._is_left(host):
                host.running = 0
        attempts = {host.running for host in self.hosts.values()} - {0}
        every = NOTED
        if self.is_detached:
            every = CHECKPOINT
        for attempt in attempts:
            members = [h for h in self.hosts.values() if h.running == attempt]
            awake = [h for h in members if self.now >= h.frozen_until and not h.failed]
            linked = not any((a.name, b.name) in self.blocked for a in awake for b in awake)
            team = self.state.teams.get(attempt, self.first)
            if len(awake) == len(team) and linked:
                self.trained = self.now
                for host in awake:
                    host.step += 1
                    host.done = host.step >= TARGET
                    # A detached run's rank 0 alone saves. It may be the node that is away.
                    saves = not self.is_detached or host.identity == team[0]
                    if saves and host.step % every == 0:
                        host.written = host.step
                        host.held.add((attempt, host.step))
                        self.saved.add((attempt, host.step))
                self._copy(attempt, team)
            elif self.now > self.started[attempt] + 6.0 and self.chance.random() < 0.3:
                for host in awake:
                    host.failed = True  # it lost its peers
        self.at(1.0, self.train)

    def _copy(self, attempt, team):
        """Copy the newest checkpoint of a training attempt to its second node, now and then."""
        if not self.is_detached or len(team) < 2 or self.copies.random() > COPIED:
            return
        first, second = (self.hosts[name] for name in team[:2])
        if first.written:
            second.held.add((attempt, first.written))

    def _is_left(self, host):
        """Return whether a supervisor stands still, and its guard ends the attempt."""
        is_mute = self.now < host.mute_until and self.now >= host.frozen_until
        if not is_mute or host.supervisor is None:
            return False
        (attempt, ends), first = host.supervisor.lease, host.supervisor.beginning
        if attempt != host.running:
            ends = -1e9
        if first and first.attempt == host.running:
            ends = max(ends, first.until)
        return self.clock(host) > ends + GUARD_MARGIN

    # -- faults --

    def disturb(self):
        """Do one thing that goes wrong, and plan the next one."""
        if self.now > FAULTY:
            return
        host = self.chance.choice(list(self.hosts.values()))
        getattr(self, "_" + self.chance.choice(self.stress.faults))(host)
        self.at(self.chance.expovariate(1 / self.stress.every), self.disturb)

    def _crash(self, host, for_good=False):
        host.supervisor, host.running, host.ending_at = None, 0, None
        host.frozen_until, host.is_lost = -1e9, host.is_lost or for_good
        self.at(self.chance.uniform(*self.stress.crashed), self._return, host)

    def _return(self, host):
        is_there = host.is_installed or not self.is_detached
        if host.supervisor is None and is_there and not host.is_lost:
            self._boot(host)

    def _wipe(self, host):
        """Empty a host's disk. In a detached run its supervisor would be gone, too."""
        fresh = sum(other.number > 1 for other in self.hosts.values())
        is_voter = host.name in self.voters
        if 2 * (fresh + 1) < len(self.voters) and is_voter and not self.is_detached:
            self._crash(host)
            host.lose_disk(self.parts.keeps_names)

    def _may_lose(self, host):
        """Return whether a detached run still goes on once it has lost one more host for good."""
        lost = {host.name, *(other.name for other in self.hosts.values() if other.is_lost)}
        voters, others = set(self.voters) - lost, set(self.hosts) - lost
        is_enough = 2 * len(voters) > len(self.voters) and len(others) >= self.least
        return self.is_detached and host.is_installed and not host.is_lost and is_enough

    def _destroy(self, host):
        """Lose a host for good, with its disk."""
        if self._may_lose(host):
            self._crash(host, for_good=True)
            host.held, host.fetched, host.is_destroyed = set(), set(), True

    def _damage(self, host):
        """Lose a host's supervisor for good. Its processes go on, until the guard ends them."""
        if self._may_lose(host) and host.supervisor is not None:
            host.is_lost = host.is_damaged = True
            host.mute_until = FOREVER

    def _borrow(self, host):
        """Let another run hold a spare for a while."""
        is_free = not host.running and self.now >= host.borrowed_until
        if host.is_installed and is_free:
            host.borrowed_from = self.now
            host.borrowed_until = self.now + self.chance.uniform(2.0, 2 * HELD_LONG)

    def _freeze(self, host):
        until = self.now + self.chance.choice(self.stress.frozen)
        host.frozen_until = max(host.frozen_until, until)
        host.thawed = host.frozen_until

    def _mute(self, host):
        until = self.now + self.chance.uniform(1.0, 20.0)
        host.mute_until = max(host.mute_until, until)

    def _partition(self, _host):
        names = list(self.hosts)
        side = set(self.chance.sample(names, self.chance.randint(1, len(names) - 1)))
        pairs = {(a, b) for a in names for b in names if (a in side) != (b in side)}
        self._block(pairs)

    def _split(self, _host):
        """A part of the nodes is cut off, and within a second a process dies on a node."""
        self._partition(None)
        victim = self.chance.choice(list(self.hosts.values()))
        self.at(self.chance.uniform(0.0, 1.0), self._kill, victim)

    def _depose(self, host):
        """The node that leads is cut off or crashes, another one where none leads."""
        for other in self.hosts.values():
            if other.supervisor is not None and other.supervisor.raft.role == "leader":
                host = other
        if self.chance.random() < 0.5:
            self._crash(host)
        else:
            names = [name for name in self.hosts if name != host.name]
            self._block({(host.name, n) for n in names} | {(n, host.name) for n in names})

    def _one_way(self, host):
        self._block({(host.name, name) for name in self.hosts if name != host.name})

    def _block(self, pairs):
        self.blocked |= pairs
        self.at(self.chance.uniform(*self.stress.cut), self._heal, pairs)

    def _heal(self, pairs):
        self.blocked -= pairs

    def _kill(self, host):
        if host.running:
            host.failed = True
            host.running, host.ending_at = 0, None

    def _control(self, host):
        """A controller stops the run, or opens it again. Two may do so at once."""
        if self.chance.random() < 0.5 or not self.state.is_open():
            value = {"kind": "open", "generation": self.state.generation + 1}
            if self.state.is_open():
                value = {"kind": "stop", "generation": self.state.generation}
            for _controller in range(self.chance.choice([1, 2])):
                self._ask(host, value)

    def _ask(self, host, value):
        if self.is_awake(host) and self.now >= host.mute_until:
            self._enter(host, host.supervisor.request, value)

    def begin(self):
        """A controller plans the first attempt, until the nodes have it."""
        if not self.is_detached and self.state.attempt == 0 and self.now < FAULTY + QUIET / 2:
            plan = {
                "kind": "plan",
                "generation": self.state.generation,
                "attempt": 1,
                "members": self.first,
                "step": 0,
            }
            for host in list(self.hosts.values()):
                self._ask(host, plan)
            self.at(1.5, self.begin)

    # -- what must hold --

    def _check(self, host, raft):
        """Check one host against the others: one leader a term, and one log.

        Entries are immutable, so that the last one is compared where it is another than before.
        """
        if raft.role == "leader":
            first = self.leaders.setdefault(raft.term, host.identity)
            if first != host.identity:
                raise Unsafe(f"two leaders of term {raft.term}: {first}, {host.identity}")
        if raft.denied_by:
            raise Unsafe(f"{host.identity} knows other committed entries than {raft.denied_by}")
        commit, committed, before = raft.commit, self.committed, host.checked
        if commit > len(raft.log):
            raise Unsafe(f"{host.identity} has lost a committed entry")
        while len(committed) < commit:
            self._commit(raft.log[len(committed)])
        if commit > before:
            host.checked = commit
            if raft.log[before:commit] != committed[before:commit]:
                raise Unsafe(f"{host.identity} has other entries than committed ones")
        if commit and raft.log[commit - 1] is not host.compared:
            host.compared = raft.log[commit - 1]
            if host.compared != committed[commit - 1]:
                raise Unsafe(f"{host.identity} has another entry {commit}")

    def _check_plan(self, plan, before):
        """Check that an attempt begins when it may. before: the run's state until then."""
        if before["is_stopped"] or before["is_done"] or plan["generation"] != before["generation"]:
            raise Unsafe(f"attempt {plan['attempt']} of a run that has ended begins")
        if not before["is_superseded"]:
            raise Unsafe(f"attempt {plan['attempt']} begins beside {before['attempt']}")
        if plan["attempt"] in self.planned:
            raise Unsafe(f"attempt {plan['attempt']} begins twice")
        self.planned.add(plan["attempt"])
        if not self.least <= len(set(plan["members"])) <= self.size:
            raise Unsafe(f"attempt {plan['attempt']} begins on {plan['members']}")

    def _check_newer(self, attempt, value):
        """Check that a checkpoint is one that the attempt has written to its end."""
        self._check_point(value)
        if value["point"]["attempt"] != attempt or any(later > attempt for later in self.started):
            raise Unsafe("a superseded attempt's checkpoint counts")

    def _check_point(self, value):
        """Check that the step and the point of an entry are those of a complete checkpoint."""
        point = value["point"]
        if value["step"] != point["step"] or tuple(point["key"]) not in self.saved:
            raise Unsafe("a checkpoint counts that no attempt has written")

    def _check_older(self, value, point):
        """Check that an older checkpoint counts where no member has the newest one any more."""
        instead, key = value.get("instead"), point and tuple(point["key"])
        members = [self.hosts[name] for name in self.state.members if name in self.hosts]
        if not instead or any(key in host.held for host in members):
            raise Unsafe("an older checkpoint counts again")
        if instead["point"]:
            self._check_point(instead)
        known = [max(map(place_of, host.held)) for host in members if host.held]
        if any(instead["step"] < place < point["step"] for place in known):
            raise Unsafe("a member has a newer one than the older checkpoint")

    def _check_values(self):
        """Check that nobody has changed a value in place. Logs and disks share them."""
        for host in self.hosts.values():
            if host.supervisor is None:
                continue
            log = host.supervisor.raft.log[: host.checked]
            if [json.dumps(entry.value) for entry in log] != self.texts[: host.checked]:
                raise Unsafe(f"{host.identity} has changed a committed value")

    def _commit(self, entry):
        self.committed.append(entry)
        self.texts.append(json.dumps(entry.value))
        value = entry.value or {}
        before, point = self.state.step, self.state.point
        was_stopped = self.state.is_stopped
        if value.get("kind") == "plan":
            earlier = {name: getattr(self.state, name) for name in KNOWN_BEFORE}
        changed = self.state.apply(entry.value)
        if changed and value.get("kind") == "plan":
            self._check_plan(value, earlier)
        if changed and value.get("kind") == "checkpoint":
            if self.is_detached:
                self._check_newer(value["attempt"], value)
            if any(attempt > value["attempt"] for attempt in self.started):
                raise Unsafe("a superseded attempt's checkpoint counts")
        if changed and value.get("newer"):
            self._check_newer(value["attempt"], value["newer"])
        if changed and value.get("kind") == "left":
            self._check_newer(value["attempt"], value)
        if self.state.step < before:
            self._check_older(value, point)
        if changed and value.get("kind") == "plan" and value["step"] != before:
            raise Unsafe("an attempt begins from another checkpoint than the newest")
        if self.state.is_stopped and not was_stopped:
            self.stopped_at = self.now
        if not self.state.is_stopped:
            self.stopped_at = None

    def check_overlap(self):
        """Check that two attempts never train at once, and that a stop ends all."""
        awake = [h for h in self.hosts.values() if h.running and not self._is_excused(h)]
        if len({host.running for host in awake}) > 1:
            raise Unsafe("two attempts train: " + str({h.name: h.running for h in awake}))
        limit = self.parts.LEASE + self.parts.KILL + SLACK
        granted = [host.name for host in self.hosts.values() if self._is_granted(host)]
        late = [host for host in awake if host.name not in granted]
        if self.stopped_at is not None and late and self.now > self.stopped_at + limit:
            raise Unsafe("processes run on after a stop")
        self.at(1.0, self.check_overlap)

    def _is_granted(self, host):
        """Return whether a host trains by the controller's word and cannot know of a stop.

        Once it knows of it, it has KILL seconds.
        """
        is_first = self.is_detached and host.running == 1
        is_unaware = host.supervisor is not None and host.supervisor.run.is_open()
        if is_first and is_unaware and self.clock(host) < host.granted:
            host.unaware_at = self.now
        return self.now < host.unaware_at + self.parts.KILL + SLACK + 1.0

    def calm(self):
        """End all faults."""
        self.blocked, self.loss, self.delay = set(), 0.0, 0.05
        for host in self.hosts.values():
            stood = max(host.frozen_until, host.mute_until) > self.now
            host.frozen_until = min(host.frozen_until, self.now)
            host.thawed = min(host.thawed, self.now)
            host.borrowed_until = min(host.borrowed_until, self.now)
            if not host.is_damaged:
                host.mute_until = min(host.mute_until, self.now)
            if stood and host.supervisor is not None and not host.is_damaged:
                self._enter(host, host.supervisor.tick)
        lost = self._lost_for_good()
        for host in self.hosts.values():
            if host in lost:
                self._crash(host, for_good=True)
            else:
                self._return(host)

    def _lost_for_good(self):
        """Return hosts that never come back, so few that the others can go on without them."""
        most = min(self.size - self.least, (len(self.voters) - 1) // 2)
        if not most or any(host.is_lost for host in self.hosts.values()):
            return []
        return self.chance.sample(list(self.hosts.values()), self.chance.randint(0, most))

    def play(self):
        """Play one schedule. Raises Unsafe or Stuck."""
        for function in (self.train, self.check_overlap, self.begin):
            self.at(1.0, function)
        self.at(self.chance.uniform(*self.stress.first), self.disturb)
        self.run(FAULTY)
        self.calm()
        self.run(FAULTY + QUIET)
        self._check_values()
        if self.state.is_open() and self.trained < self.now - 12.0:
            raise Stuck(f"nothing trains since {self.now - self.trained:.0f} s")
