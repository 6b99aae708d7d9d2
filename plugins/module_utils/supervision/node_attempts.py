# SPDX-License-Identifier: Apache-2.0
"""The attempts of a supervised run on this node: what they do, their begin and their end.

What takes time (a copy, a start, a stop, reading logs) runs in threads, so that the supervisor goes
on to answer its peers.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import re
import time

from ..agent import attempt_files, heartbeat
from ..attempts import attempt_dir, evidence, ownership
from ..attempts import supervisor_order as orders
from ..base import processes
from ..base.commands import run_program
from ..base.files import read_mapping
from ..checkpoints import finder, model_collector, point_check, readings, replica
from ..recovery import checkpoint_transfer
from . import planned_attempts
from .supervisor import IDLE, Report

# Between two looks for a new checkpoint. A member that has ended looks once more, so that a long
# pause costs nothing but where rank 0's node is away.
SAVED_SECONDS = 1.0
LOOK_SECONDS = 0.2  # between two questions to systemd
# Looks, and readings of what they find, take at most this share of the time (a look of the clock's,
# a reading of a processor's), however much there is, unless a pause would be longer than so many
# seconds.
SAVED_SHARE = 0.005
MOST_SAVED_SECONDS = 5.0
MOST_READ_SECONDS = 300.0
MOST_CHANGES = 4  # looks in a row that find other files, until they are read all the same
OTHERS_SECONDS = 5.0  # between two looks for another run that holds this node
COMMAND_SECONDS = 90
# Seconds in which a node starts an attempt whose checkpoint it has: measured, 0.6 to 0.8 s.
PREPARING_SECONDS = 0.6
_ATTEMPT = re.compile(r"attempt-([0-9]{1,5})\Z")
# Of the evidence, what no verdict needs.
_LEFT_OUT = ("files",)


def order_of(point):
    """Return a point's place among all of a run, as one whole number: more is newer."""
    instead, done, attempt, _saved = finder.sort_key(point)
    return int(instead) * 10**16 + min(int(done) + 1, 10**10 - 1) * 10**6 + int(attempt)


def run_command(argv, data=None):
    """Run a program of the node and return (exit code, stdout, stderr)."""
    del data  # rsync's lists travel in files (bounded_rsync)
    code, out, err = run_program(argv, COMMAND_SECONDS)
    if code is None:
        code = 124
    return code, out, err


def _are_there(folder, sizes):
    """Return whether a folder has files of some sizes. sizes: {name: bytes}."""
    with contextlib.suppress(FileNotFoundError):
        return all(os.path.getsize(os.path.join(folder, name)) == sizes[name] for name in sizes)
    return False


class CheckpointMissing(ValueError):
    """No node has given the checkpoint."""


class NodeAttempts:
    """The newest attempt on this node."""

    def __init__(self, place, order):
        self.place, self.order = place, order
        self.run_dir = os.path.join(order.base, "runs", order.run)
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=8)
        self.ends = concurrent.futures.ThreadPoolExecutor(max_workers=1)  # waits for no reader
        # Whether another attempt may leave this node out, or take it in again.
        self.may_be_away = len(planned_attempts.read(place)) > 1
        self.attempt = self._newest()
        self.unit, self.planned = None, (0, {})
        self.beat = {"state": "unknown", "holds": True, "ended": None}
        self.looked_at = self.saved_from = -1e9
        self.starting = self.ending = self.reading = self.saving = None
        self.finding, self.seen, self.point = None, None, None
        self.listed, self.changes = None, 0
        self.known = readings.Readings()
        self.problem, self.planned_by, self.told = "", None, 0.0
        self.is_free, self.freed_at, self.freeing = True, -1e9, None

    def _newest(self):
        """Return the newest attempt that was started here, 0 for none of this order."""
        numbers = [0]
        for name in os.listdir(self.run_dir):
            match = _ATTEMPT.match(name)
            path = os.path.join(self.run_dir, name, "attempt.json")
            if match and os.path.exists(path):
                numbers.append(int(match.group(1)))
        newest = max(numbers)
        if newest < self.order.first:
            return 0
        return newest

    def directory(self, number):
        """Return the directory of an attempt."""
        return attempt_dir.attempt_dir(self.order.base, self.order.run, number)

    # -- what they do --

    def report(self, now):
        """Return the Report of this node. now: seconds of CLOCK_BOOTTIME."""
        report = self._report(now)
        if report.is_running or not self.may_be_away:
            return report
        self._look_for_others(now)
        return report._replace(can_join=self.is_free)

    def _report(self, now):
        if not self.attempt:
            self.attempt = self._newest()
        if not self.attempt:
            return IDLE
        if self.starting is not None and not self._has_started():
            return Report(self.attempt, True, False, False, 0)
        if self.problem:
            return Report(self.attempt, False, True, False, 0, None, self.finding)
        self._look(now)
        if self.beat["holds"]:
            self._look_for_checkpoint(now)
            return Report(self.attempt, True, False, False, self._step(), self.point)
        self._read_evidence()
        is_done = bool((self.beat["ended"] or {}).get("ok"))
        return Report(
            self.attempt, False, not is_done, is_done, self._step(), self.point, self.finding
        )

    def _step(self):
        """Return the place of this attempt's newest checkpoint, 0 without one."""
        if self.point is None:
            return 0
        return order_of(self.point)

    def _has_started(self):
        """Return whether the start has come to an end, and note its problem."""
        if not self.starting.done():
            return False
        self.problem, self.finding = self.starting.result()
        self.starting = None
        return True

    def main_pid(self):
        """Return the pid of the unit of the newest attempt, None where it is not known to run."""
        if self.unit is None or not self.unit.main or not self.beat["holds"]:
            return None
        return self.unit.main[0]

    def is_ending(self):
        """Return whether the attempt's end is being awaited or read."""
        is_gone = self.unit is not None and not self.unit.main and self.beat["holds"]
        return self.reading is not None or is_gone

    def _look(self, now):
        """See what the attempt's unit does."""
        if not self.beat["holds"]:
            return
        name = attempt_dir.unit_name(self.order.run, self.attempt)
        if self.unit is None or self.unit.name != name:
            self.unit = heartbeat.Unit(name)
        if not self.unit.main and now - self.looked_at < LOOK_SECONDS:
            return
        self.looked_at = now
        self.beat = heartbeat.look(self.directory(self.attempt), self.unit)

    def _look_for_others(self, now):
        """Note whether another run holds this node. Two runs may have the same spare."""
        if self.freeing is not None:
            if self.freeing.done():
                self.is_free, self.freeing = self.freeing.result(), None
        elif now - self.freed_at >= OTHERS_SECONDS:
            self.freed_at = now
            self.freeing = self.pool.submit(self._is_free)

    def _is_free(self):
        try:
            owners = ownership.list_owners(run_command, self.order.base)
        except (attempt_dir.AttemptError, OSError):
            return False  # systemd does not answer
        return all(owner["run"] == self.order.run for owner in owners)

    def _look_for_checkpoint(self, now):
        """Note a new complete checkpoint of the newest attempt."""
        if self.saving is not None:
            if self.saving.done():
                point, spent = self.saving.result()
                self.point, self.saving = point or self.point, None
                pause = min(spent / SAVED_SHARE, MOST_READ_SECONDS)
                self.saved_from = max(self.saved_from, now + pause)
        elif now >= self.saved_from:
            began = time.monotonic()
            listed = self._list_checkpoints()
            spent = time.monotonic() - began
            pause = max(SAVED_SECONDS, spent / SAVED_SHARE)
            self.saved_from = now + min(pause, MOST_SAVED_SECONDS)
            if listed and listed != self.seen and self._is_worth_reading(listed):
                self.seen = listed
                self.saving = self.pool.submit(self._find_point, self.attempt)

    def _is_worth_reading(self, listed):
        """Return whether a new listing is as it was at the last look, or has changed some times.

        What still changes is being written. It may also change for ever.
        """
        is_same, self.listed = listed == self.listed, listed
        self.changes += 1
        if not is_same and self.changes < MOST_CHANGES:
            return False
        self.changes = 0
        return True

    def _list_checkpoints(self):
        """Return what the attempt's folders of checkpoints hold, by names and times."""
        directory = self.directory(self.attempt)
        if self.planned[0] != self.attempt or not self.planned[1]:
            plan = read_mapping(os.path.join(directory, "plan.json"))
            self.planned = self.attempt, plan.get("suite") or {}
        suite = self.planned[1]
        rule, rows = suite.get("resume") or {}, []
        if not rule.get("holds"):
            return rows
        with contextlib.suppress(OSError, KeyError):
            root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for folder in suite["checkpoints"]["folders"]:
                    rows += [(folder, row) for row in finder.list_candidates(root, folder, rule)[0]]
            finally:
                os.close(root)
        return rows

    def _find_point(self, attempt):
        """Return (the newest complete checkpoint of an attempt or None, seconds of a processor).

        Those of earlier attempts are not read again.
        """
        began = time.thread_time()
        return self._held(attempt), time.thread_time() - began

    def _read_evidence(self):
        """Read what the attempt's end left here, once."""
        if self.finding is not None:
            return
        if self.reading is None:
            self.reading = self.pool.submit(self._evidence, self.attempt)
        elif self.reading.done():
            self.finding, self.reading = self.reading.result(), None

    def _evidence(self, attempt):
        try:
            found = evidence.collect(self.directory(attempt), self.order.node)
        except (evidence.EvidenceError, OSError, ValueError) as error:
            found = {"node": self.order.node, "unreachable": str(error)}
        kept = {key: value for key, value in found.items() if key not in _LEFT_OUT}
        kept["holds"] = holds = self._held()
        plan = read_mapping(os.path.join(self.directory(attempt), "plan.json"))
        kept["serves"] = self._serves(plan.get("resume"))
        if not holds or holds["attempt"] != attempt:
            # This one's, where an earlier attempt's is further, or the furthest cannot be used.
            saved = self._held(attempt)
            if saved:
                kept["saved"] = saved
        return kept

    def _serves(self, point):
        """Return whether a point's files lie where other nodes may get them from this one.

        By their names and sizes: what is copied is read. The newest checkpoint here may be another
        one, which a superseded attempt has left.
        """
        if point_check.point_problem(point):
            return False
        sizes = {name: entry[1] for name, entry in point["files"].items() if entry[0] == "f"}
        # A plan lies where the training could have written it.
        with contextlib.suppress(AttributeError, LookupError, OSError, TypeError, ValueError):
            for source in self._sources(point, {}):
                if source["source"] == self.order.node and _are_there(source["path"], sizes):
                    return True
        return False

    def _held(self, attempt=None):
        """Return the newest complete checkpoint of the run, or of one attempt, on this node."""
        with contextlib.suppress(OSError, ValueError, model_collector.CheckpointError):
            found = finder.find_in_run(self.run_dir, {}, attempt=attempt, known=self.known)
            point = found["point"]
            if point and not point_check.point_problem(point):
                return dict(point, source=self.order.node)
        return None

    # -- begin and end --

    def start(self, attempt, members, point, planned_by=None):
        """Begin an attempt of some nodes from a point, None for the beginning.

        planned_by: the node that decided it.
        """
        if self.starting is not None or attempt <= self.attempt:
            return
        before, self.attempt = self.attempt, attempt
        finding, self.planned_by = self.finding, planned_by
        self.told = time.time()
        self.problem, self.finding, self.seen, self.point = "", None, None, None
        # What still reads the attempt before says nothing about this one.
        self.reading, self.saving, self.saved_from = None, None, -1e9
        self.unit, self.beat = None, {"state": "unknown", "holds": True, "ended": None}
        self.starting = self.pool.submit(self._start, before, attempt, members, point, finding)

    def _start(self, before, attempt, members, point, finding):
        """Return (its problem, the finding), ('', None) after a start.

        finding: of the attempt before here, None where there was none.
        """
        try:
            if before:
                processes.end(self.order.run, before)
            if point is not None:
                self._fetch(point, finding)
                self._keep(point)
            text = planned_attempts.plan_text(self.place, members, point)
            ownership.run_when_free(
                run_command,
                self.order.base,
                self.order.run,
                attempt,
                self.order.start,
                self.order.node,
                lambda: self._start_unit(attempt, text),
            )
        except Exception as error:  # whatever it is, the peers have to know
            problem = f"{type(error).__name__}: {error}"
            return problem, {
                "node": self.order.node,
                "unreachable": f"attempt {attempt} did not start here: {problem}",
                "lacks": isinstance(error, CheckpointMissing),
                "holds": self._held(),
                "serves": self._serves(point),
            }
        return "", None

    def _start_unit(self, attempt, text):
        plan, place = json.loads(text), self.directory(attempt)
        files, names = {}, [orders.AGENT, orders.JOB]
        if (plan.get("replica") or {}).get("node") == self.order.node:
            names.append(orders.REPLICATOR)
        for name in names:
            with contextlib.suppress(FileNotFoundError), open(
                os.path.join(self.place, name), "rb"
            ) as handle:
                files[name] = handle.read()
        begun = {
            "start": self.order.start,
            "by": ownership.BY_NODES,
            "planned_by": self.planned_by,
            "told": self.told + PREPARING_SECONDS,
            "boot": ownership.boot_mark(),
            "supervised": True,
        }
        if self.order.mesh:
            begun["mesh"] = self.order.mesh
        digest = hashlib.sha256(text.encode("ascii")).hexdigest()
        run, node = self.order.run, self.order.node
        attempt_dir.prepare(place, text, digest, node, run, attempt, files, begun)
        unit = attempt_dir.unit_name(run, attempt)
        about = f"Trainyard run {run} attempt {attempt:d}"
        attempt_dir.start(run_command, place, plan, node, unit, about, self.order.mesh)

    def _fetch(self, point, finding=None):
        """Make the point's files a tree of this node.

        finding: see _sources. Raises ValueError, CheckpointMissing where no node gives it.
        """
        problem = point_check.point_problem(point)
        if problem:
            raise ValueError(f"the checkpoint {problem}")
        wanted = dict(point, sources=self._sources(point, finding))
        _changed, is_here, reasons = checkpoint_transfer.fetch(
            run_command,
            self.order.home,
            self.order.base,
            self.order.node,
            wanted,
            config=self.order.mesh,
        )
        if not is_here:
            self.known = readings.Readings()  # a digest may be of a file that has changed unseen
            raise CheckpointMissing("; ".join(reasons) or "no node has the checkpoint")

    def _keep(self, point):
        """Make the fetched checkpoint a replica, where this node keeps those of its attempt.

        The run can go on from it without rank 0's disk then, and other nodes can get it here. So
        the replicator's next copy may wait. Where this fails, the replica is as old as before.
        """
        attempt = self.directory(point["attempt"])
        plan = read_mapping(os.path.join(attempt, "plan.json"))
        # A plan lies where the training could have written it.
        with contextlib.suppress(AttributeError, LookupError, OSError, TypeError, ValueError):
            folder = checkpoint_transfer.folder_of(point["path"])
            folders = replica.saved_folders(plan["suite"]["checkpoints"]["folders"])
            if plan["replica"]["node"] != self.order.node or folder not in folders:
                return
            copy = checkpoint_transfer.copy_of(self.order.base, point["digest"])
            slot = replica.keep(attempt, folder, copy, sorted(point["files"]))
            if slot is None:
                return
            checkpoint_transfer.note_links(self.order.base, point["digest"], point["files"])
            self._note_kept(attempt, os.path.join(slot, folder), point)

    def _note_kept(self, attempt, folder, point):
        """Note a replica that was not copied: for the replicator, and for the next finding here.

        folder: of its files, below the attempt's directory. Their digests were verified when they
        came. Whether they are a complete checkpoint, this node reads itself (finder.examine).
        """
        now, sizes = time.time(), [entry[1] for entry in point["files"].values()]
        state = {key: point[key] for key in ("source", "name", "epoch", "step", "saved")}
        state.update(copied=now, bytes=sum(sizes), seconds=0.0, problem=None)
        state["next"] = now + replica.FIRST_SECONDS
        attempt_files.write_if_possible(attempt, "replica.json", state)
        place = os.path.join(attempt, folder)
        root = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for path, entry in point["files"].items():
                self.known.put(place, root, [path], list(entry))
        finally:
            os.close(root)

    def _sources(self, point, finding=None):
        """Return [{source, path}] of the places where a point's files may lie.

        They are this node, the node that has found it, rank 0's, and the one with the replica.
        finding: of this node, after the newest attempt's end. It has read all files then, and they
        are not read again.
        """
        sources = []
        if finding is None:
            held = [finder.find_in_run(self.run_dir, {}, known=self.known)["point"]]
        else:
            held = [finding.get("holds"), finding.get("saved")]
        for own in held:
            if own and own["digest"] == point["digest"]:
                sources.append({"source": self.order.node, "path": own["path"]})
        is_own = point["source"] == self.order.node
        if not is_own or point["path"].startswith(self.run_dir + os.sep):
            sources.append({"source": point["source"], "path": point["path"]})
        for plan in self._plans_of(point["attempt"]):
            sources += self._planned_sources(plan, self.directory(point["attempt"]))
        return list({(item["source"], item["path"]): item for item in sources}.values())

    def _plans_of(self, attempt):
        """Return the plan of an attempt, where this node was not in it those that it may have."""
        plan = read_mapping(os.path.join(self.directory(attempt), "plan.json"))
        if plan:
            return [plan]
        return [json.loads(plans.fresh) for plans in planned_attempts.read(self.place)]

    def _planned_sources(self, plan, attempt):
        """Return [{source, path}] of rank 0's folders and of those of the replica.

        attempt: its directory.
        """
        keeper, sources = (plan.get("replica") or {}).get("node"), []
        folders = ((plan.get("suite") or {}).get("checkpoints") or {}).get("folders") or []
        for node in (keeper, plan["nodes"][0]["name"]):
            if not node or (node == self.order.node and not os.path.isdir(attempt)):
                continue
            for folder in folders:
                is_slot = folder not in replica.saved_folders(folders)
                if is_slot == (node == keeper):
                    sources.append({"source": node, "path": os.path.join(attempt, folder)})
        return sources

    def end(self, attempt):
        """End the processes of an attempt."""
        if self.ending is None or self.ending.done():
            self.ending = self.ends.submit(self._end, attempt)
            # So that it is known when the end has come (_evidence).
            self.pool.submit(self._held)

    def _end(self, attempt):
        place = self.directory(attempt)
        unit = attempt_dir.unit_name(self.order.run, attempt)
        try:
            attempt_dir.stop(run_command, place, unit, "peer", ownership.BY_NODES)
        except (attempt_dir.AttemptError, OSError) as error:
            return str(error)
        return ""
