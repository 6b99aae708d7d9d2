# SPDX-License-Identifier: Apache-2.0
"""Supervisor of a run on one node: it keeps the run alive with its peers, without a controller.

A persistent unit of the training user (attempts/supervisor_unit.py), from an attempt's start by a
controller until the run is complete, stopped or given up. It has an archive of its own. The
decisions are supervisor.py's; here are the clock, the disk, the peers and the processes.

    supervisor.pyz DIRECTORY
    supervisor.pyz tell         sends one message (notify/sender.py)
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import json
import os
import random
import sys
import time

from ..agent import systemd
from ..attempts import attempt_dir, mesh_credential, ownership, supervisor_unit
from ..attempts import supervisor_order as orders
from ..base import sanitize
from ..base.files import read_mapping, write_json
from ..notify import sender
from . import announcer, channel, judgement, messages, node_attempts, planned_attempts
from .supervisor import Beginning, Supervisor

TICK = 0.2  # seconds without a message until the next look
# The same while the training runs and its end would be told by the kernel (channel.watch).
QUIET_TICK = 0.5
# While an attempt ends here, which the others wait for.
ENDING_TICK = 0.05
ALIVE_SECONDS = 2.0  # between two words to systemd's watchdog
STATUS_SECONDS = 5.0
# Of a checkpoint, what the status says. A suite may save under the same name again and again.
POINT = ("attempt", "name", "step", "saved")
WISH_SECONDS = 1.0
LEASE_LEFT = 6.0  # of a lease that cannot be written anew: twice supervisor.ASK
# Seconds that it stays after the end, so that every peer learns of the last entries.
LINGER = 20.0
# Seconds without a leader and without processes, after which it takes its peers' supervisors for
# gone. The run has ended while this node was away.
ALONE = 86400.0


def clock():
    """Return the seconds of a clock that runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Damaged(Exception):
    """This node has forgotten its votes, so it must not vote again."""


class Program:
    """The supervisor with all that it needs of its node."""

    def __init__(self, place):
        self.place, self.order = place, orders.read(place)
        now, order = clock(), self.order
        until = order.until
        if order.boot != ownership.boot_mark():
            until = now  # the controller's word counts by a clock that began with the machine
        step = 0
        if order.point:
            step = node_attempts.order_of(order.point)
        granted = orders.GRANTED_SECONDS
        beginning = Beginning(order.first, tuple(order.nodes), until, step, order.point, granted)
        saved = self._read_state()
        self.nodes = orders.nodes_of(order)
        self.supervisor = Supervisor(
            order.node,
            order.voters,
            len(order.nodes),
            saved,
            now,
            random.Random(),
            beginning,
            self._judge,
            self._choose,
            [name for name in self.nodes if name not in order.voters],
            newer=functools.partial(judgement.find_newer, order),
        )
        if saved is None:
            self._save()
        self.supervisor.lease = self._read_lease() or self.supervisor.lease
        self.attempts = node_attempts.NodeAttempts(place, order)
        self.teams = [plans.nodes for plans in planned_attempts.read(place)]
        calls = {}
        if order.mesh:
            peers = channel.peers_called(order.node, self.nodes, order.voters)
            calls = channel.calls_of(peers, order.mesh, order.first)
        self.channel = channel.Channel(channel.path_of(order.run, order.node), calls, sys.stderr)
        self.alive_at = self.status_at = self.wish_at = -1e9
        self.was_training = False
        self.heard_at, self.over_at = now, None
        self.status = {}
        self.announcer = announcer.Announcer(place, order)
        self.lease, self.lease_ends = self.supervisor.lease, now
        if saved is None:
            self._write_lease(order.first, now)  # the controller's own, until the nodes agree

    def _path(self, name):
        return os.path.join(self.place, name)

    def _read_state(self):
        """Return what the protocol has saved, None before the first time.

        Raises Damaged where it was lost. An OSError may pass.
        """
        try:
            with open(self._path(orders.STATE), "rb") as handle:
                content = handle.read()
        except FileNotFoundError:
            if os.path.exists(self._path(orders.STATUS)):
                raise Damaged(f"{orders.STATE} is missing") from None
            return None
        try:
            saved = json.loads(content.decode("utf-8"))
            is_sound = saved["term"] >= 0 and {"voted_for", "log"} <= set(saved)
            is_sound = is_sound and all(len(entry) == 2 for entry in saved["log"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged(f"{orders.STATE}: {error}") from error
        if not is_sound:
            raise Damaged(f"{orders.STATE} has not what was saved")
        return saved

    def _save(self):
        """Put what the protocol needs onto the disk, before a message says it.

        The directory, too: after a power failure the older file could be there again.
        """
        write_json(self._path(orders.STATE), self.supervisor.raft.state())
        directory = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        except OSError as error:
            # Some file systems cannot sync a directory, and say so in different ways.
            if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                raise
        finally:
            os.close(directory)

    def _read_lease(self):
        """Return the lease that this node had when its supervisor ended, None without one.

        A supervisor that comes back would end the attempt otherwise. The lease counts by a clock
        that began with the machine.
        """
        saved = read_mapping(self._path(orders.LEASE))
        attempt, until = saved.get("attempt"), saved.get("until")
        is_sound = isinstance(attempt, int) and isinstance(until, (int, float))
        if not is_sound or saved.get("boot") != ownership.boot_mark():
            return None
        return attempt, until

    def _keep_lease(self):
        """Put a new lease onto the disk, also for the guard (agent/guard.py)."""
        attempt, until = self.supervisor.lease
        if (attempt, until) == self.lease:
            return
        self.lease = attempt, until
        self._write_lease(attempt, until)

    def _write_lease(self, attempt, until):
        beginning, ends = self.supervisor.beginning, until
        if beginning and attempt == beginning.attempt:
            ends = max(until, beginning.until)
        kept = {"attempt": attempt, "until": until, "ends": float(ends)}
        kept["boot"] = ownership.boot_mark()
        try:
            write_json(self._path(orders.LEASE), kept)
            self.lease_ends = ends
        except OSError:
            # A full disk. While the old lease lasts, it serves a supervisor that comes back. After
            # that it would tell the guard that the attempt has none.
            if self.lease_ends - clock() < LEASE_LEFT:
                with contextlib.suppress(OSError):
                    os.unlink(self._path(orders.LEASE))

    def _judge(self, run, found):
        """Return the verdict's entry of the newest attempt.

        A team's plans have the same ranks.
        """
        plan = planned_attempts.fresh_plan(self.place, run.members)
        return judgement.judge(self.order, plan["ranks"], run, found)

    def _choose(self, run, ready, may_be_fewer):
        """Return the nodes of the next attempt, () where too few are ready."""
        return planned_attempts.choose(self.teams, run, ready, may_be_fewer)

    def run(self):
        """Keep the run until it is over, and return the exit code."""
        systemd.notify(b"READY=1")
        while not self._is_over(clock()):
            self._step()
        return self._finish()

    def _step(self):
        """Take what has come, decide, and do it."""
        received = self.channel.receive(self._pause(clock()), clock())
        now, supervisor = clock(), self.supervisor
        report = self.attempts.report(now)
        self._wish(now, report.is_running and not self.attempts.is_ending())
        supervisor.tell(report, now)
        for peer, message in received:
            if peer in self.nodes and messages.is_valid(message, self.nodes):
                supervisor.receive(peer, message, now)
        supervisor.tick(now)
        if supervisor.raft.is_changed:
            self._save()
        self._keep_lease()
        for receiver, message in supervisor.take_outbox():
            self.channel.send(receiver, message)
        for action in supervisor.take_actions():
            self._act(action)
        self.announcer.tell(supervisor.take_decisions(), supervisor.run.members)
        self.announcer.is_idle()
        self._show(now)

    def _pause(self, now):
        """Return the seconds without a message until the next look."""
        pause = TICK
        if self.attempts.is_ending():
            pause = ENDING_TICK
        elif self.channel.watch(self.attempts.main_pid()):
            pause = QUIET_TICK
        due = self.supervisor.raft.due_in(now)
        if 0 < due < pause:
            return due
        return pause

    def _act(self, action):
        """Begin or end an attempt."""
        self._print(f"{action['do']} attempt {action['attempt']}")
        if action["do"] == "end":
            self.attempts.end(action["attempt"])
        elif not os.path.exists(self._path(orders.WISH)):
            run = self.supervisor.run
            self.attempts.start(action["attempt"], run.members, run.point, run.planned_by)

    def _wish(self, now, is_training):
        """Ask for the stop of the run where a person asked for it, until a majority has it.

        is_training: whether this node's processes run. They end by the stop, and their end must not
        count as a failure before the stop does.
        """
        has_ended, self.was_training = self.was_training and not is_training, is_training
        is_due = has_ended or now - self.wish_at >= WISH_SECONDS
        if not is_due or not self.supervisor.run.is_open():
            return
        self.wish_at = now
        if os.path.exists(self._path(orders.WISH)):
            generation = self.supervisor.run.generation
            self.supervisor.request({"kind": "stop", "generation": generation}, now)

    def _show(self, now):
        """Write status.json where something has changed, and say that this program is alive."""
        if now - self.alive_at >= ALIVE_SECONDS:
            self.alive_at = now
            systemd.notify(b"WATCHDOG=1")
        run, raft = self.supervisor.run, self.supervisor.raft
        status = {
            "run": self.order.run,
            "node": self.order.node,
            "leader": raft.leader,
            "term": raft.term,
            "denied_by": raft.denied_by,
            "attempt": run.attempt,
            "members": list(run.members),
            "teams": {str(number): list(nodes) for number, nodes in run.teams.items()},
            "here": self.attempts.attempt,
            "point": run.point and {key: run.point.get(key) for key in POINT},
            "is_open": run.is_open(),
            "is_stopped": run.is_stopped,
            "is_done": run.is_done,
            "is_given_up": run.is_given_up,
            "verdicts": list(run.verdicts),
        }
        if raft.leader:
            self.heard_at = now
        if status == self.status and now - self.status_at < STATUS_SECONDS:
            return
        if status != self.status:
            self._log(status)
        self.status, self.status_at = status, now
        with contextlib.suppress(OSError):  # a full disk: the run is kept all the same
            write_json(self._path(orders.STATUS), dict(status, time=time.time()))

    def _log(self, status):
        """Print what has changed, a line for a person."""
        changed = {
            key: value
            for key, value in status.items()
            if key not in ("verdicts", "teams") and value != self.status.get(key)
        }
        self._print(changed)
        for value in status["verdicts"][len(self.status.get("verdicts", ())) :]:
            said = f"{value['verdict'].get('text')} {value['decision'].get('why')}"
            self._say(sanitize.printable(said))  # a peer may have written it

    def _print(self, words):
        """Print a line for a person, with the time."""
        now = datetime.datetime.now(datetime.timezone.utc)
        self._say(f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z", words)

    @staticmethod
    def _say(*words):
        """Print a line. On a full disk it is lost, and the run is kept all the same."""
        with contextlib.suppress(OSError):
            print(*words, flush=True)

    def _is_over(self, now):
        """Return whether nothing is left to do."""
        run, report = self.supervisor.run, self.supervisor.report
        if report.is_running:
            self.over_at = None
            return False
        if run.is_open():
            self.over_at = None
            return now - self.heard_at > ALONE
        if self.over_at is None:
            self.over_at = now
        seconds = now - self.over_at
        if not self.announcer.is_idle() and seconds < LINGER + announcer.MOST_SECONDS:
            return False
        return seconds > LINGER and (run.judged == run.attempt or seconds > 3 * LINGER)

    def _finish(self):
        """Leave the node as it was, but for the record, and return the exit code."""
        self.status_at = -1e9
        self._show(clock())
        self.channel.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(channel.path_of(self.order.run, self.order.node))
        if self.order.mesh:
            with contextlib.suppress(mesh_credential.CredentialError, OSError):
                mesh_credential.release(
                    self.order.home, self.order.run, self.order.first, self.order.node
                )
        return leave(self.order)


def leave(order):
    """Remove this supervisor's unit, and return the exit code with which it stays away."""
    unit = attempt_dir.unit_name(order.run, order.first)
    supervisor_unit.forget(node_attempts.run_command, order.home, unit, order.node)
    if supervisor_unit.is_installed(order.home, unit, order.node):
        return supervisor_unit.OVER
    return 0  # a unit without its file is not started again, and has no codes of its own


def main(arguments):
    """Run the supervisor of a directory, or send one message, and return the exit code."""
    if list(arguments) == [announcer.TELL]:
        return sender.main()
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    os.umask(0o077)
    try:
        program = Program(arguments[0])
    except Damaged as error:
        print(f"trainyard: this node takes no part any more: {error}", flush=True)
        return leave(orders.read(arguments[0]))
    return program.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
