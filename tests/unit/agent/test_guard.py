# SPDX-License-Identifier: Apache-2.0
"""A node's guard with real processes and a real port. Programs stand in for ssh and systemctl. The
neighbour really sends its beat.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import guard
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import ownership
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    supervisor_order as orders,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import supervisor
from core_support import (
    RUN,
    agent_archive,
    attempt_files,
    compiled,
    gate_ssh,
    open_gate,
    patched_archive,
    program,
    put,
    recorded,
)

# A unit is the process whose pid stands in <node>.pid; its end is what stopping it makes.
SYSTEMCTL = """
echo "$TY_NODE $*" >> $LOG
PID=$(cat {state}/$TY_NODE.pid 2>/dev/null)
[ -r /proc/$PID/status ] && ! grep -q "^State:.[ZX]" /proc/$PID/status || PID=
case "$*" in
*show*) [ -n "$PID" ] && echo "ActiveState=active" || echo "ActiveState=inactive"; echo "MainPID=${{PID:-0}}";;
*is-active*) [ -n "$PID" ] && echo active || echo inactive;;
*stop*) [ -n "$PID" ] && kill $PID; exit 0;;
esac
"""
# The mesh: a peer's name, then the words for its gate; -G tells where its server is. A file
# <peer>.cut is a network that is down.
SSH = """
[ "$1" = -G ] && {{ echo "hostname 127.0.0.1"; echo "port $(cat {state}/$4.port)"; exit 0; }}
echo "$TY_NODE $3" >> $LOG
[ -e {state}/$3.cut ] && exec sleep 600
[ -e {state}/$3.denied ] && exit 255
KEPT=TY_NODE=$3
{gate}
"""
STEP = (
    "[11/20 11:28:24] ppdet.engine.callbacks INFO: Epoch: [0] [%d/400] learning_rate: 0.1 loss: 5.6"
    " ips: 1.0 images/s\n"
)


class Server:
    """Something that listens at a port: an SSH server, one that is frozen, or nothing."""

    def __init__(self, word=b"SSH-2.0-x\r\n"):
        self.word, self.socket, self.held = word, socket.create_server(("127.0.0.1", 0)), []
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                call, _from = self.socket.accept()
            except OSError:
                return
            self.held.append(call)
            if self.word:
                call.sendall(self.word)


class Site:
    """Nodes of one attempt below a folder; each has a unit (a process that sleeps) and, on the
    first node, a rank with a log.
    """

    def __init__(self, folder, monkeypatch, count, **watchdog):
        self.folder, self.names = folder, ["node%d" % (n + 1) for n in range(count)]
        self.state = Path(put(folder / "state", {}))
        self.state.mkdir(parents=True)
        self.made = compiled(count=count, devices=1, job={"launcher": "paddle"})
        self.made["watchdog"] = dict(
            dict.fromkeys(self.made["watchdog"]), **watchdog, set=sorted(watchdog)
        )
        for node in self.made["nodes"]:
            node.update(home=str(folder), base=str(folder / node["name"]), python=sys.executable)
        tools = program(folder / "tools", "systemctl", SYSTEMCTL.format(state=self.state))
        gate = gate_ssh(folder / "homes", tools + os.pathsep + os.environ["PATH"])
        program(folder / "tools", "ssh", SSH.format(state=self.state, gate=gate))
        monkeypatch.setenv("PATH", tools + os.pathsep + os.environ["PATH"])
        monkeypatch.setenv("TY_NODE", "node1")
        self.units, self.servers, self.places = {}, {}, {}
        quick = patched_archive("heartbeat.py", "SECONDS = 2.0", "SECONDS = 0.2")
        for name in self.names:
            config = open_gate(folder / "homes", name, self.names, base=str(folder / name))
            Path(config).with_name("agent.pyz").write_bytes(quick)
            self.places[name] = attempt_files(folder / name, self.made, name, mesh=config)
            shutil.copy(agent_archive(), self.places[name])
            self.unit(name)
            self.serve(name)
        self.log = Path(self.places["node1"], self.made["ranks"][0]["log"])
        put(self.log.parent, {self.log.name: ""})
        monkeypatch.setattr(guard.peer_monitor, "LISTEN", 0.6)
        monkeypatch.setattr(guard.peer_monitor, "SILENT", 1.5)
        monkeypatch.setattr(guard.peer_monitor, "CALL", 1.0)
        monkeypatch.setattr(guard.peer_monitor, "AFTER_END", 1.0)
        monkeypatch.setattr(guard.peer_monitor, "AGAIN", 0.2)
        monkeypatch.setattr(guard, "TICK", 0.1)

    def unit(self, name):
        """Start a node's unit: it bears the attempt's mark, and is its only rank."""
        environment = dict(os.environ, TRAINYARD_ATTEMPT=RUN + "/1")
        self.units[name] = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], env=environment
        )
        put(self.state, {name + ".pid": str(self.units[name].pid)})
        rank = self.names.index(name)
        put(
            Path(self.places[name]),
            {
                "ranks.jsonl": (
                    json.dumps({"event": "start", "rank": rank, "pid": self.units[name].pid}) + "\n"
                )
            },
        )

    def serve(self, name, word=b"SSH-2.0-x\r\n"):
        """Put a server at a node's SSH port."""
        self.servers[name] = Server(word)
        put(self.state, {name + ".port": str(self.servers[name].port)})

    def ends(self, name, code=0, **exit_json):
        """End a node's unit, with what its agent writes then."""
        place = Path(self.places[name])
        result = dict(
            {"service_result": "exit-code" if code else "success", "stopped_by": None}, **exit_json
        )
        with open(place / "ranks.jsonl", "a", encoding="ascii") as handle:
            handle.write(json.dumps({"event": "launcher_end", "exit_code": code}) + "\n")
        put(place, {"exit.json": json.dumps(result)})
        self.kill(name)

    def kill(self, name):
        """A unit is gone without an end."""
        self.units[name].kill()
        self.units[name].wait()

    def cut(self, name):
        """A node is frozen, or its network: connections are taken, and nobody says a word."""
        put(self.state, {name + ".cut": ""})
        self.serve(name, None)
        if getattr(self, "guard", None):
            # On a busy machine the guard may have asked for the port already. Here it is a new one.
            self.guard.neighbour.address = None

    def read(self, name, file):
        """Return a JSON file of a node's attempt, or None if it does not exist."""
        path = Path(self.places[name], file)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def running(self):
        """Return the nodes whose units run."""
        return [name for name, unit in self.units.items() if unit.poll() is None]

    def over(self, seconds=20.0):
        """Return whether no node's unit runs any more. On a busy machine, a unit that was told to
        stop may need a moment.
        """
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.running()

    def watch(self, until=lambda: False, seconds=40.0, node="node1"):
        """Run a guard until its attempt is over (then True), the condition holds, or it has taken
        too long.
        """
        self.guard = guard.Guard(self.places[node], node)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.guard.tick():
                return True
            if until():
                return False
        return None

    def heard(self, times=3):
        """Return a condition: the neighbour was heard so many times since now."""
        count, last = [], []

        def condition():
            if self.guard.neighbour.heard is not None and self.guard.neighbour.last not in last:
                last.append(self.guard.neighbour.last)
                count.append(1)
            return len(count) >= times

        return condition

    def close(self):
        """End what is left of it."""
        if getattr(self, "guard", None) and self.guard.neighbour:
            self.guard.neighbour.hang_up()
        for unit in self.units.values():
            unit.kill()
            unit.wait()
        for server in self.servers.values():
            server.socket.close()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Make sites that are taken down at the end."""
    made = []

    def make(count=2, **watchdog):
        made.append(Site(tmp_path, monkeypatch, count, **watchdog))
        return made[-1]

    yield make
    for item in made:
        item.close()


# --- neighbours


def test_a_neighbour_that_lives_is_left_alone(site):
    made = site()
    assert made.watch(made.heard(4)) is False and made.running() == ["node1", "node2"]
    assert made.guard.neighbour.heard == {"state": "active", "holds": True, "ended": None}
    assert len(recorded(made.folder / "tools", "ssh")) == 1, "one connection is held"
    asked = [
        line for line in recorded(made.folder / "tools", "systemctl") if line.startswith("node2")
    ]
    # systemd is not asked again as long as the unit's process lives.
    assert len(asked) == 1


def beat(**changes):
    """Return the line of a neighbour whose attempt is over, with changes."""
    return (
        json.dumps(
            dict(
                {"state": "inactive", "holds": False, "ended": {"ok": False, "by": "peer"}},
                **changes,
            )
        )
        + "\n"
    )


def nested(depth):
    """Return a list in a list and so on."""
    found = []
    for _level in range(depth):
        found = [found]
    return found


def test_no_line_of_a_neighbours_ends_the_guard(tmp_path, monkeypatch):
    lines = [
        "[" * 60000,
        beat(ended={"by": nested(400)}),
        beat(state=nested(400)),
        beat(ended=5),
        beat(ended="over"),
        "5",
        "[]",
        "\udcff",
    ]
    said = tmp_path / "said"
    said.write_text(
        "\n".join(lines) + "\n" + beat(ended={"by": "x" * 9000}),
        encoding="utf-8",
        errors="surrogateescape",
    )
    monkeypatch.setattr(guard.peer_monitor, "AFTER_END", 0)
    nodes = [{"name": name, "address": "127.0.0.1"} for name in ("node1", "node2")]
    found = guard.peer_monitor.Neighbour({"nodes": nodes}, "node1", {"attempt": 1}, 0.0)
    found.argv = ["cat", str(said)]
    found.connect(0.0)
    deadline = time.monotonic() + 20
    while found.call is not None and time.monotonic() < deadline:
        reason = found.look(1.0)
        time.sleep(0.01)
    assert found.call is None, "all lines were read"
    assert reason[0] == "peer" and len(reason[1]) < 300


def test_a_neighbour_that_vanishes_ends_the_attempt_everywhere_else(site):
    made = site(3)
    made.cut("node2")
    assert made.watch() is True and made.running() == ["node2"]
    loss = made.read("node1", "loss.json")
    assert (
        loss["node"] == "node2"
        and loss["by"] == "node1"
        and "nobody answered" in loss["how"]
        and loss["seconds"] >= 1.5
    )
    assert {key: made.read("node1", "stop.json")[key] for key in ("by", "reason", "from")} == {
        "by": "guard",
        "reason": "lost",
        "from": "node2",
    }
    assert {key: made.read("node3", "stop.json")[key] for key in ("by", "reason", "from")} == {
        "by": "peer",
        "reason": "lost",
        "from": "node1",
    }
    assert made.read("node2", "stop.json") is None


def test_a_neighbour_that_vanishes_in_the_middle_of_it(site):
    made = site()
    assert made.watch(made.heard(2)) is False
    made.guard.neighbour.hang_up()
    made.cut("node2")
    deadline = time.monotonic() + 40
    while made.guard.tick() and time.monotonic() < deadline:
        pass
    assert made.running() == ["node2"] and made.read("node1", "loss.json")["node"] == "node2"


@pytest.mark.parametrize("how", ["login", "refused", "hangs up"])
def test_a_node_that_lives_and_lets_nobody_in_has_not_vanished(site, how):
    """sshd is restarted, its certificate has expired, or it accepts no more connections."""
    made = site()
    put(made.state, {"node2.denied": ""})
    if how == "refused":
        made.servers["node2"].socket.close()
    elif how == "hangs up":
        made.serve("node2", b"")
        threading.Thread(target=_hang_up, args=(made.servers["node2"],), daemon=True).start()
    begun = time.monotonic()
    assert made.watch(
        lambda: time.monotonic() - begun > 4, seconds=60
    ) is False and made.running() == ["node1", "node2"]
    (made.state / "node2.denied").unlink()
    made.guard.neighbour.wait = 0.2
    made.guard.neighbour.next = 0
    until, deadline = made.heard(2), time.monotonic() + 40
    while not until() and time.monotonic() < deadline:
        assert made.guard.tick()
    assert made.guard.neighbour.heard["state"] == "active", "it is heard again"


def _hang_up(server):
    while True:
        while server.held:
            server.held.pop().close()
        time.sleep(0.05)


@pytest.mark.parametrize(
    "exit_json", [{"code": 7}, {"stopped_by": "user"}], ids=["failed", "stopped"]
)
def test_an_attempt_that_is_over_at_the_neighbours_ends_here_too(site, exit_json):
    """A node that was cut off or frozen and returns never continues alone."""
    made = site()
    put(
        Path(made.places["node2"]),
        {"stop.json": json.dumps({"by": "user"})} if "stopped_by" in exit_json else {},
    )
    made.ends("node2", **exit_json)
    assert made.watch() is True and made.over()
    assert (
        made.read("node1", "stop.json")["reason"] == "peer"
        and made.read("node1", "loss.json") is None
    )


def test_a_neighbour_that_completed_is_watched_no_more(site):
    made = site()
    made.ends("node2")
    assert made.watch(lambda: made.guard.neighbour.done) is False
    made.cut("node2")
    begun = time.monotonic()
    while time.monotonic() - begun < 3:
        assert made.guard.tick()
    assert made.running() == ["node1"]


def test_a_node_that_was_started_anew_is_lost(site):
    made = site()
    assert made.watch(made.heard(2)) is False
    made.kill("node2")
    deadline = time.monotonic() + 40
    while made.guard.tick() and time.monotonic() < deadline:
        pass
    assert made.over() and "gone without an end" in made.read("node1", "loss.json")["how"]


def test_a_neighbour_that_has_not_started_yet_is_waited_for(site, monkeypatch):
    made = site()
    made.kill("node2")
    begun = time.monotonic()
    assert made.watch(lambda: time.monotonic() - begun > 3) is False and made.running() == ["node1"]
    monkeypatch.setattr(guard.peer_monitor, "NEVER", 3.0)
    assert made.guard.tick() is True and made.over()
    assert "did not start" in made.read("node1", "loss.json")["how"]


def test_a_guard_that_stood_still_holds_it_against_nobody(site, monkeypatch):
    made = site(2, step=20)
    assert made.watch(made.heard(2)) is False
    made.log.write_text(STEP % 0, encoding="ascii")
    made.guard.tick()
    now = time.monotonic
    monkeypatch.setattr(guard.time, "monotonic", lambda: now() + 3600)
    for _times in range(3):
        assert made.guard.tick()
    # An hour went by in which this node did not run.
    assert made.running() == ["node1", "node2"]
    pause = made.read("node1", "pause.json")
    assert abs(pause["seconds"] - 3600) < 60 and abs(pause["time"] - time.time()) < 60


# --- a supervisor that does not come back


def lay_lease(made, **fields):
    """Put a lease of node1's supervisor where it keeps it; return its end, in CLOCK_BOOTTIME."""
    run_dir = Path(made.places["node1"]).parent
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    lease = {"attempt": 1, "ends": now + 1.0, "boot": "this boot", **fields}
    put(Path(orders.place_of(str(run_dir), "node1")), {orders.LEASE: json.dumps(lease)})
    record = Path(made.places["node1"], "attempt.json")
    record.write_text(json.dumps(dict(json.loads(record.read_text()), boot="this boot")))
    return lease["ends"]


@pytest.fixture
def no_margin(monkeypatch):
    monkeypatch.setattr(guard, "LEASE_MARGIN", 0.0)


def test_an_attempt_whose_lease_is_over_ends_here(site, no_margin):
    made = site()
    until = lay_lease(made)
    assert made.watch() is True and time.clock_gettime(time.CLOCK_BOOTTIME) > until
    assert made.running() == ["node2"], "the other nodes see to their own leases"
    stop = made.read("node1", "stop.json")
    assert (stop["by"], stop["from"]) == ("peer", ownership.BY_NODES)
    assert [made.read("node1", name) for name in ("loss.json", "stall.json")] == [None, None]
    called = [line.split()[2] for line in recorded(made.folder / "tools", "systemctl")]
    ended = [word for word in called if word != "show"]
    assert ended == ["kill", "stop"], "who ignores TERM has no time for it"


@pytest.mark.parametrize(
    "fields",
    [
        {"ends": 1e9},
        {"ends": 0.0, "attempt": 2},
        {"ends": 0.0, "boot": "another"},
        {"ends": None},
        None,
    ],
)
def test_an_attempt_with_a_lease_or_without_a_word_of_one_goes_on(site, no_margin, fields):
    made = site()
    if fields is not None:
        lay_lease(made, **fields)
    assert made.watch(made.heard(4)) is False and made.running() == ["node1", "node2"]


def test_the_guard_waits_for_the_supervisor_and_not_as_long_as_the_others():
    assert 0 < guard.LEASE_MARGIN < supervisor.KILL
    assert guard.BY_NODES == ownership.BY_NODES


# --- a training that hangs


def hung(made, **more):
    """Let rank 0 print steps until now, and then nothing; return whether the guard ended it."""
    made.log.write_text("".join(STEP % number for number in range(3)), encoding="ascii")
    return made.watch(**more)


def test_a_hang_is_ended_everywhere_and_what_the_ranks_did_is_kept_before(site):
    made = site(2, step=5)
    os.kill(made.units["node2"].pid, signal.SIGSTOP)
    begun = time.monotonic()
    ended = hung(made, until=lambda: made.read("node1", "stall.json") is not None)
    os.kill(made.units["node2"].pid, signal.SIGCONT)  # systemd sends it with TERM
    deadline = time.monotonic() + 30
    while ended is not True and made.guard.tick() and time.monotonic() < deadline:
        pass
    assert made.over() and time.monotonic() - begun > 5
    stall = made.read("node1", "stall.json")
    assert (
        stall["phase"],
        stall["budget"],
        stall["by"],
        stall["ranks"],
        stall["step"]["step"],
    ) == ("step", 5, "node1", [0], "2")
    assert stall["seconds"] >= 5 and stall["last_line"] == (STEP % 2).strip()
    assert (
        made.read("node2", "stop.json")["reason"] == "hang"
        and made.read("node1", "stop.json")["by"] == "guard"
    )
    state = {name: made.read(name, "evidence/state.json")["ranks"][0] for name in made.names}
    # Looked at while they could be asked.
    assert (state["node1"]["state"], state["node2"]["state"]) == (
        "S",
        "T",
    )
    assert "rank 1, pid %d" % made.units["node2"].pid in Path(
        made.places["node2"], "evidence/stacks-001.log"
    ).read_text(encoding="utf-8")


def test_a_driver_that_hangs_delays_no_stop_and_the_devices_are_kept_on_all_nodes(site):
    made = site(2, step=3)
    program(made.folder / "tools", "nvidia-smi", "trap '' TERM; exec sleep 600")
    ended = hung(made, until=lambda: made.read("node1", "stall.json") is not None)
    seen_at = made.read("node1", "stall.json")["time"]
    deadline = time.monotonic() + 30
    while ended is not True and made.guard.tick() and time.monotonic() < deadline:
        pass
    # What a hang has for evidence, and the stop itself: no more than without such a driver.
    assert made.over() and time.time() - seen_at < guard.HANG_SECONDS + 8
    for name in made.names:
        report = made.read(name, "evidence/devices.json")
        assert report["moment"] == "hang" and {"devices", "processes", "kernel", "ras"} == set(
            report["answers"]
        )
        # Killed after its time, or not answered yet when the report was ended.
        assert (report["answers"]["devices"] or {"code": None})["code"] is None
        assert report["answers"]["ras"]["code"] == 1, "nothing listens there"


def test_a_training_that_goes_on_is_left_alone_whatever_becomes_of_its_log(site):
    """Steps continue while the log is renamed, truncated and removed. The process continues to
    write into the file that it has open.
    """
    made = site(1, step=5)
    writer = open(made.log, "ab", buffering=0)
    begun, done = time.monotonic(), set()

    def step():
        age = time.monotonic() - begun
        writer.write((STEP % int(age * 10)).encode())
        for at, name in ((1, "renamed"), (2, "truncated"), (4, "removed")):
            if age > at and name not in done:
                done.add(name)
                if name == "renamed":
                    made.log.rename(made.log.with_name("old"))
                elif name == "truncated":
                    os.truncate(made.log.with_name("old"), 0)
                else:
                    made.log.with_name("old").unlink()
        return age > 10.5

    assert made.watch(step, seconds=60) is False and made.running() == ["node1"] and len(done) == 3
    writer.close()
    assert made.guard.phases.stalled(time.monotonic() + 10)["phase"] == "step"


def test_a_flood_of_words_between_the_steps_is_no_hang(site, monkeypatch):
    monkeypatch.setattr(guard, "READ", 4096)
    made = site(1, step=5)
    begun = time.monotonic()

    def flood():
        with open(made.log, "ab") as handle:
            handle.write(b"some words that say nothing of a step\n" * 2000)
        return time.monotonic() - begun > 6.5

    hung_up = hung(made, until=flood)
    assert hung_up is False and made.running() == ["node1"]


def test_a_hang_is_known_at_the_end_of_its_budget(site, monkeypatch):
    made = site(1, step=5)
    monkeypatch.setattr(guard, "TICK", 3.5)
    assert hung(made)
    assert 5 <= made.read("node1", "stall.json")["seconds"] < 6.5


def test_ranks_that_have_ended_hang_no_more(site):
    made = site(1, step=5)
    with open(Path(made.places["node1"], "ranks.jsonl"), "a", encoding="ascii") as handle:
        handle.write(json.dumps({"event": "end", "rank": 0, "pid": made.units["node1"].pid}) + "\n")
    begun = time.monotonic()
    assert hung(made, until=lambda: time.monotonic() - begun > 6.5) is False and made.running() == [
        "node1"
    ]


def ended_well(made, name, rank):
    """Let a rank of a node end with exit code 0, while its unit goes on."""
    with open(Path(made.places[name], "ranks.jsonl"), "a", encoding="ascii") as handle:
        handle.write(
            json.dumps({"event": "end", "rank": rank, "pid": made.units[name].pid, "exit_code": 0})
            + "\n"
        )


@pytest.mark.parametrize("others", [[], [1]], ids=["launcher", "rank 1"])
def test_what_hangs_when_rank_0_has_ended_is_ended_too(site, others):
    """A rank does not end, or a launcher waits for a rank on another node. The log of rank 0 says
    nothing about it.
    """
    made = site(2, step=600, checkpoint=2)
    with open(Path(made.places["node1"], "ranks.jsonl"), "a", encoding="ascii") as handle:
        handle.writelines(
            json.dumps({"event": "start", "rank": rank, "pid": made.units["node1"].pid}) + "\n"
            for rank in others
        )
    ended_well(made, "node1", 0)
    assert hung(made) is True and made.over()
    stall = made.read("node1", "stall.json")
    assert (stall["phase"], stall["budget"], stall["ranks"]) == ("teardown", 2, others)
    assert (
        made.read("node1", "stop.json")["reason"]
        == made.read("node2", "stop.json")["reason"]
        == "hang"
    )


def test_what_hangs_where_nobody_prints_is_ended_when_the_neighbour_has_completed(
    site, monkeypatch
):
    made = site(2, checkpoint=2)
    monkeypatch.setenv("TY_NODE", "node2")
    begun = time.monotonic()
    # rank 0 may evaluate for as long as it likes, whoever else has ended
    ended_well(made, "node2", 1)
    assert made.watch(
        lambda: time.monotonic() - begun > 5, node="node2"
    ) is False and made.running() == ["node1", "node2"]
    made.ends("node1")
    assert made.watch(node="node2") is True and made.over()
    assert (
        made.read("node2", "stall.json")["phase"] == "teardown"
        and made.read("node2", "stop.json")["reason"] == "hang"
    )


def test_where_nobody_knows_whether_rank_0_evaluates_it_is_given_the_time(site):
    made = site(3, checkpoint=2, evaluation=30)
    budgets = [guard.Guard(made.places[name], name).teardown.budget for name in made.names]
    # node2 hears of node3 alone, node3 of node1.
    assert budgets == [2, 32, 2]


def test_a_launcher_that_has_ended_is_on_its_way_out(site):
    made = site(1, checkpoint=2)
    ended_well(made, "node1", 0)
    with open(Path(made.places["node1"], "ranks.jsonl"), "a", encoding="ascii") as handle:
        handle.write(json.dumps({"event": "launcher_end", "exit_code": 0}) + "\n")
    begun = time.monotonic()
    assert made.watch(lambda: time.monotonic() - begun > 4) is False and made.running() == ["node1"]


def test_a_node_whose_ranks_print_nothing_judges_no_steps(site):
    made = site(2, step=5)
    made.watch(lambda: True, node="node2")
    assert made.guard.phases is None and made.guard.neighbour.name == "node1"


def test_a_guard_that_was_killed_goes_on_where_it_was(site):
    made = site(1, step=600)
    assert (
        hung(made, until=lambda: (made.read("node1", "guard.json") or {}).get("phase") == "step")
        is False
    )
    since, first = made.guard.phases.since, made.guard
    made.watch(lambda: True)
    # What was read before does not count again.
    assert made.guard is not first and made.guard.phases.since == since
    kept = made.read("node1", "guard.json")
    assert (kept["phase"], kept["budget"]) == ("step", 600)


def test_the_program_ends_with_75_when_the_unit_has_gone(site, monkeypatch):
    made = site(1, step=600)
    argv = [
        sys.executable,
        "-I",
        str(Path(made.places["node1"], "agent.pyz")),
        "guard",
        made.places["node1"],
        "node1",
    ]
    process = subprocess.Popen(argv)
    deadline = time.monotonic() + 30
    while made.read("node1", "guard.json") is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None
    made.ends("node1")
    assert process.wait(timeout=30) == guard.EXIT_OVER
    assert not Path(made.places["node1"], "__pycache__").exists()


def test_a_disk_that_is_full_keeps_no_hang_alive(site, monkeypatch, capsys):
    made = site(1, step=5)
    monkeypatch.setattr(
        guard.attempt_files,
        "write_json",
        lambda *_given: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    assert hung(made) is True and made.over()
    said = capsys.readouterr().out
    assert "stall.json cannot be written" in said and os.strerror(errno.ENOSPC) in said
