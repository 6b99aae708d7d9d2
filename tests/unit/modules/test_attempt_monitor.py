# SPDX-License-Identifier: Apache-2.0
"""The state of an attempt: the core on attempt directories, the module, and the action that is the
second line of defence of the gang.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import attempt_monitor as module
import pytest
from ansible.utils.display import Display
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    evidence,
    ownership,
    status,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import status_reader
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import live_warnings, model
from core_support import ROOT, RUN, attempt_files, compiled, program, put, raises_code

LINE = (
    "[11/20 09:29:26] ppdet.engine.callbacks INFO: Epoch: [1] [2/8] learning_rate: 0.000500 loss:"
    " 5.294779 eta: 0:01:13 batch_cost: 5.8334 data_cost: 0.0026 ips: 0.3429 images/s\n"
)
OVER = {"event": "launcher_end", "exit_code": 0, "signal": None}


def start(rank, **more):
    return dict(
        {"event": "start", "rank": rank, "pid": 100 + rank, "endpoints_as_planned": True}, **more
    )


def end(rank, code=0, name=None):
    return {"event": "end", "rank": rank, "exit_code": code, "signal": name}


def exit_of(result="success", by=None):
    return json.dumps({"service_result": result, "stopped_by": by})


def systemctl(state="active", units=()):
    """Return a `run` that tells a unit's state and the units that hold the node."""
    listing = "\n".join(f"{unit} loaded active running d" for unit in units)
    return lambda argv: (0, listing if "list-units" in argv else state + "\n", "")


@pytest.fixture
def look(tmp_path):
    """Write an attempt of node1 (ranks 0 and 1) with these events and files; return what
    status.read_status says of it.
    """
    made = compiled(count=2, devices=2)

    def call(events=(), files=None, state="active", run_id=RUN, number=1, node="node1", units=()):
        path = attempt_files(tmp_path, made, "node1")
        put(
            path,
            dict(
                files or {},
                **{"ranks.jsonl": "".join(json.dumps(event) + "\n" for event in events)},
            ),
        )
        return status.read_status(systemctl(state, units), str(tmp_path), run_id, number, node)

    return call


@pytest.mark.parametrize(
    "unit, events, files, expected",
    [
        ("active", [], {}, ("running", False)),
        ("activating", [], {}, ("running", False)),
        ("deactivating", [], {}, ("stopping", False)),
        ("inactive", [OVER], {"exit.json": exit_of()}, ("completed", True)),
        ("inactive", [], {"exit.json": exit_of()}, ("failed", True)),  # stopped from outside
        ("inactive", [dict(OVER, exit_code=1)], {"exit.json": exit_of()}, ("failed", True)),
        ("failed", [OVER], {"exit.json": exit_of("exit-code")}, ("failed", True)),
        ("inactive", [OVER], {"exit.json": exit_of(by="peer")}, ("failed", True)),
        ("inactive", [], {"exit.json": exit_of(by="user")}, ("stopped", True)),
        ("inactive", [start(0)], {}, ("lost", True)),  # the node was restarted
        ("", [], {}, ("lost", True)),
    ],
)
def test_states(look, unit, events, files, expected):
    found = look(events, files, unit)
    assert (found["state"], found["ended"]) == expected


@pytest.mark.parametrize(
    "record, events, words",
    [
        ({"boot": "another/1"}, [start(0)], "the node was restarted since it began"),
        (
            {"boot": ownership.boot_mark()},
            [{"event": "launched"}, start(0)],
            "the user's systemd was ended there, or what writes the end was killed",
        ),
        ({"boot": ownership.boot_mark()}, [], "its start was cut off before anything of it ran"),
        (
            {},
            [{"event": "launched"}],
            (
                "the node was restarted, or the user's systemd was ended there, or what writes the"
                " end was killed"
            ),
        ),
    ],
)
def test_a_lost_attempt_says_why_and_holds_nothing(look, tmp_path, record, events, words):
    look()
    path = attempt_dir.attempt_dir(str(tmp_path), RUN, 1) + "/attempt.json"
    kept = json.loads(open(path, encoding="utf-8").read())
    found = look(events, state="inactive")
    assert found["state"] == "lost"
    assert status.describe_loss(dict(kept, **record), events) == words and found[
        "lost"
    ] == status.describe_loss(kept, events)
    assert look(events, state="active")["lost"] is None
    view = model.Watch()
    view.add("node1", dict(found, lost=words), 1.0)
    lost = [text for _kind, _names, text in live_warnings.warnings(view, 1.0) if " lost:" in text]
    assert any(f" on node1 {words}; it holds no node" in text for text in lost)


def test_what_a_person_stopped_before_it_began_is_told(look, tmp_path):
    put(
        tmp_path,
        {
            f"runs/{RUN}/attempt-2/stop.json": '{"by": "user"}',
            f"runs/{RUN}/attempt-3/stop.json": '{"by": "peer"}',
        },
    )
    assert look()["noted"] == [2] and look()["attempts"] == [1, 2, 3]
    assert look()["begun"] == [1]


@pytest.mark.parametrize(
    "events, log, expected",
    [
        ([], "", ("waiting", None, None)),
        ([start(0)], "", ("starting", None, None)),
        ([start(0)], LINE, ("training", None, None)),
        ([start(0), end(0)], LINE, ("done", 0, None)),
        ([start(0), end(0, 7)], LINE, ("failed", 7, None)),
        ([start(0), end(0, None, "SIGKILL")], LINE, ("failed", None, "SIGKILL")),
        # nobody saw how it ended: only its launcher's good end speaks for it
        ([start(0), end(0, None)], LINE, ("ended", None, None)),
        (
            [start(0), end(0, None), {"event": "launcher_end", "exit_code": 0}],
            LINE,
            ("done", None, None),
        ),
    ],
)
def test_a_ranks_state(look, events, log, expected):
    rank = look(events, {"log/workerlog.0": log})["ranks"][0]
    assert (rank["state"], rank["exit_code"], rank["signal"]) == expected
    if log:
        step = rank["step"]
        assert (
            step["epoch"],
            step["step"],
            step["steps"],
            step["loss"],
            step["ips"],
            step["eta"],
        ) == (1, 2, 8, 5.294779, 0.3429, 73)
        assert rank["fraction"] == pytest.approx(11 / (300 * 8)) and rank["log_bytes"] == len(log)


def test_a_rank_whose_suite_prints_nothing_there_is_running(look):
    assert [rank["state"] for rank in look([start(0), start(1)])["ranks"]] == [
        "starting",
        "running",
    ]


def test_what_the_live_view_says_besides(look):
    found = look(
        [start(0), start(1)],
        {"log/workerlog.0": LINE + LINE.replace("[2/8]", "[3/8]").replace("5.294779", "nan")},
    )
    rank, other = found["ranks"]
    assert (
        rank["nan"]["loss"] == "nan"
        and rank["nan"]["step"] == 3
        and abs(rank["log_time"] - time.time()) < 3600
    )
    assert other["nan"] is None and other["log_time"] is None
    assert (
        found["ranks_in_all"],
        found["accelerator"],
        found["only_first_prints"],
        found["main_figure"],
    ) == (4, "gpu", True, "ap")
    assert (
        0 < found["disk"]["free"] <= found["disk"]["total"]
        and status.disk_space("/nowhere") is None
    )


def test_what_paddle_reports_as_endpoints_is_told(look):
    found = look([start(0)])
    assert found["endpoints_as_planned"] and found["endpoints_reported"] == found["endpoints"]
    found = look([start(0, endpoints_as_planned=False, endpoints=["10.0.0.1:6070"])])
    assert not found["endpoints_as_planned"] and found["endpoints_reported"] == ["10.0.0.1:6070"]


def test_a_line_that_is_not_whole_yet_is_left_for_later(look, tmp_path):
    look([start(0)])
    path = attempt_dir.attempt_dir(str(tmp_path), RUN, 1)
    with open(path + "/ranks.jsonl", "a", encoding="ascii") as handle:
        handle.write('{"event": "end", "ra')
    assert [event["event"] for event in status.read_events(path)] == ["start"]


def test_the_console_is_shown_only_where_it_explains_something(look):
    console = {"logs.txt": "1\n2\n3\n\x1b[31mfour\x1b[0m\n5\n6\n"}
    assert look([], console, "active")["console_tail"] == []
    assert look([], dict(console, **{"exit.json": exit_of("exit-code")}), "failed")[
        "console_tail"
    ] == [
        "2",
        "3",
        "\\x1b[31mfour\\x1b[0m",
        "5",
        "6",
    ]


def test_which_run_is_meant(look, tmp_path):
    newer = RUN.replace("20261120", "20261121")
    put(tmp_path, {f"runs/{newer}/attempt-1/stop.json": "{}"})
    assert (
        look(run_id="", number=0)["run"] == RUN
    )  # the newer one is a start that was refused: it left nothing but stop.json
    put(tmp_path, {f"runs/{newer}/attempt-1/attempt.json": "{}"})
    found = look(run_id="", number=0)
    assert (
        not found["found"]
        and found["ended"]
        and found["run"] == newer
        and found["known"] == [RUN, newer]
    )
    held = look(
        run_id="", number=0, units=[attempt_dir.unit_name(RUN, 1)]
    )  # what runs comes before what is newest
    assert (held["found"], held["run"], held["attempt"]) == (True, RUN, 1)
    assert look(number=0)["attempt"] == 1
    assert look(node="renamed")["node"] == "node1"
    with raises_code(attempt_dir.AttemptError, "attempt.bad_run_id"):
        look(run_id="x; rm -rf /")


def test_a_node_that_knows_no_run(tmp_path):
    assert status.read_status(systemctl(), str(tmp_path), "", 0, "node1") == {
        "found": False,
        "ended": True,
        "state": "none",
        "known": [],
    }


def test_a_run_that_no_directory_tells_of_may_have_left_processes(tmp_path):
    argv = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]
    with subprocess.Popen(
        argv, env=dict(os.environ, TRAINYARD_ATTEMPT=RUN + "/3"), stdout=subprocess.PIPE
    ) as process:
        process.stdout.read(2)
        found = status.read_status(systemctl(), str(tmp_path), RUN, 0, "node1")
        process.kill()
    assert (found["found"], found["processes"], found["stopped"]) == (False, [process.pid], False)
    put(tmp_path, {f"runs/{RUN}/attempt-1/stop.json": "{}"})
    found = status.read_status(systemctl(), str(tmp_path), RUN, 0, "node1")
    assert (found["found"], found["processes"], found["stopped"]) == (False, [], True)


# --- the module


def test_module(run_module, tmp_path, monkeypatch):
    tools = program(tmp_path / "bin", "systemctl", 'echo "$XDG_RUNTIME_DIR $@" >>$LOG; echo active')
    monkeypatch.setenv("PATH", tools + os.pathsep + os.environ["PATH"])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    attempt_files(tmp_path / "home" / ".trainyard", compiled(count=2, devices=1), "node1")
    result = run_module(module, {"run_id": RUN, "node": "node1"}, check=True)
    assert (
        result["changed"] is False
        and result["status"]["state"] == "running"
        and result["status"]["unit"] == f"trainyard-{RUN}-1.service"
    )
    result = run_module(module, {"run_id": "../x", "node": "node1"})
    assert result["failed"] and result["code"] == "attempt.bad_run_id"


# --- the second line of the gang


@pytest.fixture
def action(load_plugin, tmp_path, monkeypatch):
    """The action plugin with modules that answer from a list; call it for one host with what
    attempt_monitor says there.
    """
    plugin = load_plugin("action", "attempt_monitor")
    monkeypatch.setattr(plugin.C, "DEFAULT_LOCAL_TMP", str(tmp_path))

    def call(host, state, ended, gang=True, check=False, **lie):
        told = dict(
            {"found": True, "run": RUN, "attempt": 1, "node": host, "state": state, "ended": ended},
            **lie,
        )
        args = {"gang": gang, "base": "/b", "run_id": RUN, "number": 1, "node": host}
        task = SimpleNamespace(args=args, async_val=0, check_mode=check, action="attempt_monitor")
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"))
        one = plugin.ActionModule(task, connection, None, None, None)
        calls = []

        def execute(module_name, module_args=None, task_vars=None):
            calls.append((module_name, module_args))
            return (
                {"status": dict(told)}
                if module_name.endswith("attempt_monitor")
                else {"changed": True}
            )

        monkeypatch.setattr(one, "_execute_module", execute)
        result = one.run(task_vars={"inventory_hostname": host})
        return result, [arguments for name, arguments in calls if name.endswith(".attempt")]

    def later():
        for name in os.listdir(str(tmp_path)):
            os.utime(str(tmp_path / name), (time.time() - 60, time.time() - 60))

    call.later = later
    return call


def test_the_status_says_when_the_node_was_asked(action):
    """What a node puts there itself does not count."""
    begun = time.time()
    for gang in (True, False):
        sent, received = action("node1", "running", False, gang=gang, asked=[1, 2])[0]["status"][
            "asked"
        ]
        assert begun <= sent <= received <= time.time()


def test_the_controller_stops_what_the_mesh_did_not(action):
    assert action("node1", "failed", True)[1] == []
    assert action("node2", "running", False)[1] == []  # the mesh has its seconds first
    action.later()
    result, stops = action("node2", "running", False)
    assert stops == [
        {
            "state": "stopped",
            "run_id": RUN,
            "number": 1,
            "node": "node2",
            "base": "/b",
            "reason": "peer",
            "by": "the controller, because node1 failed",
        }
    ]
    assert result["stopped_by_controller"] is True
    assert action("node2", "failed", True)[1] == []


@pytest.mark.parametrize(
    "state, ended", [("completed", True), ("stopped", True), ("running", False)]
)
def test_a_node_that_did_not_fail_stops_nobody(action, state, ended):
    action("node1", state, ended)
    action.later()
    assert action("node2", "running", False)[1] == []


@pytest.mark.parametrize("how", [{"gang": False}, {"check": True}])
def test_who_only_looks_stops_nobody(action, how):
    action("node1", "lost", True)
    action.later()
    assert action("node2", "running", False, **how)[1] == []


LYING = [
    {"run": "20991231-000000-fake-0000"}, {"run": "../../x"}, {"run": "/tmp/x"}, {"run": 7},
    {"run": None}, {"attempt": 2}, {"attempt": "../1"},
    {"attempt": True}, {"found": "yes"}, {"found": None},
]  # fmt: skip


@pytest.mark.parametrize("lie", LYING, ids=lambda lie: "-".join(lie))
def test_an_answer_about_another_attempt_fails_the_node_and_does_nothing(action, tmp_path, lie):
    action("node2", "failed", True)
    action.later()
    before = sorted(os.listdir(str(tmp_path)))
    result, stops = action("node1", "running", False, **lie)
    assert result["failed"] and result["code"] == "answer.invalid" and stops == []
    assert sorted(os.listdir(str(tmp_path))) == before


def test_paths_and_stops_bear_the_inventorys_name(action, tmp_path):
    result = action("node1", "failed", True, node="../../evil")[0]
    assert (
        result["status"]["node"] == "node1"
        and (tmp_path / f"failed-{RUN}-1").read_text() == "node1"
    )
    action.later()
    assert action("node2", "running", False, node="; rm -rf /")[1][0]["node"] == "node2"


# --- a connection that stays open


@pytest.fixture
def follow(load_plugin, tmp_path, monkeypatch):
    """The action plugin that follows an attempt of this machine, whose unit is active. Call it for
    one look. `modules` counts the looks by a module.
    """
    plugin = load_plugin("action", "attempt_monitor")
    monkeypatch.setattr(plugin.C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    asked = tmp_path / "asked"
    program(
        tmp_path / "bin",
        "systemctl",
        f'echo >> {asked}; [ "$XDG_RUNTIME_DIR" = /run/user/$(id -u) ] && echo ActiveState=active;'
        f" echo MainPID={os.getpid()}",
    )
    monkeypatch.setattr(plugin.log_receiver, "is_connected", lambda _connection: call.connected)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    attempt = attempt_files(tmp_path / "base", compiled(count=2, devices=2), "node1")
    put(attempt, {"log/workerlog.0": LINE, "ranks.jsonl": json.dumps(start(0)) + "\n"})
    connection = SimpleNamespace(
        transport="ssh", become=None, _shell=SimpleNamespace(tmpdir="/tmp")
    )

    def call(check=False, **more):
        args = {"gang": True, "run_id": RUN, "number": 1, "node": "node1"}
        args.update({"base": str(tmp_path / "base"), "wait": 0.1}, **more)
        task = SimpleNamespace(args=args, async_val=0, check_mode=check, action="attempt_monitor")
        one = plugin.ActionModule(task, connection, None, None, None)

        def execute(**_arguments):
            call.modules += 1
            one._used_interpreter = "#!/opt/python3.9 -x"
            told = status_reader.look(
                systemctl(), args["base"], args["run_id"], args["number"], args["node"]
            )
            return {"status": told}

        monkeypatch.setattr(one, "_execute_module", execute)
        return one.run(task_vars={"inventory_hostname": "node1", **call.vars})

    def begin_reader(script):
        """Let a script be the program on the node, after the archive and the first line."""
        argv = [sys.executable, "-c", READ_ALL + script]
        monkeypatch.setattr(plugin.log_receiver, "ssh_argv", lambda *_which: argv)

    monkeypatch.setattr(
        plugin.log_receiver,
        "ssh_argv",
        lambda _connection, _python, verb: plugin.log_receiver.sender_argv(sys.executable, verb),
    )
    call.modules, call.attempt, call.plugin = 0, attempt, plugin
    call.connected, call.vars, call.begin_reader = False, {}, begin_reader
    call.asked = lambda: len(asked.read_text().splitlines())
    yield call
    for held in plugin._HELD.values():
        held.close()


# Reads what comes before the first question, as agent/stdin_boot.py does.
READ_ALL = """
import json, sys, time
for _part in range(2):
    sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
sys.stdin.buffer.readline()
"""


def test_later_looks_need_no_module_and_say_the_same(follow):
    first, second = follow()["status"], follow()["status"]
    assert follow.modules == 1 and first["state"] == second["state"] == "running"
    for told in (first, second):
        for key in ("asked", "now", "disk", "started"):
            told.pop(key)
    assert first == second and first["ranks"][0]["step"]["step"] == 2
    put(follow.attempt, {"log/workerlog.0": LINE.replace("[2/8]", "[3/8]")})
    assert follow()["status"]["ranks"][0]["step"]["step"] == 3 and follow.modules == 1


def test_the_end_is_known_before_the_wait_is_over(follow, tmp_path):
    launcher = subprocess.Popen(["sleep", "600"])
    answer = f"echo ActiveState=active; echo MainPID={launcher.pid}"
    program(tmp_path / "bin", "systemctl", answer)
    assert [follow()["status"]["ended"] for _look in range(2)] == [False, False]
    put(follow.attempt, {"exit.json": exit_of()})
    program(tmp_path / "bin", "systemctl", "echo ActiveState=inactive")
    launcher.kill()
    launcher.wait()
    began = time.monotonic()
    status = follow(wait=60)["status"]
    assert status["ended"] and time.monotonic() - began < 30 and follow.modules == 1


def test_a_main_process_that_ended_while_systemd_answered_is_asked_about_again(follow, tmp_path):
    launcher = subprocess.Popen(["true"])
    launcher.wait()
    answer = f"echo ActiveState=active; echo MainPID={launcher.pid}"
    program(tmp_path / "bin", "systemctl", answer)
    assert [follow()["status"]["ended"] for _look in range(2)] == [False, False]
    put(follow.attempt, {"exit.json": exit_of()})
    program(tmp_path / "bin", "systemctl", "echo ActiveState=inactive")
    assert follow()["status"]["ended"] and follow.modules == 1


def test_the_module_looks_where_the_connection_breaks(follow, monkeypatch):
    follow()
    for breaks in range(follow.plugin.MOST_BREAKS):
        (held,) = follow.plugin._HELD.values()
        os.kill(held._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(follow.plugin, "LOOK_SECONDS", 0.5)
        assert follow()["status"]["found"] and follow.modules == 2 + breaks
        assert held._process.returncode == -signal.SIGKILL  # nothing of it is left
    follow()
    assert not follow.plugin._HELD  # and so do all later ones
    assert follow.modules == 3 + breaks


@pytest.mark.parametrize(
    "script",
    [
        "time.sleep(600)",
        "print('no JSON', flush=True); time.sleep(600)",
        "print('[' * 100000, flush=True); time.sleep(600)",
        "print('[]', flush=True); time.sleep(600)",
        "while True: print('x' * 10**6, end='')",
        "print(json.dumps({'problem': 'no systemd'}), flush=True); time.sleep(600)",
    ],
)
def test_the_module_looks_where_the_node_answers_otherwise(follow, monkeypatch, script):
    monkeypatch.setattr(follow.plugin, "LOOK_SECONDS", 2)
    follow.begin_reader(script)
    follow()
    assert follow()["status"]["found"] and follow.modules == 2


@pytest.mark.parametrize(
    "argv", [[sys.executable, "-c", "import time; time.sleep(600)"], ["/nowhere/ssh"]]
)
def test_a_node_that_takes_no_program_is_looked_at_by_modules(follow, monkeypatch, argv):
    monkeypatch.setattr(follow.plugin.held_program, "START_SECONDS", 0.5)
    monkeypatch.setattr(follow.plugin.log_receiver, "ssh_argv", lambda *_which: argv)
    for looks in range(1, 6):
        assert follow()["status"]["found"] and follow.modules == looks
    assert list(follow.plugin._BREAKS.values()) == [follow.plugin.MOST_BREAKS]


@pytest.mark.parametrize("lie", [*LYING, {"ranks": "x"}, {"more": 1}])
def test_an_answer_over_the_connection_passes_the_same_gate(follow, lie):
    told = dict(follow()["status"], **lie)
    told.pop("asked")
    follow.plugin._HELD.popitem()[1].close()
    line = json.dumps({"status": told})
    follow.begin_reader(f"print({line!r}, flush=True); time.sleep(600)")
    follow()
    looks = follow.modules
    result = follow()
    assert result["failed"] and result["code"] == "answer.invalid" and follow.modules == looks


def test_breaks_with_answers_between_them_are_no_reason_to_give_up(follow):
    for _break in range(2 * follow.plugin.MOST_BREAKS):
        follow()
        (held,) = follow.plugin._HELD.values()
        held._process.kill()
        follow()
        looks = follow.modules
        assert follow()["status"]["found"] and follow.modules == looks


@pytest.mark.parametrize("body", ["exit 1", "exit 127", "sleep 600", "kill $$"])
def test_a_systemd_that_does_not_answer_ends_no_attempt(follow, monkeypatch, tmp_path, body):
    """A node without free processes cannot start systemctl. The attempt goes on."""
    monkeypatch.setattr(follow.plugin, "LOOK_SECONDS", 1)
    follow()
    program(tmp_path / "bin", "systemctl", body)
    assert not follow()["status"]["ended"] and follow.modules == 2


def test_every_program_on_the_node_is_begun_by_the_python_that_the_module_had(follow, monkeypatch):
    begun, argv = [], follow.plugin.log_receiver.ssh_argv
    monkeypatch.setattr(
        follow.plugin.log_receiver,
        "ssh_argv",
        lambda connection, python, verb: begun.append((python, verb)) or argv(None, "", verb),
    )

    def refuse(*_which):
        raise follow.plugin.log_receiver.Busy

    with monkeypatch.context() as patch:
        patch.setattr(follow.plugin.log_stream, "Stream", refuse)
        follow(logs_dir=str(Path(follow.attempt).parents[3] / "here"))
    follow(logs_dir=str(Path(follow.attempt).parents[3] / "here"))
    for stream in follow.plugin._STREAMS.values():
        stream.finish(10)
    assert follow.modules == 1 and {python for python, _verb in begun} == {"/opt/python3.9"}
    assert {verb for _python, verb in begun} == {"status", "send-logs"}


def test_a_reader_that_nobody_asks_ends(tmp_path):
    source = "status_reader.IDLE_SECONDS = 1; status_reader.main([])"
    importing = f"from {status_reader.__package__} import status_reader"
    reader = subprocess.Popen(
        [sys.executable, "-c", f"{importing}; {source}"],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "collections")),
    )
    reader.stdin.write(b'{"base": "b"}\n')
    reader.stdin.flush()
    assert reader.wait(30) == -signal.SIGALRM


@pytest.mark.parametrize("more", [{"gang": False}, {"check": True}, {"run_id": "", "gang": False}])
def test_a_single_look_opens_no_connection(follow, more):
    follow(**more)
    assert follow.modules == 1 and not follow.plugin._HELD


@pytest.mark.parametrize("more", [{}, {"gang": False}, {"run_id": "", "number": 0, "gang": False}])
@pytest.mark.parametrize(
    ("known", "python"),
    [
        ({"ansible_python_interpreter": "/opt/python3.9"}, "/opt/python3.9"),
        ({"ansible_facts": {"discovered_interpreter_python": "/opt/p"}}, "/opt/p"),
        ({"ansible_python_interpreter": "auto_silent"}, "python3"),
        ({}, "python3"),
    ],
)
def test_no_look_needs_a_module_where_ansible_holds_a_connection(
    follow, monkeypatch, more, known, python
):
    begun, argv = [], follow.plugin.log_receiver.ssh_argv
    monkeypatch.setattr(
        follow.plugin.log_receiver,
        "ssh_argv",
        lambda connection, python, verb: begun.append(python) or argv(None, "", verb),
    )
    program(Path(follow.attempt).parents[3] / "bin", "systemctl", LISTED)
    follow.connected, follow.vars = True, known
    for _look in range(2):
        assert follow(**more)["status"]["attempt"] == 1
    assert follow.modules == 0 and begun == [python]


# systemctl as it answers to list-units and to show.
LISTED = f"""case "$*" in
*list-units*) echo "trainyard-{RUN}-1.service loaded active running d" ;;
*) echo ActiveState=active ;;
esac"""


def test_systemd_is_asked_again_only_while_the_attempt_is_stopped(follow):
    follow()
    for _look in range(3):
        assert follow()["status"]["state"] == "running"
    assert follow.asked() == 1
    put(follow.attempt, {"stop.json": "{}"})
    for _look in range(2):
        follow()
    assert follow.asked() == 3 and follow.modules == 1


# --- what the ranks logged, over the same connection


@pytest.fixture
def completes(follow, tmp_path):
    """Follow an attempt to its end over the held connection. Return the last look's result."""

    def call(result="success", **more):
        given = {"logs_dir": str(tmp_path / "here"), **more}
        for _look in range(2):
            assert "logs" not in follow(**given)
        # With stop.json systemd is asked again.
        told = {"exit.json": exit_of(result), "ranks.jsonl": "".join(ENDED), "stop.json": "{}"}
        put(follow.attempt, told)
        program(tmp_path / "bin", "systemctl", "echo ActiveState=inactive")
        return follow(**given)

    return call


ENDED = [json.dumps(event) + "\n" for event in (start(0), end(0), start(1), end(1), OVER)]


def test_the_logs_of_an_attempt_that_completed_come_with_its_end(completes, follow):
    result = completes()
    assert result["status"]["state"] == "completed" and follow.modules == 1
    answer, found = result["logs"]["answer"], evidence.collect(follow.attempt, "node1")
    assert abs(result["logs"]["received"] - answer["now"]) < 60
    for told in (answer, found):
        for key in ("now", "free"):
            told.pop(key)
    assert answer == json.loads(json.dumps(found)) and answer["ranks"][0]["sha256"]


def test_a_module_reads_the_logs_of_an_attempt_that_failed(completes):
    assert "logs" not in completes("exit-code")


def test_a_module_reads_logs_that_take_long(completes, follow):
    with open(os.path.join(follow.attempt, "log/workerlog.0"), "ab") as handle:
        handle.truncate(status_reader.MOST_LOG_BYTES + 1)
    assert "logs" not in completes()


def test_a_reader_that_does_not_answer_is_ended(follow, tmp_path, monkeypatch):
    told = follow()["status"]
    told.pop("asked"), told.pop("stream")
    follow.plugin._HELD.popitem()[1].close()
    end = json.dumps({"status": dict(told, state="completed", ended=True)})
    follow.begin_reader(f"""
for line in sys.stdin:
    if 'logs' in line: time.sleep(600)
    print({end!r}, flush=True)
""")
    monkeypatch.setattr(follow.plugin, "LOOK_SECONDS", 2)
    follow()
    (held,) = follow.plugin._HELD.values()
    assert "logs" not in follow() and not follow.plugin._HELD
    assert held._process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "lie",
    [{}, {"node": "node2"}, {"ranks": "x"}, {"more": 1}, {"failed": True}, {"skipped": True}],
)
def test_logs_over_the_connection_pass_the_gate_of_the_module(follow, tmp_path, lie):
    given = {"logs_dir": str(tmp_path / "here")}
    told = follow(**given)["status"]
    for key in ("asked", "stream"):
        told.pop(key)
    answers = (
        {"logs": dict(evidence.collect(follow.attempt, "node1"), **lie)},
        {"status": dict(told, state="completed", ended=True)},
    )
    logs, end = map(json.dumps, answers)
    follow.plugin._HELD.popitem()[1].close()
    follow.begin_reader(
        f"for line in sys.stdin: print({logs!r} if 'logs' in line else {end!r}, flush=True)"
    )
    follow(**given)
    assert ("logs" in follow(**given)) is (not lie)


# --- logs that are fetched to the controller while a run is followed


@pytest.fixture
def streaming_action(load_plugin, tmp_path, monkeypatch, make_attempt):
    """The action plugin on a node whose sender runs here without ssh; call it with what the unit's
    state is.
    """
    plugin = load_plugin("action", "attempt_monitor")
    monkeypatch.setattr(plugin.C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(
        plugin.log_receiver,
        "ssh_argv",
        lambda _connection, _python, verb: plugin.log_receiver.sender_argv(sys.executable, verb),
    )
    monkeypatch.setattr(
        plugin, "REST_SECONDS", 60
    )  # a slow machine may take longer than a follow waits
    monkeypatch.setattr(plugin, "MOST_BREAKS", 0)  # the module looks
    place = tmp_path / "base" / "runs" / RUN
    place.mkdir(parents=True)
    make_attempt("node1", logs={0: "zero\n"}).rename(place / "attempt-1")

    def call(ended=False, check=False, transport="ssh", become=None, **arguments):
        told = {
            "found": True,
            "run": RUN,
            "attempt": 1,
            "node": "node1",
            "state": "completed" if ended else "running",
            "ended": ended,
        }
        args = {
            "gang": True,
            "base": str(tmp_path / "base"),
            "logs_dir": str(tmp_path / "runs"),
            "run_id": RUN,
            "number": 1,
            "node": "node1",
        }
        args.update(arguments)
        task = SimpleNamespace(args=args, async_val=0, check_mode=check, action="attempt_monitor")
        one = plugin.ActionModule(
            task,
            SimpleNamespace(
                transport=transport, become=become, _shell=SimpleNamespace(tmpdir="/tmp")
            ),
            None,
            None,
            None,
        )
        monkeypatch.setattr(one, "_execute_module", lambda **_arguments: {"status": told})
        return one.run(task_vars={"inventory_hostname": "node1"})["status"]

    call.node, call.home, call.plugin = (
        place / "attempt-1",
        tmp_path / "runs" / RUN / "attempt-1",
        plugin,
    )
    yield call
    for stream in plugin._STREAMS.values():
        stream.finish(10)


def test_logs_come_home_between_the_looks_and_to_their_end_with_the_last(streaming_action):
    log, home = (
        streaming_action.node / "log" / "workerlog.0",
        streaming_action.home / "rank-000.node1.log",
    )
    assert streaming_action()["stream"]["problem"] is None
    deadline = time.monotonic() + 60
    while not home.exists() or home.read_bytes() != b"zero\n":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with open(log, "ab") as handle:
        handle.write(os.urandom(3 << 20))
    assert streaming_action(ended=True)["stream"] == {
        "bytes": 5 + (3 << 20),
        "restarts": 0,
        "problem": None,
        "events": [],
    }
    assert home.read_bytes() == log.read_bytes()


@pytest.mark.parametrize(
    "how",
    [
        {"check": True},
        {"transport": "docker"},
        {"logs_dir": ""},
        {"ended": True},
        {"become": "sudo"},
        {"gang": False},
    ],
)
def test_nothing_is_streamed_where_that_is_not_asked_or_not_possible(streaming_action, how):
    assert streaming_action(**how).get("stream") is None
    assert not streaming_action.home.exists() and not streaming_action.plugin._STREAMS


def test_a_stream_that_fails_is_told_once_and_the_follow_goes_on(
    streaming_action, tmp_path, monkeypatch
):
    """At once: Ansible passes over the warnings of an `until` loop's earlier results."""
    told = []
    monkeypatch.setattr(Display, "display", lambda _self, text, **_more: told.append(text))
    (tmp_path / "runs").write_text("no directory")
    assert "runs" in streaming_action()["stream"]["problem"]
    streaming_action()
    assert streaming_action(ended=True)["state"] == "completed"
    assert len(told) == 1
    assert told[0].startswith("[WARNING]: the logs of node1 are not copied for now")


def test_no_log_comes_home_through_a_link(streaming_action, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / RUN).symlink_to(tmp_path / "elsewhere")
    assert "is a link" in streaming_action()["stream"]["problem"] and not list(
        (tmp_path / "elsewhere").iterdir()
    )


def test_a_second_follower_leaves_the_logs_to_the_first_and_takes_over_from_it(streaming_action):
    first = streaming_action.plugin.log_receiver.Receiver(str(streaming_action.home), node="node1")
    assert streaming_action()["stream"] is None
    first.close()
    assert streaming_action()["stream"]["problem"] is None


# --- the replica of the checkpoints


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", None),
        ("[1]", None),
        ('{"problem": null}', [None] * 5),
        (
            '{"name": "3", "epoch": 4, "step": null, "copied": 9.5, "problem": "full", "x": 1}',
            ["3", 4, None, 9.5, "full"],
        ),
        ('{"name": [], "epoch": true, "step": "x", "copied": "y", "problem": 5}', [None] * 5),
    ],
)
def test_the_replica_of_a_node(look, text, expected):
    found = look(files={"replica.json": text} if text else {})["replica"]
    assert (found and list(found.values())) == expected


# --- waiting for the end


def test_a_node_answers_as_soon_as_the_attempt_has_ended(look, tmp_path, monkeypatch):
    look([OVER], {"exit.json": exit_of()})
    place = attempt_dir.attempt_dir(str(tmp_path), RUN, 1)
    recorded, states, slept = os.path.join(place, "exit.json"), ["active", "inactive"], []
    with open(recorded, encoding="utf-8") as handle:
        ending = handle.read()
    os.unlink(recorded)

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            put(place, {"exit.json": ending})

    monkeypatch.setattr(status.time, "sleep", sleep)
    asked = []

    def run(argv):
        asked.append(argv)
        return systemctl(states[min(len(asked), 2) - 1])(argv)

    found = status.await_end(run, str(tmp_path), RUN, 1, "node1", 60.0)
    assert found["ended"] and found["state"] == "completed"
    assert len(slept) == 4 and len(asked) == 2, "only a recorded end is asked for"


def test_a_node_answers_after_the_seconds_that_it_may_wait(look, tmp_path):
    look()
    begin = time.monotonic()
    found = status.await_end(systemctl(), str(tmp_path), RUN, 1, "node1", 0.3)
    assert not found["ended"] and 0.3 <= time.monotonic() - begin < 2
