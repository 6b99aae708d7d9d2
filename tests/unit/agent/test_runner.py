# SPDX-License-Identifier: Apache-2.0
"""The node's agent with real processes. A script stands in for Paddle's launcher and starts ranks
in the same way.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import container_environment
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import (
    attempt_end,
    heartbeat,
    launcher,
    log_sender,
    main,
    openmpi,
    peers,
    rank_watch,
    stack_dump,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import (
    attempt_files as files,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    guard_findings,
    mesh_credential,
    status,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.processes import pids_with_mark
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import mesh_gate, store
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import (
    software,
)
from core_support import (
    RUN,
    agent_archive,
    attempt_files,
    compiled,
    gate_ssh,
    open_gate,
    program,
    put,
    recorded,
)

AGENT = agent_archive()
NODE = "node2"
CONFIG = f"/home/trainer/.trainyard/mesh/runs/{RUN}/1/node2/config"
# What Paddle's launcher does: ranks in sessions of their own, their number and all endpoints in the
# environment, looked after now and then.
LAUNCHER = """
import json, os, subprocess, sys, time
spec = json.load(open(sys.argv[1]))
environment = dict(os.environ)
open("launcher.env", "w").write("\\n".join(sorted(environment)))
ranks = []
for number, code in spec["ranks"]:
    here = dict(environment, PADDLE_TRAINER_ID=str(number))
    here["PADDLE_TRAINER_ENDPOINTS"] = spec["endpoints"]
    ranks.append(subprocess.Popen([sys.executable, "-c", code], env=here, start_new_session=True))
while any(rank.poll() is None for rank in ranks) or spec.get("hang"):
    time.sleep(0.5)
sys.exit(spec.get("code", max(abs(rank.returncode) for rank in ranks)))
"""
SLEEP = "import time; time.sleep(0.6)"
LONG = "import time; time.sleep(60)"
KILL = "import os, signal, time; time.sleep(0.6); os.kill(os.getpid(), signal.SIGKILL)"
# A data loader: a child that inherits the rank's environment and outlives it.
LOADER = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time;"
    " time.sleep(60)']); time.sleep(0.6)"
)


class Attempt:
    """An attempt on one of two nodes with two devices each. Ranks 2 and 3 are on node2."""

    def __init__(self, folder, ranks, devices=2, node=NODE, head_start=0, **spec):
        self.made = compiled(
            count=2, devices=devices, job={"launcher": "paddle", "env": {"FROM_PLAN": "1"}}
        )
        endpoints = spec.pop("endpoints", ",".join(self.made["endpoints"]))
        tools = put(
            folder / "tools",
            {
                "launcher.py": LAUNCHER,
                "spec.json": json.dumps(dict(spec, ranks=ranks, endpoints=endpoints)),
            },
        )
        self.made["argv"] = [sys.executable, tools + "/launcher.py", tools + "/spec.json"]
        self.made["launcher"].pop("head_start")
        if head_start:
            self.made["launcher"]["head_start"] = head_start
        self.node, self.path = node, attempt_files(folder, self.made, node)

    def start(self, **environment):
        """Start the agent as the unit does."""
        argv = [sys.executable, "-I", AGENT, "run", self.path, self.node]
        with open(os.path.join(self.path, "logs.txt"), "ab") as console:
            self.process = subprocess.Popen(
                argv,
                env=dict(os.environ, **environment),
                stdout=console,
                stderr=console,
                cwd=self.path,
            )
        return self

    def end(self, seconds=15):
        """Return the agent's exit code; what is left of the attempt is ended as systemd would."""
        try:
            self.process.wait(timeout=seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            # What is ended by a signal takes a moment.
            deadline = time.monotonic() + 0.5
            while pids_with_mark(RUN, 1) and time.monotonic() < deadline:
                time.sleep(0.02)
            self.was_alone = not pids_with_mark(RUN, 1)
            for pid in pids_with_mark(RUN, 1):
                os.kill(pid, signal.SIGKILL)
        return self.process.returncode

    def events(self, kind=None):
        """Return the events of ranks.jsonl, of one kind."""
        path = Path(self.path, "ranks.jsonl")
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if kind in (None, event["event"])]

    def ends(self):
        """Return {rank: (exit code, signal)}."""
        return {
            event["rank"]: (event["exit_code"], event["signal"]) for event in self.events("end")
        }


def test_a_good_run_with_the_plans_environment_alone(tmp_path):
    stray = {"PADDLE_NNODES": "1", "PADDLE_TRAINERS": "x", "LD_LIBRARY_PATH": "/stray"}
    attempt = Attempt(tmp_path, [[2, LOADER], [3, SLEEP]]).start(**stray)
    assert attempt.end() == 0
    names = set(Path(attempt.path, "work", "launcher.env").read_text(encoding="ascii").splitlines())
    assert (
        names - {"LC_CTYPE"}
        == set(attempt.made["env"]) | set(attempt.made["nodes"][1]["env"]) | {"TRAINYARD_ATTEMPT"}
        and "FROM_PLAN" in names
    )
    assert [
        (event["rank"], event["local_rank"], event["endpoints_as_planned"])
        for event in sorted(attempt.events("start"), key=lambda e: e["rank"])
    ] == [(2, 0, True), (3, 1, True)]
    assert attempt.ends() == {2: (0, None), 3: (0, None)}
    assert [(event["exit_code"], event["signal"]) for event in attempt.events("launcher_end")] == [
        (0, None)
    ]
    started = {event["rank"]: event for event in attempt.events("start")}
    assert all(
        event["pid"] == started[event["rank"]]["pid"]
        and event["time"] >= started[event["rank"]]["time"]
        for event in attempt.events("end")
    )


@pytest.mark.parametrize(
    "accelerator, env, expected",
    [
        ("ascend", {}, "{attempt}/ascend/log"),
        ("ascend", {"ASCEND_PROCESS_LOG_PATH": "/var/cann"}, "/var/cann"),
        ("ascend", {"ASCEND_WORK_PATH": "/var/work"}, ""),
        ("gpu", {}, ""),
    ],
)
def test_canns_own_logs_are_the_attempts(tmp_path, accelerator, env, expected):
    attempt = Attempt(tmp_path, [])
    code = "import os; open('folder', 'w').write(os.environ.get('ASCEND_PROCESS_LOG_PATH', ''))"
    attempt.made.update(accelerator=accelerator, argv=[sys.executable, "-c", code])
    attempt.made["env"].update(env)
    attempt.path = attempt_files(tmp_path, attempt.made, NODE)
    attempt.start().end()
    folder = Path(attempt.path, "work", "folder").read_text(encoding="ascii")
    assert folder == expected.format(attempt=attempt.path)


@pytest.mark.parametrize(
    "code, seen",
    [
        ("import sys, time; time.sleep(0.6); sys.exit(7)", (7, None)),
        (KILL, (None, "SIGKILL")),
        ("import os, time; time.sleep(0.6); os.abort()", (None, "SIGABRT")),
    ],
    ids=["exit 7", "SIGKILL", "SIGABRT"],
)
def test_a_ranks_real_end_is_seen_although_the_launcher_hangs(tmp_path, code, seen):
    attempt = Attempt(tmp_path, [[2, SLEEP.replace("0.6", "30")], [3, code]], hang=True)
    begun = time.monotonic()
    assert attempt.start().end() == 1
    assert attempt.ends() == {3: seen}
    # the rank lives 0.6 s; then the agent gives the launcher its grace and ends for it
    assert (
        attempt.made["stop"]["grace"]
        <= time.monotonic() - begun
        <= attempt.made["stop"]["grace"] + 10
    )


def test_a_launcher_whose_last_rank_has_failed_is_not_waited_for(tmp_path):
    attempt = Attempt(tmp_path, [[2, SLEEP], [3, KILL]], hang=True)
    attempt.made["stop"]["grace"] = 60
    attempt.path = attempt_files(tmp_path, attempt.made, NODE)
    assert attempt.start().end() == 1 and attempt.was_alone
    assert attempt.ends() == {2: (0, None), 3: (None, "SIGKILL")}
    # How it ended says nothing about the training.
    assert [(e["exit_code"], e["signal"]) for e in attempt.events("launcher_end")] == [(None, None)]


def test_a_launcher_whose_ranks_have_ended_well_is_waited_for(tmp_path):
    attempt = Attempt(tmp_path, [[2, SLEEP], [3, SLEEP]], hang=True).start()
    with pytest.raises(subprocess.TimeoutExpired):
        attempt.end(4)
    assert attempt.ends() == {2: (0, None), 3: (0, None)}


@pytest.mark.parametrize("note", ['{"by": "user"}', ""])
def test_a_launcher_that_ignores_a_stop_is_waited_for_where_nobody_has_noted_it(tmp_path, note):
    obeys = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); " + LONG
    attempt = Attempt(tmp_path, [[2, obeys], [3, obeys]], hang=True).start()
    deadline = time.monotonic() + 10
    while len(attempt.events("start")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    if note:
        put(attempt.path, {"stop.json": note})
    (launched,) = attempt.events("launched")
    attempt.process.send_signal(signal.SIGTERM)
    for pid in set(pids_with_mark(RUN, 1)) - {launched["pid"]}:
        os.kill(pid, signal.SIGTERM)
    if note:
        assert attempt.end(4) == 0 and attempt.was_alone
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            attempt.end(4)


def test_a_launcher_that_ends_with_0_although_a_rank_died(tmp_path):
    attempt = Attempt(tmp_path, [[2, SLEEP], [3, KILL]], code=0).start()
    assert attempt.end() == 1 and attempt.ends()[3] == (None, "SIGKILL")


def test_the_launchers_own_failure(tmp_path):
    attempt = Attempt(tmp_path, [[2, SLEEP], [3, SLEEP]], code=250).start()
    assert attempt.end() == 250
    assert [(event["exit_code"], event["signal"]) for event in attempt.events("launcher_end")] == [
        (250, None)
    ]


def test_a_helper_that_outlives_its_rank_is_no_rank(tmp_path):
    # rank 4 never starts, so the agent goes on looking for ranks at its quick pace
    attempt = Attempt(
        tmp_path,
        [[3, LOADER + "; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], [5, LONG]],
        devices=3,
        hang=True,
    ).start()
    assert attempt.end() == 1
    assert [event["rank"] for event in attempt.events("start")] in ([3, 5], [5, 3])
    assert attempt.ends() == {3: (None, "SIGKILL")}


def test_endpoints_that_are_not_the_plans_end_the_attempt(tmp_path):
    attempt = Attempt(
        tmp_path, [[2, LONG], [3, LONG]], endpoints="10.0.0.1:6070,10.0.0.2:6070", hang=True
    ).start()
    # Otherwise ranks with wrong endpoints wait for each other for ever.
    assert attempt.end() == 1
    reported = [
        (event["endpoints_as_planned"], event["endpoints"]) for event in attempt.events("start")
    ]
    assert reported and set(map(str, reported)) == {
        str((False, ["10.0.0.1:6070", "10.0.0.2:6070"]))
    }
    log = Path(attempt.path, "logs.txt").read_text(encoding="utf-8")
    assert "10.0.0.1:6070,10.0.0.2:6070; planned" in log


def test_on_one_node_any_port_will_do(tmp_path):
    """Without --ips Paddle takes free ports, regardless of PADDLE_START_PORT. Nothing else has to
    find them.
    """
    attempt = Attempt(
        tmp_path, [[2, SLEEP], [3, SLEEP]], endpoints="10.127.5.142:39687,10.127.5.142:39688"
    )
    attempt.made["nodes"] = [node for node in attempt.made["nodes"] if node["name"] == NODE]
    attempt.path = attempt_files(tmp_path / "one", attempt.made, NODE)
    assert attempt.start().end() == 0
    assert [event["endpoints_as_planned"] for event in attempt.events("start")] == [True, True]


def test_a_plan_that_was_changed_is_refused(tmp_path):
    attempt = Attempt(tmp_path, [[2, SLEEP], [3, SLEEP]])
    plan = Path(attempt.path, "plan.json")
    plan.write_text(
        plan.read_text(encoding="ascii").replace('"17000"', '"17001"'), encoding="ascii"
    )
    assert (
        attempt.start().end() == 1
        and attempt.events() == []
        and not Path(attempt.path, "work", "launcher.env").exists()
    )
    with pytest.raises(ValueError, match="plan.json has sha256"):
        files.read_plan(attempt.path)


def test_a_command_that_is_not_there(tmp_path):
    attempt = Attempt(tmp_path, [])
    attempt.made["argv"] = ["no-such-launcher"]
    attempt.path = attempt_files(tmp_path, attempt.made, NODE)
    assert attempt.start().end() == 127


@pytest.mark.parametrize(
    "env, reason",
    [({"A=B": "1"}, "illegal environment variable name"), ({"A": "x\0y"}, "embedded null byte")],
    ids=["a name with =", "a NUL"],
)
def test_an_environment_that_no_process_can_have(tmp_path, env, reason):
    attempt = Attempt(tmp_path, [])
    attempt.made["env"].update(env)
    attempt.path = attempt_files(tmp_path, attempt.made, NODE)
    assert attempt.start().end() == 127 and [
        event["exit_code"] for event in attempt.events("launcher_end")
    ] == [127]
    log = Path(attempt.path, "logs.txt").read_text(encoding="utf-8")
    assert log.startswith("trainyard: ") and log.endswith(f": {reason}\n")
    assert log.count("\n") == 1


def test_a_stop_that_the_start_did_not_see_keeps_the_unit_from_starting_anything(tmp_path):
    attempt = Attempt(tmp_path, [[2, LONG]])
    put(attempt.path, {"stop.json": '{"by": "user"}'})
    assert attempt.start().end() == 0
    assert attempt.events() == [] and "stopped before it began" in Path(
        attempt.path, "logs.txt"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize("node, first, seconds", [("node1", 0, 60), ("node2", 2, 2)])
def test_every_node_but_the_first_waits_before_it_begins(tmp_path, node, first, seconds):
    ranks = [[first, SLEEP], [first + 1, SLEEP]]
    attempt = Attempt(tmp_path, ranks, node=node, head_start=seconds)
    begun = time.time()
    assert attempt.start().end() == 0
    (launched,) = attempt.events("launched")
    assert (launched["time"] - begun >= seconds) is (node == "node2")


def test_what_a_node_has_fetched_for_its_start_counts_as_waiting(tmp_path):
    attempt = Attempt(tmp_path, [[2, SLEEP]], head_start=60)
    record = Path(attempt.path, "attempt.json")
    begun = dict(json.loads(record.read_text()), told=time.time() - 59)
    record.write_text(json.dumps(begun))
    assert attempt.start().end() == 0


def test_a_clock_that_was_set_back_makes_no_node_wait_longer(tmp_path):
    attempt = Attempt(tmp_path, [[2, SLEEP]], head_start=0.1)
    record = Path(attempt.path, "attempt.json")
    record.write_text(json.dumps(dict(json.loads(record.read_text()), told=time.time() + 3600)))
    assert attempt.start().end() == 0


def test_a_stop_while_the_first_node_begins_starts_nothing(tmp_path):
    attempt = Attempt(tmp_path, [[2, LONG]], head_start=60).start()
    status = Path(f"/proc/{attempt.process.pid}/status")
    caught = 1 << (signal.SIGTERM - 1)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        (mask,) = [line for line in status.read_text().splitlines() if line.startswith("SigCgt")]
        if int(mask.split()[1], 16) & caught:
            break
        time.sleep(0.05)
    attempt.process.send_signal(signal.SIGTERM)
    assert attempt.end() == 0 and attempt.events() == []


def test_a_stop_is_no_failure_of_this_node(tmp_path):
    attempt = Attempt(tmp_path, [[2, LONG], [3, LONG]]).start()
    deadline = time.monotonic() + 10
    while len(attempt.events("start")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    attempt.process.send_signal(signal.SIGTERM)  # systemd sends TERM to every process of the unit
    for pid in pids_with_mark(RUN, 1):
        os.kill(pid, signal.SIGTERM)
    assert attempt.end() == 0 and attempt.ends() == {2: (None, "SIGTERM"), 3: (None, "SIGTERM")}


# --- the end of the unit


@pytest.fixture
def ending(tmp_path, monkeypatch):
    """An attempt that has ended on node2 of three, and the ssh that its peers would be reached
    with; call it with what systemd says.
    """
    made = compiled(count=3, devices=1, job={"launcher": "paddle"})
    path = attempt_files(tmp_path / "n2", made, NODE, mesh=CONFIG)
    ssh = program(tmp_path / "bin", "ssh", 'echo "$@" >>$LOG; exit ${SSH_EXIT:-0}')
    monkeypatch.setenv("PATH", ssh + os.pathsep + os.environ["PATH"])

    def end(files=None, ranks=(), **told):
        put(
            path,
            dict(
                files or {}, **{"ranks.jsonl": "".join(json.dumps(event) + "\n" for event in ranks)}
            ),
        )
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        assert attempt_end.finish(path, NODE) == 0
        return json.loads(Path(path, "exit.json").read_text(encoding="utf-8")), recorded(ssh, "ssh")

    end.path, end.bin = path, ssh
    return end


OVER = {"event": "launcher_end", "exit_code": 0, "signal": None}
FAILED = {"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "9"}
GOOD = {"SERVICE_RESULT": "success", "EXIT_CODE": "exited", "EXIT_STATUS": "0"}


@pytest.mark.parametrize(
    "told, files, ranks, calls",
    [
        (FAILED, {}, [], 2),
        ({"SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}, {}, [OVER], 2),
        (GOOD, {}, [], 2),  # the unit was stopped from outside: the gang is broken
        (GOOD, {}, [dict(OVER, exit_code=3)], 2),
        (GOOD, {}, [OVER], 0),
        (FAILED, {"stop.json": '{"by": "user", "from": "ops"}'}, [], 0),
        (GOOD, {"stop.json": '{"by": "peer", "from": "node1"}'}, [], 0),
    ],
    ids=[
        "failed",
        "killed",
        "stopped from outside",
        "launcher failed",
        "completed",
        "stopped by the user",
        "stopped by a peer",
    ],
)
def test_who_is_told_of_the_end(ending, told, files, ranks, calls):
    result, said = ending(files, ranks, **told)
    stopped = json.loads(files.get("stop.json", "{}"))
    assert {
        key: result[key]
        for key in ("service_result", "exit_code", "exit_status", "stopped_by", "stopped_from")
    } == {
        "service_result": told["SERVICE_RESULT"],
        "exit_code": told["EXIT_CODE"],
        "exit_status": told["EXIT_STATUS"],
        "stopped_by": stopped.get("by"),
        "stopped_from": stopped.get("from"),
    }
    assert abs(result["time"] - time.time()) < 10 and len(said) == calls
    assert result["peers"] == ({"node1": "stopped", "node3": "stopped"} if calls else {})


SWEPT = {"SERVICE_RESULT": "timeout", "EXIT_CODE": "exited", "EXIT_STATUS": "0"}
RANK_END = {"event": "end", "rank": 1, "exit_code": 0, "signal": None}


@pytest.mark.parametrize("result", ["timeout", "oom-kill"])
def test_what_a_finished_training_left_behind_makes_no_failure_of_it(ending, result):
    told, said = ending({}, [RANK_END, OVER], **dict(SWEPT, SERVICE_RESULT=result))
    assert (told["service_result"], told["swept"]) == ("success", result)
    assert (said, told["peers"]) == ([], {})


@pytest.mark.parametrize(
    "told, files, ranks, calls",
    [
        (SWEPT, {}, [], 2),
        (SWEPT, {}, [dict(OVER, exit_code=1)], 2),
        (SWEPT, {}, [dict(RANK_END, exit_code=1), OVER], 2),
        (SWEPT, {}, [dict(RANK_END, exit_code=None, signal="SIGKILL"), OVER], 2),
        (dict(SWEPT, EXIT_STATUS="1"), {}, [OVER], 2),
        (dict(SWEPT, EXIT_CODE="killed", EXIT_STATUS="0"), {}, [OVER], 2),
        (SWEPT, {"stop.json": '{"by": "user", "from": "ops"}'}, [OVER], 0),
    ],
    ids=[
        "no end of the launcher",
        "launcher failed",
        "rank failed",
        "rank killed",
        "agent failed",
        "agent killed",
        "stopped",
    ],
)
def test_a_sweep_that_took_long_is_a_failure_otherwise(ending, told, files, ranks, calls):
    result, said = ending(files, ranks, **told)
    assert (result["service_result"], result.get("swept")) == ("timeout", None)
    assert len(said) == calls


STATUS = {"run": RUN, "leader": "node1", "attempt": 1, "is_open": True}


@pytest.fixture
def supervised(ending, tmp_path, monkeypatch):
    """Say what a supervisor of node2 knows, whether it answers, and what the plan has."""
    folder = tempfile.TemporaryDirectory(prefix="yard-")  # a socket's path has 107 bytes
    monkeypatch.setattr(
        attempt_end.relay, "socket_path", lambda run, node: f"{folder.name}/{run}.{node}"
    )
    server = socket.socket(socket.AF_UNIX)

    def call(status, answers=True, number=1, **plan):
        put(Path(ending.path).parent / "supervisor" / NODE, {"status.json": json.dumps(status)})
        plan = dict({"accelerator": "cpu"}, **plan)
        for name, more in (("plan.json", plan), ("attempt.json", {"attempt": number})):
            path = Path(ending.path, name)
            path.write_text(json.dumps(dict(json.loads(path.read_text()), **more)))
        digest = hashlib.sha256(Path(ending.path, "plan.json").read_bytes()).hexdigest()
        record = json.loads(Path(ending.path, "attempt.json").read_text())
        put(ending.path, {"attempt.json": json.dumps(dict(record, plan_sha256=digest))})
        if answers:
            server.bind(f"{folder.name}/{RUN}.{NODE}")
            server.listen()

    with folder, server:
        yield call


def test_the_peers_are_left_to_a_supervisor_that_answers(ending, supervised):
    supervised(STATUS)
    assert ending(**FAILED)[1] == []


@pytest.mark.parametrize(
    "status, told",
    [
        (dict(STATUS, leader=None), FAILED),
        (dict(STATUS, is_open=False), FAILED),
        (dict(STATUS, attempt=2), FAILED),
        (STATUS, GOOD),  # stopped from outside, as at a shutdown
        (STATUS, dict(FAILED, SERVICE_RESULT="signal")),
    ],
)
def test_the_peers_are_not_left_to_a_supervisor_that_may_not_act(ending, supervised, status, told):
    supervised(status)
    assert len(ending(**told)[1]) == 2


@pytest.mark.parametrize("given", [{"answers": False}, {"number": 0}, {"accelerator": "gpu"}])
def test_the_peers_are_not_left_to_supervisors_that_act_late(ending, supervised, given):
    supervised(dict(STATUS, attempt=given.get("number", 1)), **given)
    assert len(ending(**FAILED)[1]) == 2


def test_the_peers_get_the_order_to_stop_with_the_key_of_the_attempt(ending):
    _result, said = ending(**FAILED)
    assert sorted(said) == [f"-F {CONFIG} {peer} stop 1 peer" for peer in ("node1", "node3")]


def test_a_peer_whose_start_is_under_way_is_told_as_soon_as_it_lets_anybody_in(ending, monkeypatch):
    monkeypatch.setattr(peers, "RETRY_SECONDS", 0.1)
    program(
        ending.bin,
        "ssh",
        'echo "$3" >>$LOG; [ $(grep -c $3 $LOG) -gt 2 ] || { echo "$3: Permission denied'
        ' (publickey)."; exit 255; }',
    )
    result, said = ending(**FAILED)
    assert (
        result["peers"] == {"node1": "stopped", "node3": "stopped"}
        and sorted(said) == ["node1"] * 3 + ["node3"] * 3
    )
    monkeypatch.setattr(peers, "PEER_SECONDS", 0.3)
    program(ending.bin, "ssh", 'echo "$3: Permission denied (publickey)."; exit 255')
    assert "Permission denied" in ending(**FAILED)[0]["peers"]["node1"]


def test_systemd_gives_the_peers_the_time_that_they_are_called_for(ending, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert ending(**FAILED)[0]["peers"]["node1"] == "stopped"
        name, value = systemd.recv(100).decode().split("=")
        assert name == "EXTEND_TIMEOUT_USEC" and int(value) > peers.PEER_SECONDS * 1e6
    assert ending(**FAILED)[0]["peers"]["node1"] == "stopped", "nobody listens"


def in_containers(ending, log, removes):
    """Have the attempt's node2 run in containers whose engine notes their removal in a log."""
    made = json.loads(Path(ending.path, "plan.json").read_text(encoding="utf-8"))
    engine = os.path.join(
        program(ending.bin, "docker", f'echo "docker" >>{log}; {removes}'), "docker"
    )
    container = {
        "argv": [],
        "env": {"PATH": os.environ["PATH"]},
        "remove": [engine, "rm", "--force"],
        "remove_apart": False,
    }
    made["nodes"][1].update(container=container, home="/home/trainer")
    attempt_files(Path(ending.path).parents[2], made, NODE, mesh=CONFIG)


@pytest.mark.parametrize(
    "files, order",
    [
        ({}, ["time", "ssh", "ssh", "docker"]),
        ({"stop.json": '{"by": "user", "from": "ops"}'}, ["time", "docker"]),
    ],
    ids=["failed", "stopped"],
)
def test_an_engine_that_does_not_answer_keeps_no_peer_from_being_told(
    ending, tmp_path, monkeypatch, files, order
):
    log, asked, given = tmp_path / "order", attempt_end.ask_for_time, []

    def ask(seconds):
        given.append(seconds)
        with open(log, "a", encoding="ascii") as handle:
            handle.write("time\n")
        asked(seconds)

    monkeypatch.setattr(attempt_end, "ask_for_time", ask)
    monkeypatch.setattr(launcher, "REMOVE_SECONDS", 1)
    program(ending.bin, "ssh", f'echo "ssh" >>{log}')
    in_containers(ending, log, "exec sleep 60")
    monkeypatch.setattr(attempt_end, "SPARE_SECONDS", 1)
    program(ending.bin, "systemctl", "exec sleep 60")
    begun = time.monotonic()
    result, _said = ending(files, **FAILED)
    # The agent gives up engine and systemd.
    assert time.monotonic() - begun < 20
    assert log.read_text(encoding="ascii").split() == order
    assert given[0] > peers.PEER_SECONDS + launcher.REMOVE_SECONDS
    assert set(result["peers"].values()) == ({"stopped"} if "ssh" in order else set())


def test_a_peer_that_does_not_obey_is_recorded(ending, monkeypatch):
    monkeypatch.setenv("SSH_EXIT", "255")
    program(ending.bin, "ssh", 'echo "no route to $3" >&2; exit 255')
    assert ending(**FAILED)[0]["peers"] == {
        "node1": "no route to node1",
        "node3": "no route to node3",
    }
    program(ending.bin, "ssh", "exec sleep 30")
    monkeypatch.setattr(peers, "PEER_SECONDS", 0.3)
    assert ending(**FAILED)[0]["peers"] == {
        "node1": "no answer within 0 s",
        "node3": "no answer within 0 s",
    }
    monkeypatch.setenv("PATH", str(Path(ending.bin, "empty")))
    assert "No such file" in ending(**FAILED)[0]["peers"]["node1"]


def test_an_endless_answer_of_one_peer_takes_no_memory_and_keeps_no_other_from_being_told(ending):
    program(
        ending.bin, "ssh", 'echo "$3" >>$LOG; [ $3 = node3 ] || exec head -c 600000000 /dev/zero'
    )
    argv = [sys.executable, "-I", AGENT, "ended", ending.path, NODE]

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))

    subprocess.run(argv, env=dict(os.environ, **FAILED), check=True, timeout=30, preexec_fn=limit)
    peers = json.loads(Path(ending.path, "exit.json").read_text(encoding="utf-8"))["peers"]
    assert peers["node3"] == "stopped" and peers["node1"] != "stopped" and len(peers["node1"]) < 300
    assert sorted(recorded(ending.bin, "ssh")) == ["node1", "node3"]


def test_the_end_is_written_before_the_peers_are_told_and_without_a_plan(ending, monkeypatch):
    program(ending.bin, "ssh", f"cp {ending.path}/exit.json $LOG.exit")
    ending(**FAILED)
    assert (
        json.loads(Path(ending.bin, "ssh.log.exit").read_text(encoding="utf-8"))["exit_status"]
        == "9"
    )
    put(ending.path, {"plan.json": "{}"})
    os.unlink(os.path.join(ending.path, "exit.json"))
    assert ending(**FAILED)[0]["peers"] == {}


@pytest.mark.parametrize("name", ["plan.json", "attempt.json", "stop.json", "ranks.jsonl", "all"])
@pytest.mark.parametrize("how", ["text", "list", "deep", "pipe", "folder"])
def test_what_the_training_writes_into_its_attempt_keeps_no_peer_from_being_told(
    ending, tmp_path, name, how
):
    """The unit's own words name the credential, and the credential knows the nodes. A list or a
    pipe in the place of a file ends nothing and delays nothing.
    """
    config = os.path.join(
        put(tmp_path / "credential", {"machine.json": '{"nodes": ["node1", "node2", "node3"]}'}),
        "config",
    )
    put(ending.path, {"stop.json": "", "ranks.jsonl": ""})
    for each in (
        ("plan.json", "attempt.json", "stop.json", "ranks.jsonl") if name == "all" else (name,)
    ):
        path = os.path.join(ending.path, each)
        os.unlink(path)
        if how == "pipe":
            os.mkfifo(path)
        elif how == "folder":
            os.mkdir(path)
        else:
            event = '{"event": "launched", "oom_kills": "x"}\n'
            Path(path).write_text(
                (
                    event
                    if (each, how) in (("ranks.jsonl", "text"), ("ranks.jsonl", "list"))
                    else {"text": "x", "list": "[1]", "deep": "[" * 100000}[how]
                ),
                encoding="utf-8",
            )
    argv = [sys.executable, "-I", AGENT, "ended", ending.path, NODE, config]
    subprocess.run(
        argv, env=dict(os.environ, **FAILED), check=True, timeout=20, stdin=subprocess.DEVNULL
    )
    said = json.loads(Path(ending.path, "exit.json").read_text(encoding="utf-8"))
    assert said["peers"] == {"node1": "stopped", "node3": "stopped"}
    assert sorted(recorded(ending.bin, "ssh")) == [
        f"-F {config} {peer} stop 1 peer" for peer in ("node1", "node3")
    ]


DEEP = "[" * 100000


def sent_plan(folder):
    """Return the plan that the sender of logs has found in an attempt's directory."""
    sender = log_sender.Sender({"attempt_dir": folder, "node": NODE}, io.BytesIO())
    sender.find({})
    os.close(sender.root)
    return sender.plan


ODD_EVENTS = [
    5,
    ["launcher_end"],
    {"event": "start", "rank": [], "pid": 1},
    {"event": "start", "rank": 0, "pid": "1"},
    {"event": "end", "rank": {}, "pid": None},
    {"event": "start", "rank": True, "pid": 1},
]


def test_a_line_that_is_not_an_event_is_passed_over(tmp_path):
    """A training can write ranks.jsonl. No reader on the node may crash because of it."""
    good = {"event": "start", "rank": 0, "pid": os.getpid()}
    lines = [json.dumps(event) for event in [good, *ODD_EVENTS]]
    (tmp_path / "ranks.jsonl").write_text("\n".join(lines) + "\n")
    assert files.read_events(str(tmp_path)) == [good]
    assert status.read_events(str(tmp_path)) == [good]
    assert stack_dump.ranks_of(str(tmp_path), "r/1") == {}
    (tmp_path / "ranks.jsonl").write_text('["launcher_end"]\n')
    assert heartbeat.launcher_code(str(tmp_path)) is None


@pytest.mark.parametrize("where", [5, "frame", {"a": 1}, None])
def test_a_stack_that_is_not_a_list_is_none(where):
    entry = {"rank": 0, "where": where}
    files = {"evidence/state.json": {"ranks": [entry]}}
    assert [item["where"] for item in guard_findings.read_findings(files.get)["seen"]] == [[]]


@pytest.mark.parametrize(
    "read, none",
    [
        (lambda folder: files.read_stop(folder), {}),
        (lambda folder: files.read_events(folder), []),
        (lambda folder: files.read_mapping(folder, "exit.json"), {}),
        (lambda folder: heartbeat.launcher_code(folder), None),
        (lambda folder: mesh_gate.read_json(os.path.join(folder, "machine.json")), {}),
        (lambda folder: mesh_credential.machine_of(folder), {}),
        (lambda folder: store.read_record(folder, "."), None),
        (lambda folder: stack_dump.ranks_of(folder, "r/1"), {}),
        (lambda folder: mesh_credential.register(folder, folder), None),
        (lambda folder: software.managed(None, folder, None), None),
        (lambda folder: list(software.own(lambda argv: (0, DEEP, ""), "python", None)), ["error"]),
        (lambda folder: container_environment.read_marker(folder, {"digest": "d"}), None),
        (lambda folder: sent_plan(folder), None),
    ],
    ids=[
        "stop",
        "notes",
        "load",
        "launcher",
        "gate",
        "machine",
        "record",
        "ranks",
        "bases",
        "managed",
        "own",
        "container",
        "log_sender",
    ],
)
def test_a_file_that_is_nested_too_deep_is_as_good_as_none(tmp_path, read, none):
    marker = python_env.MARKER
    names = [
        "stop.json",
        "exit.json",
        "machine.json",
        "mesh.json",
        "plan.json",
        marker,
        os.path.join("env", "d", marker),
    ]
    bases = os.path.relpath(mesh_credential.bases_path(str(tmp_path)), str(tmp_path))
    put(
        tmp_path,
        dict(
            {name: DEEP for name in [*names, bases]}, **{"ranks.jsonl": DEEP + '"launcher_end"\n'}
        ),
    )
    assert read(str(tmp_path)) == none


@pytest.mark.parametrize("name", ["plan.json", "attempt.json"])
def test_a_plan_that_is_nested_too_deep_is_none(tmp_path, monkeypatch, name):
    sha256 = hashlib.sha256(DEEP.encode()).hexdigest()
    put(
        tmp_path,
        dict(
            {"plan.json": DEEP, "attempt.json": json.dumps({"plan_sha256": sha256})}, **{name: DEEP}
        ),
    )
    with pytest.raises(ValueError):
        files.read_plan(str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert openmpi.daemon_problem(["orted"])


@pytest.fixture
def full_disk(monkeypatch):
    """No JSON file can be written any more."""

    def full(value, handle, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.json, "dump", full)


def test_on_a_full_disk_the_peers_are_told_all_the_same(ending, full_disk, capfd):
    with pytest.raises(FileNotFoundError, match="exit.json"):  # which the fixture would read
        ending(**FAILED)
    assert [line.split()[2] for line in sorted(recorded(ending.bin, "ssh"))] == ["node1", "node3"]
    said = capfd.readouterr().out
    assert "exit.json cannot be written" in said and os.strerror(errno.ENOSPC) in said
    assert [name for name in os.listdir(ending.path) if name.endswith(".part")] == []


# --- on the peer


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """A peer's attempt directory that is not there yet, and a systemctl that records; call it to
    stop the attempt.
    """
    path, tools = (
        str(tmp_path / "runs" / RUN / "attempt-1"),
        program(
            tmp_path / "bin",
            "systemctl",
            'echo "$XDG_RUNTIME_DIR $@" >>$LOG; [ $2 = stop ] || echo $STATE; exit ${CTL_EXIT:-0}',
        ),
    )
    monkeypatch.setenv("PATH", tools + os.pathsep + os.environ["PATH"])
    unit = f"trainyard-{RUN}-1.service"

    def stop(code=0, state="active"):
        monkeypatch.setenv("CTL_EXIT", str(code))
        monkeypatch.setenv("STATE", state)
        old = os.umask(0o022)
        try:
            return peers.stop_for_peer(path, "node2", unit)
        finally:
            os.umask(old)

    stop.path, stop.calls, stop.unit = path, lambda: recorded(tools, "systemctl"), unit
    return stop


@pytest.mark.parametrize(
    "systemctl, result", [(0, 0), (5, 0), (1, 1)], ids=["stopped", "not loaded", "refused"]
)
def test_a_peer_notes_who_stopped_it_and_stops_its_unit(peer, systemctl, result):
    assert peer(systemctl) == result
    said = json.loads(Path(peer.path, "stop.json").read_text(encoding="utf-8"))
    assert (said["by"], said["from"]) == ("peer", "node2") and os.stat(
        os.path.join(peer.path, "stop.json")
    ).st_mode & 0o077 == 0
    assert peer.calls() == [
        "/run/user/%d --user %s %s" % (os.getuid(), verb, peer.unit)
        for verb in ("is-active", "stop")
    ]


def test_a_peer_with_a_full_disk_stops_its_unit_all_the_same(peer, full_disk):
    assert peer() == 0 and [call.split()[2] for call in peer.calls()] == ["is-active", "stop"]


def test_two_nodes_that_stop_each_other_do_not_wait_for_each_other(peer):
    assert peer(state="deactivating") == 0 and [call.split()[2] for call in peer.calls()] == [
        "is-active"
    ]


def test_a_start_that_comes_after_the_stop_gives_up(peer):
    peer()
    made = compiled(count=2, devices=1)
    with pytest.raises(attempt_dir.AttemptError, match="stopped before the start by node2"):
        attempt_dir.prepare(peer.path, json.dumps(made), "x", "node1", RUN, 1, {})
    assert sorted(os.listdir(peer.path)) == ["stop.json"]


@pytest.mark.parametrize(
    "files",
    [{"exit.json": "{}"}, {"stop.json": '{"by": "user", "from": "ops"}'}],
    ids=["has ended", "was stopped by the user"],
)
def test_an_end_that_is_known_already_stays(peer, files):
    put(peer.path, files)
    assert peer() == 0
    stop = Path(peer.path, "stop.json")
    assert (stop.read_text(encoding="utf-8") if stop.exists() else None) == files.get("stop.json")


def test_the_order_reaches_a_peer_that_has_no_attempt_yet(ending, tmp_path):
    """End to end, with an ssh that starts the gate of the peer on this machine."""
    systemctl = program(tmp_path / "there", "systemctl", 'echo "$@" >>$LOG')
    for name in ("node1", "node3"):
        open_gate(tmp_path, name, ["node1", "node2", "node3"])
    program(ending.bin, "ssh", gate_ssh(tmp_path, systemctl + ":/usr/bin:/bin"))
    assert ending(**FAILED)[0]["peers"] == {"node1": "stopped", "node3": "stopped"}
    for name in ("node1", "node3"):
        said = json.loads(
            (tmp_path / name / ".trainyard/runs" / RUN / "attempt-1" / "stop.json").read_text(
                encoding="utf-8"
            )
        )
        assert said["by"] == "peer" and said["from"] == NODE
    assert sorted(recorded(systemctl, "systemctl")) == [
        f"--user {verb} trainyard-{RUN}-1.service"
        for verb in ("is-active", "is-active", "stop", "stop")
    ]


@pytest.mark.parametrize("words", ["", "none", "run", "run a", "guard a b c"])
def test_an_unknown_verb_says_how_it_is_used(words):
    with pytest.raises(SystemExit, match="agent.pyz run ATTEMPT NODE"):
        main.main(words.split())


@pytest.mark.parametrize(
    "reported, good",
    [
        (["a:35100", "b:41000"], True),
        (["b:35100", "a:41000"], False),
        (["a:35100"], False),
        (["a:35100", "bb:41000"], False),
        ([], False),
    ],
)
def test_ports_that_were_left_to_the_launcher_may_be_any(reported, good):
    assert rank_watch.match_endpoints(["a:*", "b:*"], reported) is good
