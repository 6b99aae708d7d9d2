# SPDX-License-Identifier: Apache-2.0
"""Three supervisors, each a whole program, keep a run over real relays: only the attempts'
processes are not real.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import relay
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    supervisor_order as orders,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import supervisor_unit
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import (
    announcer,
    channel,
    messages,
    node_attempts,
    node_supervisor,
    raft,
    supervisor,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import zipapp
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import standby
from conftest import sample_plan
from core_support import RUN, put
from detached_support import NODES, call_of, order_of, point_of, wait_for
from unit.diagnosis.test_verdict import VALUE, end, node, stopped

POINT = point_of(attempt=1, source="node2")
STEP = node_attempts.order_of(POINT)
# The product's seconds, made shorter.
SECONDS = {"LEASE": 6.0, "KILL": 1.0, "ASK": 0.3, "LOST": 2.5, "FINDING": 2.0, "PATIENCE": 4.0}


class Processes:
    """The attempts of a node, whose processes do what the test says."""

    def __init__(self, _place, order):
        self.order, self.attempt, self.is_running = order, order.first, True
        if order.node in order.spares:
            self.attempt, self.is_running = 0, False
        self.has_failed = self.is_done = False
        self.step, self.point, self.finding = 0, None, None
        self.log, self.main, self.ends = [], None, False

    def is_ending(self):
        return self.ends

    def main_pid(self):
        return self.main

    def report(self, _now):
        if not self.attempt:
            return supervisor.IDLE
        has_failed = self.has_failed or not (self.is_running or self.is_done)
        state = (self.is_running, has_failed, self.is_done)
        return supervisor.Report(self.attempt, *state, self.step, self.point, self.finding)

    def start(self, attempt, members, point, planned_by):
        self.members, self.planned_by = members, planned_by
        self.log.append(("start", attempt, point))
        self.attempt, self.is_running, self.has_failed = attempt, True, False
        self.step, self.point, self.finding = 0, None, None

    def end(self, attempt):
        self.log.append(("end", attempt))
        if self.is_running:
            self.fail(signal="SIGTERM", at=2.0, by="peer")

    def fail(self, by=None, **more):
        """End with what the evidence says of this node's rank."""
        rank, unit = NODES.index(self.order.node), {}
        if by:
            unit = {"unit": stopped(by, at=1.0, source="node2")}
        self.finding = node(self.order.node, end(rank, **more), **unit)
        self.is_running, self.has_failed = False, True


class World:
    """The programs of a run's nodes and spares, which take their turns in this thread."""

    def __init__(self, folder, monkeypatch, nodes=NODES, spares=(), least=None):
        self.folder, self.nodes, self.refused, self.forgotten = folder, nodes, [], []
        monkeypatch.setattr(relay, "socket_path", lambda _run, name: str(folder / f"{name}.s"))
        monkeypatch.setattr(
            channel,
            "calls_of",
            lambda peers, _config, _number: {
                peer: call_of(folder / f"{peer}.s", self.calling) for peer in peers
            },
        )
        for name, value in SECONDS.items():
            monkeypatch.setattr(supervisor, name, value)
        monkeypatch.setattr(raft, "ELECTION", (0.3, 0.6))
        monkeypatch.setattr(raft, "HEARTBEAT", 0.1)
        for name, value in {"TICK": 0.01, "LINGER": 0.3, "WISH_SECONDS": 0.1}.items():
            monkeypatch.setattr(node_supervisor, name, value)
        monkeypatch.setattr(node_attempts, "NodeAttempts", Processes)
        monkeypatch.setattr(
            supervisor_unit, "forget", lambda *which: self.forgotten.append(which[-1])
        )
        monkeypatch.setattr(
            node_supervisor.mesh_credential, "release", lambda *w: self.forgotten.append(w[-1])
        )
        monkeypatch.setattr(messages, "is_valid", self.check)
        rows, least = [], least or len(nodes)
        own, others = ([{"name": n} for n in names] for names in (nodes, spares))
        for team in standby.teams(own, others, least):
            names = [node["name"] for node in team]
            ranks = sample_plan(len(names), 1)["ranks"]
            ranks = [dict(rank, node=names[nodes.index(rank["node"])]) for rank in ranks]
            rows.append({"nodes": names, "fresh": json.dumps({"ranks": ranks}), "template": ""})
        for name in [*nodes, *spares]:
            more = {"nodes": nodes, "spares": list(spares), "mesh": "config" * (len(nodes) > 1)}
            more["voters"] = standby.voters(own, others, least)
            order = order_of(folder, name, **more)
            files = {orders.NAME: json.dumps(order._asdict()), orders.PLANS: json.dumps(rows)}
            put(folder / name, files)
        self.programs = {name: self.begin(name) for name in [*nodes, *spares]}

    def begin(self, name):
        self.calling = name
        return node_supervisor.Program(str(self.folder / name))

    def check(self, message, names):
        """What an honest peer sends is valid."""
        if not IS_VALID(message, names):
            self.refused.append(message)
        return True

    def step(self):
        for program in self.programs.values():
            program._step()

    def until(self, condition):
        """Let the programs run until something holds for each of them."""
        wait_for(lambda: all(map(condition, self.programs.values())), self.step)

    def agree(self):
        """Let the nodes agree on the controller's attempt."""
        self.until(lambda program: program.supervisor.run.attempt == 1)

    def on(self, name):
        return self.programs[name].attempts

    def logs(self):
        return [program.attempts.log for program in self.programs.values()]

    def status(self, name):
        return json.loads((self.folder / name / orders.STATUS).read_text())


IS_VALID = messages.is_valid


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, monkeypatch)
    yield made
    for program in made.programs.values():
        with contextlib.suppress(AttributeError):  # one that has finished
            program.channel.close()
    assert made.refused == []


def begun(number):
    return lambda program: program.attempts.attempt == number and program.attempts.is_running


def test_a_failed_rank_leads_to_an_attempt_from_the_newest_checkpoint(world):
    world.agree()
    assert world.logs() == [[], [], []] and world.status("node1")["is_open"] is True
    world.on("node2").step, world.on("node2").point = STEP, POINT
    world.until(lambda program: program.supervisor.run.point == POINT)
    world.on("node2").fail(signal="SIGKILL", at=0.0)
    world.until(begun(2))
    assert world.logs() == [
        [("end", 1), ("start", 2, POINT)],
        [("start", 2, POINT)],
        [("end", 1), ("start", 2, POINT)],
    ]
    # The record of each node has the one that decided it.
    log = world.programs["node1"].supervisor.raft.log
    plans = [value for _term, value in log if value and value["kind"] == "plan"]
    assert {world.on(name).planned_by for name in NODES} == {plans[-1]["by"]}
    world.until(lambda program: world.status(program.order.node)["here"] == 2)
    for name in NODES:
        status = world.status(name)
        assert (status["attempt"], status["is_open"], status["is_stopped"]) == (2, True, False)
        assert status["point"] == {"attempt": 1, "name": "4", "step": 60, "saved": POINT["saved"]}
        (value,) = status["verdicts"]
        said = (value["verdict"]["rank"], value["verdict"]["node"], value["verdict"]["cause"])
        assert (value["attempt"], *said) == (1, 1, "node2", "killed")


def events_of(file):
    """The events that the receivers were told, in order."""
    told = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted((event["attempt"], event["event"], event["code"]) for event in told)


def test_each_event_is_told_once_by_the_leader(world):
    file, program = world.folder / "told", zipapp.build("supervision.node_supervisor")
    put(world.folder, {"told": ""})
    # One write for each line: two nodes tell at once.
    writes = ["sh", "-c", f'text=$(cat); printf "%s\\n" "$text" >> {file}']
    for kinds in (["restarted", "failed", "stopped", "started"], ["restarted"]):
        channel_ = {"index": 0, "url": "", "command": writes, "on": kinds}
        for each in world.programs.values():
            each.order.notify.append(channel_)
            (world.folder / each.order.node / orders.PROGRAM).write_bytes(program)
    world.agree()
    world.on("node2").fail(signal="SIGKILL", at=0.0)
    world.until(begun(2))
    put(world.folder / "node3", {orders.WISH: "{}"})
    world.until(lambda each: each.supervisor.run.judged == 2)
    world.until(lambda each: each.announcer.is_idle())
    assert events_of(file) == [
        (1, "failed", "killed"),
        (1, "started", ""),
        (2, "failed", "unknown"),  # the processes of this test do not say that a person stopped
        (2, "restarted", ""),
        (2, "restarted", ""),
    ]
    events = [json.loads(line) for line in file.read_text().splitlines()]
    event = next(event for event in events if event["event"] == "failed")
    assert event["nodes"] == NODES and event["text"] and event["run"] == RUN


def test_a_receiver_that_cannot_be_told_ends_no_supervisor(tmp_path, monkeypatch, capsys):
    secret = {"index": 4, "url": "https://x.invalid/TOKEN", "secret": "SIGN", "command": []}
    order = order_of(tmp_path, notify=[dict(secret, on=["failed"], template="generic")])
    teller, value = announcer.Announcer(str(tmp_path), order), {"outcome": "failed", "text": "x"}

    def refuse(*_arguments, **_named):
        raise BlockingIOError(11, "https://x.invalid/TOKEN SIGN")

    monkeypatch.setattr(announcer.subprocess, "Popen", refuse)
    teller.tell([{"kind": "verdict", "attempt": 1, "verdict": value}], NODES)
    said = capsys.readouterr().out
    assert "trainyard_notify[4] was not told" in said
    assert "TOKEN" not in said and "SIGN" not in said and teller.is_idle()


def test_a_program_waits_for_its_messages_at_the_end_and_not_for_ever(world):
    world.agree()
    put(world.folder / "node3", {orders.WISH: "{}"})
    world.until(lambda each: each._is_over(node_supervisor.clock()))
    each = world.programs["node1"]
    each.announcer.is_idle = lambda: False
    now = node_supervisor.clock()
    assert not each._is_over(now)
    assert each._is_over(now + announcer.MOST_SECONDS)


def test_a_wish_on_one_node_ends_the_run_on_all(world):
    world.agree()
    put(world.folder / "node3", {orders.WISH: "{}"})
    world.until(lambda program: program._is_over(node_supervisor.clock()))
    assert world.logs() == [[("end", 1)]] * 3
    for name in NODES:
        status = world.status(name)
        assert (status["is_open"], status["is_stopped"], status["is_done"]) == (False, True, False)
    codes = [program._finish() for program in world.programs.values()]
    assert codes == [0, 0, 0] and sorted(world.forgotten) == sorted(2 * NODES)
    assert not list(world.folder.glob("*.s"))


@pytest.fixture
def asked(world, monkeypatch):
    """The programs of a run that a person stops, with no look for that before its end."""
    world.agree()
    monkeypatch.setattr(node_supervisor, "WISH_SECONDS", 1e6)
    for name in NODES:
        world.programs[name].wish_at = node_supervisor.clock()
        put(world.folder / name, {orders.WISH: "{}"})
    return world


def test_a_stop_counts_before_the_end_that_it_brings(asked):
    asked.on("node2").fail(code=1, at=0.0, said=VALUE)
    asked.until(lambda program: program._is_over(node_supervisor.clock()))
    assert [asked.status(name)["is_stopped"] for name in NODES] == [True] * 3


def test_a_stop_counts_while_the_processes_end(asked):
    asked.on("node2").ends = True
    asked.until(lambda program: program.supervisor.run.is_stopped)


def test_a_stop_that_no_majority_hears_is_not_asked_for_at_each_look(world, monkeypatch):
    asks = []
    each = world.programs["node1"]
    monkeypatch.setattr(each.supervisor, "request", lambda value, _now: asks.append(value["kind"]))
    put(world.folder / "node1", {orders.WISH: "{}"})
    now = node_supervisor.clock()
    for is_training in (True, False, False, False):
        each._wish(now, is_training)
    assert asks == ["stop", "stop"]


def test_a_node_with_a_wish_begins_nothing_even_where_it_cannot_ask(world, monkeypatch):
    world.agree()
    put(world.folder / "node3", {orders.WISH: "{}"})
    monkeypatch.setattr(world.programs["node3"], "_wish", lambda *_asked: None)
    world.on("node2").fail(signal="SIGKILL", at=0.0)
    wait_for(lambda: begun(2)(world.programs["node1"]), world.step)
    for _turn in range(20):
        world.step()
    assert [entry[0] for entry in world.on("node3").log] == ["end"]


def test_an_error_of_the_user_is_the_end(world):
    world.agree()
    world.on("node2").fail(code=1, at=0.0, said=VALUE)
    world.until(lambda program: program.supervisor.run.is_given_up)
    world.until(lambda program: program._is_over(node_supervisor.clock()))
    assert world.logs() == [[("end", 1)], [], [("end", 1)]]
    for name in NODES:
        status = world.status(name)
        assert (status["is_open"], status["is_given_up"]) == (False, True)
        assert status["verdicts"][0]["verdict"]["cause"] == "python_exception"


def test_a_completed_training_is_the_end(world):
    world.agree()
    for rank, name in enumerate(NODES):
        made = world.on(name)
        made.is_running, made.is_done = False, True
        launcher = {"exit_code": 0, "signal": None, "first_error": None}
        unit = {"service_result": "success", "exit_code": "exited", "exit_status": "0"}
        unit = dict(unit, stopped_by=None, stopped_at=None)
        rank_end = end(rank, code=0, at=0.0)
        made.finding = node(name, rank_end, unit=unit, launcher=launcher)
    world.until(lambda program: program._is_over(node_supervisor.clock()))
    assert world.logs() == [[], [], []]
    world.programs["node3"]._finish()
    status = world.status("node3")
    assert (status["is_open"], status["is_done"]) == (False, True)
    assert status["verdicts"][0]["verdict"]["outcome"] == "completed"


def come_back(world, name):
    """Start a node's supervisor anew, as systemd does."""
    before = world.programs[name]
    before.channel.close()
    world.programs[name] = world.begin(name)
    return before, world.programs[name]


def test_a_supervisor_that_comes_back_knows_what_it_had_promised(world):
    world.agree()
    before, after = come_back(world, "node2")
    for key in ("term", "voted_for", "log"):
        assert getattr(after.supervisor.raft, key) == getattr(before.supervisor.raft, key)
    assert after.supervisor.raft.term > 0 and after.supervisor.raft.log
    world.until(lambda program: program.supervisor.run.attempt == 1)


def test_a_supervisor_that_comes_back_ends_no_attempt(world):
    world.agree()
    come_back(world, "node2")
    world.until(lambda program: program.supervisor.lease[0] == 1 or program.attempts.log)
    assert world.logs() == [[], [], []]


@pytest.mark.parametrize("content", [None, "broken", "[]", '{"term": 1}', '{"term": "x"}'])
def test_a_supervisor_that_has_lost_its_votes_takes_no_part_any_more(world, monkeypatch, content):
    world.agree()
    world.programs.pop("node2").channel.close()
    monkeypatch.setattr(node_supervisor.Program, "run", lambda _program: "it runs")
    state = world.folder / "node2" / orders.STATE
    sound = state.read_text()
    state.unlink()
    if content is not None:
        state.write_text(content)
    assert node_supervisor.main([str(world.folder / "node2")]) == 0
    assert world.forgotten == ["node2"], "its unit is not started again"
    state.write_text(sound)
    assert node_supervisor.main([str(world.folder / "node2")]) == "it runs"


def test_a_vote_and_the_name_of_its_file_are_on_the_disk_before_it_is_sent(world, monkeypatch):
    program, done, sync = world.programs["node1"], [], os.fsync
    state = Path(program._path(orders.STATE))

    def watch(descriptor):
        known = os.fstat(descriptor)
        if not stat.S_ISDIR(known.st_mode):
            done.append("content")
        elif os.path.samestat(known, os.stat(program.place)):
            done.append(("name", json.loads(state.read_text())["term"]))
        sync(descriptor)

    world.agree()
    monkeypatch.setattr(os, "fsync", watch)
    monkeypatch.setattr(program.channel, "send", lambda *_given: done.append("sent"))
    term = program.supervisor.raft.term + 7
    question = {"kind": "ask_vote", "term": term, "last_index": 99, "last_term": term}
    program.supervisor.raft._heard = -1e9  # so that no leader keeps it from an answer
    program.supervisor.raft.role, program.supervisor.raft.leader = "follower", None
    monkeypatch.setattr(program.channel, "receive", lambda *_given: [("node2", question)])
    program._step()
    saved = done.index(("name", term))
    assert done[saved - 1] == "content" and "sent" in done[saved:] and "sent" not in done[:saved]


@pytest.mark.parametrize("code, is_raised", [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_sync_a_directory_is_no_failure(
    world, monkeypatch, code, is_raised
):
    sync = os.fsync

    def fail(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    expected = contextlib.nullcontext()
    if is_raised:
        expected = pytest.raises(OSError)
    with expected:
        world.programs["node1"]._save()


def test_a_record_that_cannot_be_read_just_now_is_not_lost(world, monkeypatch):
    world.agree()
    world.programs.pop("node2").channel.close()
    monkeypatch.setattr(node_supervisor, "open", refuse, raising=False)
    with pytest.raises(OSError):
        node_supervisor.main([str(world.folder / "node2")])
    assert world.forgotten == []


def refuse(*_given):
    raise OSError("no memory, or no space")


@pytest.mark.parametrize("damaged", [{"attempt": "x"}, {"until": None}, {"boot": "another"}])
def test_a_lease_that_makes_no_sense_is_none(world, damaged):
    world.agree()
    program = world.programs["node1"]
    world.until(lambda program: program.supervisor.lease[0] == 1)
    path = world.folder / "node1" / orders.LEASE
    kept = json.loads(path.read_text())
    assert program._read_lease() == (1, kept["until"])
    path.write_text(json.dumps(dict(kept, **damaged)))
    assert program._read_lease() is None


def test_a_verdict_is_shown_at_once(world, capsys):
    program, now = world.programs["node1"], node_supervisor.clock()
    program._show(now)
    value = {"verdict": {"text": "FAILED: why"}, "decision": {"why": "so"}}
    program.supervisor.run.verdicts.append(value)
    program._show(now + 0.1)
    assert world.status("node1")["verdicts"] == [value]
    assert "FAILED: why so" in capsys.readouterr().out


def test_a_node_whose_peers_have_gone_ends_its_processes(world):
    world.agree()
    for name in ("node2", "node3"):
        world.programs.pop(name).channel.close()
    alone = world.programs["node1"]
    alone.supervisor.beginning = alone.supervisor.beginning._replace(until=0.0)
    world.until(lambda program: program.attempts.log)
    assert alone.attempts.log == [("end", 1)] and not alone._is_over(node_supervisor.clock())


def test_the_lease_on_the_disk_is_the_one_that_the_guard_reads(world, monkeypatch):
    program, path = world.programs["node1"], world.folder / "node1" / orders.LEASE
    granted = program.supervisor.beginning.until
    kept = json.loads(path.read_text())
    assert (kept["attempt"], kept["ends"]) == (1, granted) and kept["until"] < granted
    world.agree()
    world.until(lambda program: program.supervisor.lease[0] == 1)
    kept = json.loads(path.read_text())
    assert (kept["attempt"], kept["until"]) == program.supervisor.lease
    assert kept["ends"] == max(kept["until"], granted)
    monkeypatch.setattr(node_supervisor, "write_json", refuse)
    program.supervisor.lease = (2, kept["until"] + 1)
    program._keep_lease()
    assert json.loads(path.read_text()) == kept, "a supervisor that comes back has its rest"
    program.supervisor.lease = (2, kept["until"] + 2)
    monkeypatch.setattr(node_supervisor, "clock", lambda: kept["ends"] - 1.0)
    program._keep_lease()
    # Now the old lease would tell the guard that the attempt has none.
    assert not path.exists()


def test_a_message_in_the_name_of_a_stranger_is_not_taken(world, monkeypatch):
    program, taken = world.programs["node1"], []
    stop = {"kind": "request", "value": {"kind": "stop", "generation": 1}}
    come = [("node9", stop), ("None", stop), ("", stop)]
    monkeypatch.setattr(program.channel, "receive", lambda *_when: come)
    monkeypatch.setattr(program.supervisor, "receive", lambda *given: taken.append(given))
    program._step()
    assert taken == []


def test_a_message_that_is_not_valid_is_not_taken(world, monkeypatch):
    program, taken = world.programs["node1"], []
    monkeypatch.setattr(messages, "is_valid", IS_VALID)
    come = [("node2", {"kind": "request", "value": 1}), ("node2", None), ("node2", [])]
    monkeypatch.setattr(program.channel, "receive", lambda *_when: come)
    monkeypatch.setattr(program.supervisor, "receive", lambda *given: taken.append(given))
    program._step()
    assert taken == []


def test_a_single_node_keeps_its_run_alone(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch, nodes=["node1"])
    world.agree()
    world.on("node1").fail(signal="SIGKILL", at=0.0)
    world.until(begun(2))
    put(world.folder / "node1", {orders.WISH: "{}"})
    world.until(lambda program: program._is_over(node_supervisor.clock()))
    assert world.logs() == [[("start", 2, None), ("end", 2)]] and world.refused == []
    assert world.programs["node1"]._finish() == 0


@pytest.mark.parametrize("is_installed, code", [(True, supervisor_unit.OVER), (False, 0)])
def test_the_exit_code_keeps_systemd_from_starting_it_again(world, monkeypatch, is_installed, code):
    monkeypatch.setattr(supervisor_unit, "is_installed", lambda *_which: is_installed)
    assert world.programs["node1"]._finish() == code


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Two nodes and a spare."""
    made = World(tmp_path, monkeypatch, ["node1", "node2"], ["node3"])
    yield made
    for program in made.programs.values():
        program.channel.close()
    assert made.refused == []


def test_a_spare_takes_the_place_of_a_lost_node(pair):
    pair.agree()
    assert pair.on("node3").log == []
    pair.on("node1").step, pair.on("node1").point = STEP, POINT
    pair.until(lambda program: program.supervisor.run.point == POINT)
    pair.programs.pop("node2").channel.close()
    rank = end(0, signal="SIGTERM", at=1.0)
    pair.on("node1").finding = node("node1", rank, unit=stopped("peer", at=0.5, source="node2"))
    pair.on("node1").is_running, pair.on("node1").has_failed = False, True
    for program in pair.programs.values():  # the controller's own lease is long over
        first = program.supervisor.beginning
        program.supervisor.beginning = first._replace(until=-1000.0, granted=-1000.0)
    pair.until(begun(2))
    assert pair.logs() == [[("start", 2, POINT)]] * 2
    assert sorted(pair.on("node3").members) == ["node1", "node3"]
    for name in pair.programs:
        pair.until(lambda _program, name=name: pair.status(name)["attempt"] == 2)
        status = pair.status(name)
        assert sorted(status["members"]) == ["node1", "node3"]
        assert status["verdicts"][0]["failed"] == ["node2"]


def test_without_a_spare_that_is_free_the_run_waits(pair):
    pair.agree()
    pair.on("node3").report = lambda _now: supervisor.IDLE._replace(can_join=False)
    pair.programs.pop("node2").channel.close()
    pair.on("node1").fail(signal="SIGKILL", at=0.0)
    for program in pair.programs.values():
        program.supervisor.beginning = program.supervisor.beginning._replace(
            until=-1000.0, granted=-1000.0
        )
    pair.until(lambda program: program.supervisor.run.judged == 1)
    for _turn in range(200):
        pair.step()
    assert [program.supervisor.run.attempt for program in pair.programs.values()] == [1, 1]
    del pair.on("node3").report
    pair.until(begun(2))


def lose(world, name):
    """Switch a node off for good, after the controller's own lease."""
    world.programs.pop(name).channel.close()
    for program in world.programs.values():
        program.supervisor.beginning = program.supervisor.beginning._replace(
            until=-1000.0, granted=-1000.0
        )


@pytest.fixture
def worlds(tmp_path, monkeypatch):
    """Make a world by nodes, spares and the fewest nodes that may train."""
    made = []

    def make(*given):
        made.append(World(tmp_path, monkeypatch, *given))
        made[-1].agree()
        return made[-1]

    yield make
    for world in made:
        for program in world.programs.values():
            program.channel.close()
        assert world.refused == []


def test_the_run_goes_on_with_fewer_nodes_where_the_job_permits(worlds):
    world = worlds(["node1", "node2", "node3"], [], 2)
    lose(world, "node3")
    world.on("node1").fail(signal="SIGKILL", at=0.0)
    world.until(begun(2))
    assert [sorted(world.on(name).members) for name in ("node1", "node2")] == [
        ["node1", "node2"]
    ] * 2
    world.programs["node3"] = world.begin("node3")
    world.on("node3").is_running, world.on("node3").has_failed = False, True
    world.on("node1").step, world.on("node1").point = STEP, POINT
    world.until(lambda program: program.supervisor.run.point == POINT)
    world.on("node2").fail(signal="SIGKILL", at=0.0)
    world.until(begun(3))  # it has its place again


def test_of_two_nodes_the_one_with_rank_0_goes_on_alone(worlds):
    world = worlds(["node1", "node2"], [], 1)
    assert world.programs["node2"].supervisor.raft.voters() == ("node1",)
    lose(world, "node2")
    world.on("node1").fail(signal="SIGKILL", at=0.0)
    world.until(begun(2))
    assert list(world.on("node1").members) == ["node1"]


def test_of_two_nodes_the_other_one_waits_for_rank_0(worlds):
    world = worlds(["node1", "node2"], [], 1)
    lose(world, "node1")
    world.on("node2").fail(signal="SIGKILL", at=0.0)
    for _turn in range(300):
        world.step()
    assert world.programs["node2"].supervisor.run.attempt == 1


def test_a_full_disk_loses_a_line_and_ends_no_supervisor(monkeypatch):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        node_supervisor.Program._say("a line")
        announcer._print_problem({"index": 0, "url": "", "secret": ""}, "no route")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_a_training_whose_end_the_kernel_tells_is_looked_at_seldom(world, monkeypatch):
    program, watched = world.programs["node1"], []
    due = [9.0]
    monkeypatch.setattr(program.channel, "watch", lambda pid: watched.append(pid) or bool(pid))
    monkeypatch.setattr(program.supervisor.raft, "due_in", lambda _now: due[0])
    assert program._pause(0.0) == node_supervisor.TICK
    program.attempts.main = 77
    assert program._pause(0.0) == node_supervisor.QUIET_TICK
    assert watched == [None, 77]
    # Raft's own times are kept, and one that is over wakes nobody.
    for due[0], pause in ((0.005, 0.005), (-3.0, node_supervisor.QUIET_TICK)):
        assert program._pause(0.0) == pause
    program.attempts.ends = True  # the others wait for it
    assert program._pause(0.0) == node_supervisor.ENDING_TICK
