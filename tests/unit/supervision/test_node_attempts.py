# SPDX-License-Identifier: Apache-2.0
"""A node's attempts: what the peers learn of them, how one begins, and from which checkpoint."""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import json
import os
import shutil
import threading
import time
import types
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    supervisor_order as orders,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    finder,
    model_collector,
    readings,
    replica,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import tree_install
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import next_plan, plan_bytes
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import (
    messages,
    node_attempts,
)
from core_support import RUN, compiled, put
from detached_support import NODES, order_of, plans_of, point_of, wait_for
from unit.checkpoints.test_finder import RULES, detection, save

GONE = {"state": "inactive", "holds": False, "ended": {"ok": False, "by": None, "reason": None}}
DONE = dict(GONE, ended={"ok": True, "by": None, "reason": None})
FRESH = plan_bytes.canonical_bytes(compiled()).decode("ascii")
TEMPLATE = plan_bytes.canonical_bytes(compiled(resume=next_plan.PLACEHOLDER)).decode("ascii")


MEMBERS = ("node1", "node2")


class Node:
    """A node's directories and its NodeAttempts, whose unit is what the test says."""

    def __init__(self, folder, monkeypatch):
        self.run = folder / "runs" / RUN
        self.order, self.now = order_of(folder, "node2", nodes=["node1", "node2"], first=3), 0.0
        self.place = self.run / "supervisor" / "node2"
        files = {orders.PLANS: plans_of(self.order.nodes, FRESH, TEMPLATE), orders.JOB: "{}"}
        put(self.place, {**files, orders.AGENT: "agent"})
        self.beat = {"state": "active", "holds": True, "ended": None}
        self.ended, self.begun = [], []
        monkeypatch.setattr(node_attempts.heartbeat, "look", lambda *_which: self.beat)
        monkeypatch.setattr(node_attempts.processes, "end", lambda *which: self.ended.append(which))
        monkeypatch.setattr(node_attempts.ownership, "run_when_free", self.when_free)
        monkeypatch.setattr(attempt_dir, "_prepare_work", lambda *_which: None)
        monkeypatch.setattr(attempt_dir, "start", lambda *way: self.begun.append(way))

    def when_free(self, *given):
        assert given[1:6] == (self.order.base, RUN, given[3], "token", "node2")
        return given[6]()

    def lay_out(self, number, folders=("output",), **plan):
        """Write what the start of an attempt has left."""
        suite = {"checkpoints": {"folders": list(folders)}, "resume": RULES["paddledetection"]}
        plan = dict({"suite": suite, "nodes": [{"name": "node1"}]}, **plan)
        texts = {"plan.json": json.dumps(plan), "attempt.json": "{}"}
        return Path(put(self.run / f"attempt-{number}", texts))

    def attempts(self):
        return node_attempts.NodeAttempts(str(self.place), self.order)

    def report(self, made):
        """Return the report after a while."""
        self.now += 10.0
        return made.report(self.now)

    def await_report(self, made, wanted):
        """Return the first report that has what a test waits for."""
        found = [self.report(made)]
        wait_for(
            lambda: wanted(found[-1]),
            lambda: (time.sleep(0.01), found.append(self.report(made))),
        )
        return found[-1]


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


# --- the order of points


def all_points(counts):
    values = itertools.product([True, False], counts, counts, [1, 2, 99999], [1.5, 2.5])
    keys = ("instead", "epoch", "step", "attempt", "saved")
    return [point_of(**dict(zip(keys, value))) for value in values]


def test_points_are_in_the_finders_order():
    points = all_points([None, 0, 1, 12, 10**9])
    for one, two in itertools.product(points, points):
        keys = [finder.sort_key(point)[:3] for point in (one, two)]
        numbers = [node_attempts.order_of(point) for point in (one, two)]
        assert (numbers[0] < numbers[1]) == (keys[0] < keys[1]), (one, two)


def test_an_order_is_a_number_that_a_message_carries():
    for point in all_points([None, 0, 1, 10**9]):
        number = node_attempts.order_of(point)
        assert messages._has_type(number, messages._COUNT) and number > 0, point


def test_many_steps_are_in_the_finders_order():
    few, many = point_of(epoch=1), point_of(instead=True, epoch=10**11)
    assert finder.sort_key(few) > finder.sort_key(many)
    assert node_attempts.order_of(few) > node_attempts.order_of(many)


# --- what they do


def test_nothing_is_said_of_attempts_before_the_first(node):
    node.lay_out(1)
    node.lay_out(2)
    assert node.report(node.attempts()) == node_attempts.IDLE
    node.lay_out(3)
    (node.run / "attempt-9").mkdir()  # it was never begun
    assert node.report(node.attempts())[:4] == (3, True, False, False)


def test_an_attempt_that_begins_later_is_seen(node):
    made = node.attempts()
    assert node.report(made) == node_attempts.IDLE
    node.lay_out(3)
    assert node.report(made)[:2] == (3, True)


@pytest.mark.parametrize("beat, expected", [(GONE, (True, False)), (DONE, (False, True))])
def test_the_end_of_an_attempt(node, monkeypatch, beat, expected):
    found = {"node": "node2", "ranks": [], "files": {"x": 1}}
    monkeypatch.setattr(node_attempts.evidence, "collect", lambda *_which: dict(found))
    node.lay_out(3)
    made = node.attempts()
    assert node.report(made).is_running
    node.beat = beat
    report = node.await_report(made, lambda report: report.finding)
    assert report[:4] == (3, False, *expected)
    assert report.finding == {"node": "node2", "ranks": [], "holds": None, "serves": False}


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("gone")])
def test_evidence_that_cannot_be_read_is_said(node, monkeypatch, error):
    def collect(*_which):
        raise error

    monkeypatch.setattr(node_attempts.evidence, "collect", collect)
    node.lay_out(3)
    node.beat = GONE
    report = node.await_report(node.attempts(), lambda report: report.finding)
    found = {"node": "node2", "unreachable": "gone", "holds": None, "serves": False}
    assert report.finding == found


def test_a_new_checkpoint_is_reported_once_it_is_complete(node):
    folder, made = node.lay_out(3) / "output", node.attempts()
    files = detection(2)
    last = {"1.pdopt": files.pop("1.pdopt")}
    save(str(folder), files)
    for _look in range(5):
        assert node.report(made).point is None
        time.sleep(0.01)
    save(str(folder), last)
    report = node.await_report(made, lambda report: report.step)
    said = report.point
    assert (said["name"], said["epoch"], said["source"]) == ("1", 2, "node2")
    assert report.step == node_attempts.order_of(report.point)
    save(str(folder), detection(3))
    newer = node.await_report(made, lambda newer: newer.step > report.step)
    assert newer.point["name"] == "2"
    message = {"kind": "ask_lease", "nonce": 1, "report": list(newer), "over": 0}
    assert messages.is_valid(json.loads(json.dumps(message)), NODES)


def test_systemd_is_asked_seldom_and_at_once_where_the_units_process_has_gone(node, monkeypatch):
    node.lay_out(3)
    made, looks = node.attempts(), []

    def look(_directory, unit):
        looks.append(unit.name)
        return node.beat

    monkeypatch.setattr(node_attempts.heartbeat, "look", look)
    for hundredth in range(100):
        made.report(hundredth / 100)
        assert made.main_pid() is None
    assert 4 <= len(looks) <= 6
    # With a known process a look costs no question.
    made.unit.main = (77, b"1")
    for hundredth in range(5):
        made.report(1.0 + hundredth / 100)
        assert made.main_pid() == 77
    assert len(looks) >= 9
    node.beat = GONE
    made.report(1.06)
    assert made.main_pid() is None and not made.report(1.07).is_running


def test_the_next_attempt_has_another_process(node):
    node.lay_out(3)
    made = node.attempts()
    made.report(0.0)
    made.unit.main = (77, b"1")
    made.start(4, MEMBERS, None)
    assert made.main_pid() is None


def test_a_look_that_takes_long_is_made_seldom(node, monkeypatch):
    node.lay_out(3)
    made, looks = node.attempts(), []

    def look():
        looks.append(node.now)
        time.sleep(0.02)
        return []

    monkeypatch.setattr(made, "_list_checkpoints", look)
    for tenth in range(100):
        made.report(tenth / 10)
    assert 1 < len(looks) <= 3  # 0.5 % of ten seconds


def test_looks_are_neither_made_all_the_time_nor_forgotten(node, monkeypatch):
    node.lay_out(3)
    made, looks = node.attempts(), []
    monkeypatch.setattr(made, "_list_checkpoints", lambda: looks.append(1) or [])
    for tenth in range(30):
        made.report(tenth / 10)
    assert 2 <= len(looks) <= 4
    monkeypatch.setattr(made, "_list_checkpoints", lambda: time.sleep(0.5) or looks.append(1) or [])
    made.report(10.0)
    seen = len(looks)
    made.report(10.0 + node_attempts.MOST_SAVED_SECONDS)
    assert len(looks) == seen + 1


def test_what_still_changes_is_not_read(node, monkeypatch):
    node.lay_out(3)
    made, listed, reads = node.attempts(), iter(range(1, 50)), []
    monkeypatch.setattr(made, "_list_checkpoints", lambda: [next(listed)])
    monkeypatch.setattr(made, "_find_point", lambda attempt: (reads.append(attempt), 0.0))
    for _look in range(node_attempts.MOST_CHANGES - 1):
        node.report(made)
    assert made.saving is None
    monkeypatch.setattr(made, "_list_checkpoints", lambda: [3])
    node.report(made)
    assert made.saving is not None
    node.await_report(made, lambda _report: reads)


def test_what_changes_for_ever_is_read_now_and_then(node, monkeypatch):
    node.lay_out(3)
    made, listed, reads = node.attempts(), iter(range(1, 50)), []
    monkeypatch.setattr(made, "_list_checkpoints", lambda: [next(listed)])
    monkeypatch.setattr(made, "_find_point", lambda attempt: (reads.append(attempt), 0.0))
    node.await_report(made, lambda _report: reads)


def test_what_takes_long_to_read_is_read_seldom(node, monkeypatch):
    node.lay_out(3)
    made, looks, spent = node.attempts(), itertools.count(1), iter([0.2, 1e6, 0.0])
    monkeypatch.setattr(made, "_is_worth_reading", lambda _listed: True)
    monkeypatch.setattr(made, "_list_checkpoints", lambda: [next(looks)])
    monkeypatch.setattr(made, "_find_point", lambda _attempt: (None, next(spent)))
    pauses = []
    for _reading in range(2):
        node.await_report(made, lambda _report: made.saving is not None)
        node.await_report(made, lambda _report: made.saving is None)
        pauses.append(made.saved_from - node.now)
    assert pauses == [pytest.approx(40.0), node_attempts.MOST_READ_SECONDS]


def test_a_report_has_the_step_of_its_point(node):
    save(str(node.lay_out(3) / "output"), detection(2))
    report = node.await_report(node.attempts(), lambda report: report.point)
    assert report.step == node_attempts.order_of(report.point)


def test_a_checkpoint_of_an_earlier_attempt_is_not_reported(node):
    save(str(node.lay_out(3) / "output"), detection(2))
    # A save that has just begun makes the node look.
    save(str(node.lay_out(4) / "output"), {"2.pdparams": b"x"})
    made = node.attempts()
    for _look in range(5):
        assert node.report(made)[:2] == (4, True) and node.report(made).point is None
        time.sleep(0.01)


def test_while_an_attempt_trains_no_earlier_ones_checkpoint_is_read(node, monkeypatch):
    save(str(node.lay_out(2) / "output"), detection(3))
    save(str(node.lay_out(3) / "output"), detection(2))
    read, examine = [], node_attempts.finder.find_in_attempt

    def note(directory, *which):
        read.append(os.path.basename(directory))
        return examine(directory, *which)

    monkeypatch.setattr(node_attempts.finder, "find_in_attempt", note)
    report = node.await_report(node.attempts(), lambda report: report.point)
    assert report.point["attempt"] == 3 and set(read) == {"attempt-3"}


def test_a_quick_reading_does_not_shorten_the_pause_after_a_long_look(node):
    node.lay_out(3)
    made = node.attempts()
    made.saved_from, made.saving = 100.0, done((None, 0.0))
    made._look_for_checkpoint(1.0)
    assert made.saving is None and made.saved_from == 100.0


def done(result):
    """Return a future that has this result."""
    future = concurrent.futures.Future()
    future.set_result(result)
    return future


# --- the begin


def test_an_attempt_counts_as_running_from_the_order_to_begin_it(node, monkeypatch):
    node.lay_out(3)
    made, gate = node.attempts(), threading.Event()
    monkeypatch.setattr(node, "when_free", lambda *given: gate.wait(10) and given[6]())
    monkeypatch.setattr(node_attempts.ownership, "run_when_free", node.when_free)
    node.beat = GONE  # of the attempt before
    node.report(made)
    made.start(4, MEMBERS, None)
    assert node.report(made) == node_attempts.Report(4, True, False, False, 0)
    node.beat = {"state": "active", "holds": True, "ended": None}
    gate.set()
    node.await_report(made, lambda _report: made.starting is None)
    assert node.report(made)[:3] == (4, True, False) and node.ended == [(RUN, 3)]


def test_a_start_that_failed_is_a_failure_with_its_reason(node, monkeypatch):
    def refuse(*_given):
        raise attempt_dir.AttemptError("attempt.node_held", "node2 is held by another")

    monkeypatch.setattr(node_attempts.ownership, "run_when_free", refuse)
    node.lay_out(3)
    made = node.attempts()
    made.start(4, MEMBERS, None)
    report = node.await_report(made, lambda report: not report.is_running)
    assert report[:5] == (4, False, True, False, 0) and report.finding["node"] == "node2"
    assert report.finding["unreachable"].startswith("attempt 4 did not start here: ")
    assert "node2 is held by another" in report.finding["unreachable"]
    assert node.report(made) == report and report.finding["lacks"] is False
    monkeypatch.setattr(node_attempts.ownership, "run_when_free", node.when_free)
    made.start(5, MEMBERS, None)
    report = node.await_report(made, lambda _report: made.starting is None)
    assert report[:4] == (5, True, False, False) and report.finding is None


def test_an_end_waits_for_nothing_that_still_reads(node, monkeypatch):
    made, gate = node.attempts(), threading.Event()
    monkeypatch.setattr(attempt_dir, "stop", lambda *_given: gate.set())
    for _reading in range(made.pool._max_workers):
        made.pool.submit(gate.wait, 20)
    made.end(3)
    assert made.ending.result(10) == ""


def test_what_still_reads_the_attempt_before_says_nothing_about_this_one(node, monkeypatch):
    monkeypatch.setattr(
        node_attempts.evidence, "collect", lambda place, _node: {"from": os.path.basename(place)}
    )
    node.lay_out(3)
    made = node.attempts()
    made.reading, made.saving = done({"from": "attempt-3"}), done((point_of(attempt=3), 0.0))
    made.saved_from = 1e9
    made.start(4, MEMBERS, None)
    assert made.saved_from < 0
    node.await_report(made, lambda _report: made.starting is None)
    assert node.report(made)[4:7] == (0, None, None)
    node.beat = GONE
    made.beat = dict(GONE)
    finding = node.await_report(made, lambda report: report.finding).finding
    assert finding["from"] == "attempt-4"


def test_what_an_attempt_has_left_is_said_where_the_furthest_is_damaged(node, monkeypatch):
    monkeypatch.setattr(node_attempts.evidence, "collect", lambda *_which: {})
    monkeypatch.setattr(
        node_attempts.NodeAttempts,
        "_held",
        lambda _made, attempt=None: attempt and point_of(attempt=attempt),
    )
    node.lay_out(3)
    node.beat = GONE
    finding = node.await_report(node.attempts(), lambda report: report.finding).finding
    assert (finding["holds"], finding["saved"]["attempt"]) == (None, 3)


def test_a_node_says_which_checkpoint_it_holds(node, monkeypatch):
    save(str(node.lay_out(2) / "output"), detection(2))
    monkeypatch.setattr(
        node_attempts.evidence, "collect", lambda *_which: {"node": "node2", "ranks": []}
    )
    node.lay_out(3)
    node.beat = GONE
    report = node.await_report(node.attempts(), lambda report: report.finding)
    held = report.finding["holds"]
    assert (held["name"], held["attempt"], held["source"]) == ("1", 2, "node2")


def test_a_node_says_which_checkpoint_an_attempt_has_left(node, monkeypatch):
    """Also where an earlier attempt, which went on after it was superseded, has a further one."""
    monkeypatch.setattr(
        node_attempts.evidence, "collect", lambda *_which: {"node": "node2", "ranks": []}
    )
    save(str(node.lay_out(2) / "output"), detection(9))
    save(str(node.lay_out(3) / "output"), detection(2))
    node.beat = GONE
    finding = node.await_report(node.attempts(), lambda report: report.finding).finding
    assert (finding["holds"]["attempt"], finding["saved"]["attempt"]) == (2, 3)


def test_no_checkpoint_is_read_in_the_supervisors_own_thread(node, monkeypatch):
    readers = []
    monkeypatch.setattr(
        node_attempts.finder,
        "find_in_run",
        lambda *_which, **_more: readers.append(threading.current_thread()) or {"point": None},
    )
    monkeypatch.setattr(node_attempts.ownership, "run_when_free", lambda *_which: 1 / 0)
    made = node.attempts()
    made.start(4, MEMBERS, None)
    node.await_report(made, lambda report: not report.is_running)
    assert threading.main_thread() not in readers


@pytest.mark.parametrize("number", [1, 3])
def test_no_older_attempt_is_begun(node, number):
    node.lay_out(3)
    made = node.attempts()
    made.start(number, MEMBERS, None)
    assert made.starting is None and made.attempt == 3


def test_what_a_start_leaves(node):
    made, told = node.attempts(), time.time()
    made.start(4, MEMBERS, None, "node1")
    node.await_report(made, lambda _report: made.starting is None)
    place = node.run / "attempt-4"
    assert made.problem == "" and (place / "plan.json").read_text() == FRESH
    record = json.loads((place / "attempt.json").read_text())
    assert (record["supervised"], record["start"], record["mesh"]) == (True, "token", "config")
    assert record["planned_by"] == "node1"
    # Also where a checkpoint is fetched first.
    assert 0 <= record["told"] - told - node_attempts.PREPARING_SECONDS < 5
    assert record["plan_sha256"] == hashlib.sha256(FRESH.encode()).hexdigest()
    assert (place / orders.AGENT).read_text() == "agent"
    ((_run, path, plan, name, unit, _about, mesh),) = node.begun
    assert (path, plan, name, mesh) == (str(place), compiled(), "node2", "config")
    assert unit == f"trainyard-{RUN}-4.service" and node.ended == []


def test_a_start_from_a_checkpoint_copies_it_first(node, monkeypatch):
    copied, point = [], point_of()

    def fetch(_run, home, base, name, wanted, config):
        copied.append((home, base, name, wanted["digest"], config, node.begun[:]))
        return True, True, []

    monkeypatch.setattr(node_attempts.checkpoint_transfer, "fetch", fetch)
    made = node.attempts()
    made.start(4, MEMBERS, point)
    node.await_report(made, lambda _report: made.starting is None)
    order = node.order
    assert copied == [(order.home, order.base, "node2", point["digest"], "config", [])]
    expected = plan_bytes.canonical_bytes(compiled(resume=point)).decode("ascii")
    assert (node.run / "attempt-4/plan.json").read_text() == expected and len(node.begun) == 1


def test_without_its_checkpoint_nothing_is_begun(node, monkeypatch):
    answer = (False, False, ["node1: timed out", "node2: gone"])
    monkeypatch.setattr(node_attempts.checkpoint_transfer, "fetch", lambda *_a, **_k: answer)
    made = node.attempts()
    made.start(4, MEMBERS, point_of())
    report = node.await_report(made, lambda report: not report.is_running)
    assert "node1: timed out; node2: gone" in report.finding["unreachable"] and node.begun == []
    assert report.finding["lacks"] is True and report.finding["holds"] is None


@pytest.mark.parametrize("point", [{}, point_of(digest="0" * 64), point_of(path="../x")])
def test_a_checkpoint_of_a_peer_that_lies_is_not_copied(node, monkeypatch, point):
    monkeypatch.setattr(
        node_attempts.checkpoint_transfer, "fetch", lambda *_a, **_k: pytest.fail("it was asked")
    )
    made = node.attempts()
    made.start(4, MEMBERS, point)
    report = node.await_report(made, lambda report: not report.is_running)
    assert report.has_failed and "the checkpoint " in report.finding["unreachable"]


def test_a_node_says_that_it_has_the_checkpoint_also_beside_a_newer_one(node):
    place = node.lay_out(3)
    save(str(place / "output"), detection(2))
    own = dict(finder.find_in_run(str(node.run), {})["point"], source="node2")
    save(str(place / "output"), detection(4))
    made = node.attempts()
    assert made._held()["digest"] != own["digest"] and made._serves(own)
    for name in own["files"]:
        path = Path(own["path"], name)
        content = path.read_bytes()
        path.write_bytes(content + b"x")
        assert not made._serves(own)
        path.unlink()
        assert not made._serves(own)
        path.write_bytes(content)
    assert made._serves(own) and not made._serves(None) and not made._serves(dict(own, digest="0"))


@pytest.mark.parametrize("nodes", [[], None, "x", [{}], [None]])
def test_a_plan_that_the_training_has_written_breaks_no_finding(node, nodes):
    place = node.lay_out(3, nodes=nodes, resume=point_of(attempt=3))
    node.beat = GONE
    report = node.await_report(node.attempts(), lambda report: report.finding)
    assert report.finding["serves"] is False and place.is_dir()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_start_that_failed_says_whether_its_checkpoint_is_here(node, monkeypatch, is_there):
    place = node.lay_out(3)
    save(str(place / "output"), detection(2))
    own = dict(finder.find_in_run(str(node.run), {})["point"], source="node2")
    if not is_there:
        Path(own["path"], next(iter(own["files"]))).unlink()
    answer = (False, False, ["node2: gone"])
    monkeypatch.setattr(node_attempts.checkpoint_transfer, "fetch", lambda *_a, **_k: answer)
    made = node.attempts()
    made.start(4, MEMBERS, own)
    report = node.await_report(made, lambda report: not report.is_running)
    assert report.finding["serves"] is is_there


# --- where a checkpoint may lie


def test_a_point_is_looked_for_where_it_was_found_and_where_its_replica_is(node):
    folders = ["output", "replica/a/output", "replica/b/output"]
    place = node.lay_out(3, folders, replica={"node": "node2", "rate": 1})
    point = point_of(attempt=3, source="node1", path="/elsewhere/output")
    assert node.attempts()._sources(point) == [
        {"source": "node1", "path": "/elsewhere/output"},
        {"source": "node2", "path": f"{place}/replica/a/output"},
        {"source": "node2", "path": f"{place}/replica/b/output"},
        {"source": "node1", "path": f"{place}/output"},
    ]


SLOTS = ["output", "replica/a/output", "replica/b/output"]


def fetched(node, monkeypatch, tmp_path):
    """Return (point, directory of its copy) of a checkpoint that node1 saved in attempt 3 and that
    a fetch has made a tree of node2.
    """
    theirs = tmp_path / "theirs/runs" / RUN / "attempt-3"
    suite = {"checkpoints": {"folders": SLOTS}, "resume": RULES["paddledetection"]}
    put(theirs, {"plan.json": json.dumps({"suite": suite, "nodes": [{"name": "node1"}]})})
    save(str(theirs / "output"), detection(2))
    point = dict(finder.find_in_run(str(theirs.parent), {})["point"], source="node1")
    tree = Path(node.order.base, "checkpoints", point["digest"][:16])
    shutil.copytree(theirs / "output", tree)
    records = {
        path: tree_install.record_of(os.lstat(tree / path), entry[2])
        for path, entry in point["files"].items()
    }
    Path(str(tree) + tree_install.SCAN).write_text(json.dumps(records))
    answer = (True, True, [])
    monkeypatch.setattr(node_attempts.checkpoint_transfer, "fetch", lambda *_a, **_k: answer)
    return point, tree


def started_from(node, point):
    made = node.attempts()
    made.start(4, MEMBERS, point)
    node.await_report(made, lambda _report: made.starting is None)
    assert made.problem == "" and len(node.begun) == 1
    return made


def test_a_checkpoint_that_was_fetched_becomes_the_replica_of_its_attempt(
    node, monkeypatch, tmp_path
):
    place = node.lay_out(3, SLOTS, replica={"node": "node2", "rate": 1})
    point, tree = fetched(node, monkeypatch, tmp_path)
    made, now = started_from(node, point), time.time()
    slot = place / "replica/a/output"
    records = json.loads(Path(str(tree) + tree_install.SCAN).read_text())
    for path, entry in point["files"].items():
        assert (slot / path).samefile(tree / path)  # and no second copy
        # nor is the first one read again where another start needs it
        assert records[path] == tree_install.record_of(os.lstat(tree / path), entry[2])
    state = json.loads((place / "replica.json").read_text())
    assert (state["source"], state["epoch"], state["problem"]) == ("node1", point["epoch"], None)
    assert state["next"] == pytest.approx(now + replica.FIRST_SECONDS, abs=5)
    # It is found without its digests, which were verified when it came. Whether it is complete, the
    # node reads itself: the point is another node's word.
    monkeypatch.setattr(readings, "SETTLED_SECONDS", -1.0)
    real, examined = finder.examine, []
    monkeypatch.setattr(finder, "examine", lambda *given: examined.append(1) or real(*given))
    monkeypatch.setattr(
        model_collector, "describe_file", lambda *_given: pytest.fail("it was read")
    )
    held = made._held()
    assert examined == [1]
    assert (held["digest"], held["attempt"], held["path"]) == (point["digest"], 3, str(slot))
    assert {key: held[key] for key in ("epoch", "step", "lr")} == {
        key: point[key] for key in ("epoch", "step", "lr")
    }
    # A start that failed is made again from the same checkpoint.
    made._keep(point)
    assert not (place / "replica/b").exists()


@pytest.mark.parametrize("case", ["another keeper", "another folder", "no tree", "a strange plan"])
def test_a_start_does_without_the_replica(node, monkeypatch, tmp_path, case):
    place = node.lay_out(
        3,
        ["other"] if case == "another folder" else SLOTS,
        replica={"node": "node1" if case == "another keeper" else "node2", "rate": 1},
    )
    point, tree = fetched(node, monkeypatch, tmp_path)
    if case == "no tree":
        shutil.rmtree(tree)
    if case == "a strange plan":
        strange = {"replica": {"node": "node2"}, "suite": {}, "nodes": [{"name": "node1"}]}
        (place / "plan.json").write_text(json.dumps(strange))
    started_from(node, point)
    assert not (place / "replica").exists() or list((place / "replica").iterdir()) == []
    assert not (place / "replica.json").exists()


def test_an_end_that_is_ordered_has_the_checkpoint_read_meanwhile(node, monkeypatch):
    place, reads = node.lay_out(3) / "output", []
    save(str(place), detection(2))
    for path in place.iterdir():
        os.utime(path, (1, 1))
    read = node_attempts.finder.examine
    monkeypatch.setattr(
        node_attempts.finder, "examine", lambda *words: reads.append(1) or read(*words)
    )
    monkeypatch.setattr(node_attempts.readings, "SETTLED_SECONDS", -1)
    monkeypatch.setattr(node_attempts.attempt_dir, "stop", lambda *_words: None)
    made = node.attempts()
    made.end(3)
    made.pool.shutdown()
    assert len(reads) == 1 and made._held()["attempt"] == 3 and len(reads) == 1


def test_what_was_read_is_forgotten_where_no_node_gives_the_checkpoint(node, monkeypatch):
    monkeypatch.setattr(
        node_attempts.checkpoint_transfer, "fetch", lambda *_words, **_more: (False, False, ["no"])
    )
    made = node.attempts()
    before = made.known
    made.start(4, MEMBERS, point_of(source="node1", path="/elsewhere/output"))
    node.await_report(made, lambda _report: made.problem)
    assert made.known is not before


def test_an_end_that_is_awaited_or_read_is_looked_at_often(node, monkeypatch):
    made = node.attempts()
    assert not made.is_ending()
    made.unit = types.SimpleNamespace(main=(7, 1))
    assert not made.is_ending()
    made.unit.main = None
    assert made.is_ending()
    made.beat = dict(made.beat, holds=False)
    assert not made.is_ending()
    made.reading = object()
    assert made.is_ending()


def test_a_point_that_this_node_has_comes_first(node):
    place = node.lay_out(3)
    save(str(place / "output"), detection(2))
    own = finder.find_in_run(str(node.run), {})["point"]
    elsewhere = dict(own, source="node1", path="/elsewhere/output")
    assert node.attempts()._sources(elsewhere)[:2] == [
        {"source": "node2", "path": f"{place}/output"},
        {"source": "node1", "path": "/elsewhere/output"},
    ]
    other = dict(elsewhere, digest="0" * 64)
    assert node.attempts()._sources(other)[0]["source"] == "node1"


@pytest.mark.parametrize("key", ["holds", "saved"])
def test_what_was_read_after_the_end_is_not_read_again_for_a_start(node, monkeypatch, key):
    point = point_of(source="node2", path=str(node.run / "attempt-3/output"))
    asked = []
    monkeypatch.setattr(
        node_attempts.finder, "find_in_run", lambda *_a, **_k: pytest.fail("it was read again")
    )
    monkeypatch.setattr(
        node_attempts.checkpoint_transfer,
        "fetch",
        lambda *words, **_k: asked.append(words[-1]["sources"]) or (True, True, []),
    )
    made = node.attempts()
    made.finding = {"node": "node2", "holds": None, key: point}
    made.start(4, MEMBERS, dict(point, source="node1", path="/elsewhere/output"))
    node.await_report(made, lambda _report: made.starting is None)
    assert made.problem == "" and asked[0][0] == {"source": "node2", "path": point["path"]}


def test_a_point_of_an_attempt_that_was_not_here_may_lie_where_any_plan_says(node):
    teams = [["node1", "node5"], ["node9", "node5"], ["node2", "node5"]]
    rows = []
    for team in teams:
        suite = {"checkpoints": {"folders": ["output", "replica/a/output"]}}
        plan = {"suite": suite, "nodes": [{"name": name} for name in team]}
        plan["replica"] = {"node": team[1]}
        rows.append({"nodes": team, "fresh": json.dumps(plan), "template": ""})
    put(node.place, {orders.PLANS: json.dumps(rows)})
    there = node.run / "attempt-3"
    assert node.attempts()._sources(point_of(attempt=3)) == [
        {"source": "node1", "path": point_of()["path"]},
        {"source": "node5", "path": str(there / "replica/a/output")},
        {"source": "node1", "path": str(there / "output")},
        {"source": "node9", "path": str(there / "output")},
    ]


OTHER = "20261121-080103-ppyoloe-c3ae"


@pytest.mark.parametrize(
    "teams, owners, free",
    [
        (2, [], True),
        (2, [{"run": RUN}], True),
        (2, [{"run": OTHER}], False),
        (2, [{"run": None}], False),
        (2, None, False),  # systemd does not answer
        (1, [{"run": OTHER}], True),  # the run never goes on without this node
    ],
)
def test_a_node_that_another_run_holds_says_so(node, monkeypatch, teams, owners, free):
    def list_owners(_run, base):
        assert base == node.order.base
        if owners is None:
            raise attempt_dir.AttemptError("attempt.no_systemd", "no bus")
        return owners

    monkeypatch.setattr(node_attempts.ownership, "list_owners", list_owners)
    plans = json.loads(plans_of(node.order.nodes, FRESH, TEMPLATE)) * teams
    put(node.place, {orders.PLANS: json.dumps(plans)})
    made = node.attempts()
    report = node.await_report(made, lambda report: report.can_join == free)
    assert not report.is_running
    if not free:
        monkeypatch.setattr(node_attempts.ownership, "list_owners", lambda *_given: [])
        node.now += node_attempts.SAVED_SECONDS
        node.await_report(made, lambda report: report.can_join)


@pytest.mark.parametrize("keeper, kept", [("node2", True), ("node1", False)])
def test_the_node_that_keeps_the_replica_gets_the_replicator(node, keeper, kept):
    plan = dict(json.loads(FRESH), replica={"node": keeper})
    text = plan_bytes.canonical_bytes(plan).decode("ascii")
    put(node.place, {orders.PLANS: plans_of(node.order.nodes, text), orders.REPLICATOR: "r"})
    made = node.attempts()
    made.start(4, MEMBERS, None)
    node.await_report(made, lambda _report: made.starting is None)
    assert made.problem == "" and (node.run / "attempt-4" / orders.REPLICATOR).exists() == kept


def test_no_peer_says_where_a_checkpoint_lies_on_this_node(node):
    point = point_of(attempt=3, source="node2", path="/home/trainer/.ssh")
    assert {"source": "node2", "path": "/home/trainer/.ssh"} not in node.attempts()._sources(point)
