# SPDX-License-Identifier: Apache-2.0
"""The terminal output: plain lines in a pipe, redrawn lines on a terminal, the verdict last, and
the way back to the run after Ctrl-C.
"""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest
from ansible import context
from ansible.executor.stats import AggregateStats
from ansible.plugins.loader import callback_loader
from core_support import ROOT, RUN
from unit.live.test_screen import STEP, rank, status


class Terminal:
    """The callback plugin, fed with results as Ansible's strategy feeds it."""

    def __init__(self, plugin, capsys):
        self.plugin, self.capsys = plugin, capsys

    def result(self, action, data, host=None):
        host = host or (
            "localhost"
            if action in ("run_record", "run_report", "findings_report", "plan")
            else "node1"
        )
        task = SimpleNamespace(
            action=action,
            get_name=lambda: "Follow",
            get_path=str,
            no_log=False,
            loop=None,
            check_mode=False,
            diff=False,
            _uuid="u",
            delegate_to=None,
            run_once=False,
            ignore_unreachable=False,
        )
        return SimpleNamespace(
            result=data,
            task=task,
            host=SimpleNamespace(get_name=lambda: host, name=host),
            task_name="Follow",
            _result=data,
            _task=task,
            _host=SimpleNamespace(get_name=lambda: host, name=host),
            is_changed=lambda: False,
            exception=None,
            warnings=(),
            deprecations=(),
            task_fields={},
        )

    def retry(self, said, host="node1"):
        self.plugin.v2_runner_retry(
            self.result("attempt_monitor", {"status": said, "attempts": 1, "retries": 9}, host)
        )
        return self.capsys.readouterr().out

    def ok(self, action, data, host=None):
        self.plugin.v2_runner_on_ok(self.result(action, data, host))
        return self.capsys.readouterr().out

    def stats(self):
        self.plugin.v2_playbook_on_stats(AggregateStats())
        return self.capsys.readouterr().out

    def exit(self):
        self.plugin._detached()
        return self.capsys.readouterr().out


@pytest.fixture
def terminal(capsys, monkeypatch):
    """A pipe."""
    monkeypatch.setattr("atexit.register", lambda *_args: None)
    monkeypatch.setattr(context, "CLIARGS", {"check": False})
    plugin = callback_loader.get("trainyard.cluster.live")
    plugin.set_options()
    monkeypatch.setattr("time.time", lambda: 225.0)  # what the nodes' clocks say
    monkeypatch.setattr(plugin._display, "verbosity", 0)
    capsys.readouterr()
    return Terminal(plugin, capsys)


@pytest.fixture
def screen(terminal, monkeypatch):
    """A terminal of 60 columns; test_terminal.py has a real one."""
    stdout = SimpleNamespace(
        isatty=lambda: True,
        write=lambda text: sys.stdout.write(text),
        flush=lambda: sys.stdout.flush(),
        encoding="utf-8",
    )
    monkeypatch.setattr(
        sys.modules[type(terminal.plugin).__module__], "sys", SimpleNamespace(stdout=stdout)
    )
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    yield terminal
    terminal.plugin._picture.leave()


def at(step, node="node1", number=0, **changes):
    """Return a node's status at a training step."""
    return status(node, rank(number, step=dict(STEP, step=step), fraction=0.5), run=RUN, **changes)


# --- in a pipe


def test_plain_lines_for_what_changes_and_not_more_often_than_useful(terminal, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def at_second(second, *said):
        clock[0] = 1000.0 + second
        return terminal.retry(*said)

    assert at_second(0, at(0)).splitlines() == [
        f"run {RUN}, job ppyoloe, 2 nodes",
        (
            "node1      running   rank 0 training  epoch 1/3  step 1/8  loss 5.295  0.34 images/s "
            " ETA 1:13"
        ),
    ]
    assert at_second(3, at(0)) == ""  # nothing new
    assert at_second(3, at(0, "node2", 1), "node2").startswith("node2 ")
    assert at_second(6, at(1)) == ""  # a step: not worth a line every few seconds
    assert "step 4/8" in at_second(12, at(3)) and at_second(15, at(3)) == ""
    assert at_second(18, at(3, state="failed")).startswith(
        "node1      failed"
    )  # a state is worth one at once
    assert at_second(40, at(3, state="failed")) == at_second(47, at(0, "node2", 1), "node2") == ""
    assert at_second(49, at(3, state="failed")).startswith(
        f"run {RUN}  50 %  epoch 1/3  step 4/8"
    )  # a sign of life


def test_other_retries_are_shown_as_ansible_does(terminal):
    terminal.plugin.v2_runner_retry(
        terminal.result("ansible.builtin.uri", {"attempts": 1, "retries": 3, "status": "x"})
    )
    assert "FAILED - RETRYING" in terminal.capsys.readouterr().out


def test_what_a_preflight_refuses_is_shown_once(terminal):
    said = terminal.result(
        "trainyard.cluster.plan",
        {
            "msg": "nothing was started: disk",
            "stops": [{"check": "disk", "nodes": ["node2"]}],
            "refused": True,
        },
        "localhost",
    )
    terminal.plugin.v2_runner_on_failed(said)
    assert terminal.capsys.readouterr().out == ""
    shown = terminal.stats()
    assert shown.splitlines()[-1] == said._result["msg"] and shown.count(said._result["msg"]) == 1
    assert terminal.exit() == ""


def test_a_failure_of_a_command_that_was_interrupted_is_shown_too(terminal):
    terminal.plugin.v2_runner_on_failed(
        terminal.result("trainyard.cluster.plan", {"msg": "nothing was started"}, "localhost")
    )
    terminal.capsys.readouterr()
    assert terminal.exit() == "nothing was started\n"


@pytest.mark.parametrize("failed", [False, True])
def test_no_secret_of_the_plan_is_shown_however_verbose(terminal, monkeypatch, failed):
    monkeypatch.setattr(terminal.plugin._display, "verbosity", 4)
    held = {"DB_PASSWORD": "hunter2-Zq9"}
    data = {
        "invocation": {"module_args": {"plan": held}},
        "msg": "refused",
        **({} if failed else {"plan": {"env": held}, "text": str(held)}),
    }
    for action in sys.modules[type(terminal.plugin).__module__].HOLD_SECRETS:
        said = terminal.result(action, dict(data))
        (terminal.plugin.v2_runner_on_failed if failed else terminal.plugin.v2_runner_on_ok)(said)
    shown = terminal.capsys.readouterr()
    assert "hunter2" not in shown.out + shown.err and "node1" in shown.out + shown.err


def test_what_the_plan_calls_secret_is_hidden_in_what_any_other_task_says(terminal, monkeypatch):
    monkeypatch.setattr(terminal.plugin._display, "verbosity", 4)
    made = {"env": {"MY_LOGIN": "hunter2-Zq9"}, "secret_env": ["MY_LOGIN"]}
    terminal.plugin.v2_runner_on_ok(terminal.result("plan", {"plan": made}))
    said = terminal.result(
        "ansible.builtin.command", {"stdout": "as hunter2-Zq9 \u202e\x1b[2J", "changed": False}
    )
    terminal.plugin.v2_runner_on_ok(said)
    shown = terminal.capsys.readouterr().out
    assert (
        "as ********" in shown
        and "hunter2" not in shown
        and "\u202e" not in shown
        and "\x1b[2J" not in shown
    )


@pytest.mark.parametrize("failed", [False, True])
def test_the_table_of_a_check_is_the_last_thing_shown(terminal, failed):
    said = terminal.result(
        "findings_report",
        {
            "lines": ["STOP  node1  port  17000 is taken\x1b[2J", "NOT READY: 1"],
            "msg": "NOT READY: 1",
        },
    )
    (terminal.plugin.v2_runner_on_failed if failed else terminal.plugin.v2_runner_on_ok)(said)
    terminal.capsys.readouterr()
    shown = terminal.stats()
    assert (
        shown.splitlines()[-2].split()[:4] == ["STOP", "node1", "port", "17000"]
        and shown.splitlines()[-1] == "NOT READY: 1"
        and "\x1b" not in shown
    )


def test_the_last_look_is_shown_too(terminal):
    said = dict(at(7, state="completed", ended=True))
    del said["node"]
    assert (
        terminal.ok("attempt_monitor", {"status": said})
        .splitlines()[1]
        .startswith("node1      completed")
    )
    assert (
        terminal.ok(
            "attempt_monitor", {"status": {"found": False, "ended": True, "state": "none"}}, "node9"
        )
        == "node9      no such run here\n"
    )


# --- on a terminal


def test_a_picture_goes_over_the_last_one(screen):
    first = screen.retry(at(0))
    assert first.startswith(
        f"run {RUN}, job ppyoloe, 2 nodes\n\rppyoloe  2 nodes x 1 rank"
    ) and not re.search(r"\x1b\[\d*A", first)
    second = screen.retry(at(0, "node2", 1), "node2")
    assert (
        second.startswith("\r\x1b[5Appyoloe")
        and second.count("\n") == 5
        and second.endswith("\x1b[J")
    )


def test_a_new_task_is_never_drawn_over(screen):
    screen.retry(at(0))
    screen.plugin._play = SimpleNamespace(strategy="linear")
    screen.plugin._task_start(
        SimpleNamespace(
            get_name=lambda: "Next",
            _uuid="v",
            check_mode=False,
            diff=False,
            no_log=False,
            args={},
            run_once=False,
        )
    )
    screen.capsys.readouterr()
    assert screen.retry(at(1)).startswith("\rppyoloe")


def test_a_warning_is_not_drawn_over_and_the_picture_comes_again(screen):
    screen.retry(at(0))
    screen.plugin._display.display("another program")
    said = screen.capsys.readouterr().out
    assert said.startswith("\r\x1b[5A") and said.endswith(
        "\x1b[Janother program\n"
    )  # the picture made room
    assert screen.retry(at(1)).startswith("\rppyoloe")
    screen.plugin._display.display("again")
    screen.capsys.readouterr()
    screen.plugin._leave()  # nothing new came: what is known must not be lost
    assert "ppyoloe" in screen.capsys.readouterr().out
    screen.plugin._display.display("later")
    assert screen.capsys.readouterr().out == "later\n"


def test_a_worker_process_leaves_the_picture_alone(screen, monkeypatch):
    screen.retry(at(0))
    monkeypatch.setattr("os.getpid", lambda: 1)
    screen.plugin._display.display("from a worker")
    assert screen.capsys.readouterr().out == "from a worker\n"


def test_a_node_that_cannot_be_reached_stays_in_the_picture(screen):
    screen.retry(at(0))
    said = screen.result("attempt_monitor", {"unreachable": True, "msg": "timed out"})
    said.task.ignore_unreachable = True
    screen.plugin.v2_runner_on_unreachable(said)
    screen.capsys.readouterr()
    assert "node1   unreachable" in screen.retry(at(0, "node2", 1), "node2")


def test_live_can_be_switched_off(screen):
    screen.plugin.set_option("live", False)
    assert "\x1b" not in screen.retry(at(0))


@pytest.mark.parametrize("terminal_type", ["dumb", ""])
def test_a_terminal_that_cannot_go_up_gets_plain_lines(screen, monkeypatch, terminal_type):
    monkeypatch.setenv("TERM", terminal_type) if terminal_type else monkeypatch.delenv("TERM")
    assert "\x1b" not in screen.retry(at(0))


def test_under_ansible_runner_events_hold_plain_lines(screen, monkeypatch):
    monkeypatch.setattr(
        type(screen.plugin), "CALLBACK_NAME", "awx_display"
    )  # it inherits from the callback that the user asked for
    assert screen.retry(at(0)).splitlines()[1].startswith("node1      running   rank 0 training")


def test_verbose_output_is_not_drawn_over(screen, monkeypatch):
    monkeypatch.setattr(screen.plugin._display, "verbosity", 1)
    assert "\x1b" not in screen.retry(at(0))


# --- what a node says is text

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e"


@pytest.mark.parametrize("field", ["state", "job", "run", "unit_of_speed"])
def test_escape_bytes_never_reach_the_screen(screen, monkeypatch, field):
    said = at(0)
    said[field] = str(said[field]) + EVIL
    said["nodes"] = [said["node"]]
    monkeypatch.setenv("COLUMNS", "200")
    shown = screen.retry(said)
    for sequence in ("\x1b[K", "\x1b[J"):
        shown = shown.replace(sequence, "")
    assert "\\x1b]0;owned" in shown and not [char for char in shown if char in "\x1b\x07\u202e"]
    screen.plugin._picture.leave()
    screen.plugin.set_option("live", False)
    assert not [
        char
        for char in screen.retry(dict(said, epochs=9, state="x" + EVIL))
        if char in "\x1b\x07\u202e"
    ]


# --- the end


def test_the_verdict_is_the_last_line(terminal):
    terminal.ok(
        "run_record",
        {
            "summary": [
                "rank  node" + EVIL,
                "",
                "FAILED: rank 3 on node2 ended with SIGKILL" + EVIL,
            ],
            "verdict": {"outcome": "failed"},
            "changed": True,
        },
    )
    lines = terminal.stats().splitlines()
    assert (
        "PLAY RECAP" in "".join(lines[:3])
        and lines[-1].startswith("FAILED: rank 3 on node2 ")
        and "SIGKILL" in lines[-1]
        and lines[-3].startswith("rank  node")
    )
    assert not [char for char in "".join(lines[-3:]) if char in "\x1b\x07\u202e"]


def test_the_verdict_of_an_earlier_attempt_comes_before_the_next_one(terminal):
    record = {"summary": ["STOPPED: by the user"], "verdict": {"outcome": "stopped"}, "attempt": 1}
    terminal.ok("run_record", dict(record))
    assert "STOPPED" not in terminal.ok("attempt_monitor", {"status": dict(at(0), attempt=1)})
    shown = terminal.ok("attempt_monitor", {"status": dict(at(1), attempt=2)})
    assert shown.index("STOPPED") < shown.index("step 2/8")
    assert "STOPPED" not in terminal.stats()


def test_a_node_gives_no_verdict_and_no_command_to_copy(terminal):
    terminal.ok(
        "ansible.builtin.command",
        {"summary": ["COMPLETED"], "verdict": {"outcome": "completed"}, "stopped": 7},
    )
    assert "COMPLETED" not in terminal.stats()
    terminal.ok("attempt_monitor", {"status": dict(at(0), run=RUN + "; rm -rf ~")})
    assert terminal.exit() == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": "x"},
        {"now": "x"},
        {"nodes": 7},
        {"ranks": [{"rank": {}}]},
        {"started": []},
        {"epochs": {}},
    ],
)
def test_a_status_of_another_shape_costs_its_node_only(terminal, wrong):
    terminal.ok("attempt_monitor", {"status": dict(at(0), **wrong)})
    shown = terminal.ok("attempt_monitor", {"status": at(3, "node2", 1)}, "node2")
    assert "node2 " in shown and "step 4/8" in shown


def test_the_report_is_named_before_the_verdict(terminal, monkeypatch):
    monkeypatch.chdir(ROOT)
    terminal.ok("run_report", {"report": "/elsewhere/r/report.html"})
    # report.yml says itself where it is.
    assert "report.html" not in terminal.stats()
    ended = {
        "summary": ["rank  node", "FAILED: rank 3"],
        "verdict": {"outcome": "failed"},
        "changed": True,
    }
    terminal.ok("run_record", dict(ended))
    terminal.ok("run_report", {"report": str(ROOT / "runs" / RUN / "report.html")})
    assert terminal.stats().splitlines()[-2:] == [
        f"report       runs/{RUN}/report.html",
        "FAILED: rank 3",
    ]
    terminal.ok("run_record", dict(ended))
    terminal.plugin.v2_runner_on_failed(
        terminal.result("run_report", {"msg": "no report: disk full"})
    )
    terminal.capsys.readouterr()
    assert terminal.stats().splitlines()[-2:] == ["report       none", "FAILED: rank 3"]


def test_without_a_verdict_the_recap_is_the_end(terminal):
    terminal.ok("plan", {"summary": ["plan 0123"], "changed": False})
    assert "plan 0123" not in terminal.stats()


def test_plays_without_hosts_are_not_mentioned(terminal):
    terminal.plugin.v2_playbook_on_no_hosts_matched()
    assert terminal.capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "says, expected",
    [
        ([("node1", at(0)), ("node2", at(0, "node2", 1))], True),
        ([("node1", at(7, state="failed", ended=True)), ("node2", at(7, "node2", 1))], True),
        ([("node1", at(7, ended=True)), ("node2", at(7, "node2", 1, ended=True))], False),
        ([("node1", {"found": False, "ended": True, "state": "none"})], False),
        ([], False),
    ],
    ids=["running", "half over", "over", "unknown", "nothing followed"],
)
def test_who_leaves_a_running_run_is_told_how_to_come_back(terminal, says, expected):
    for host, said in says:
        terminal.ok("attempt_monitor", {"status": said}, host)
    shown = terminal.exit()
    assert bool(shown) == expected
    if expected:
        for verb in ("follow", "status", "stop"):
            assert f"ansible-playbook playbooks/{verb}.yml -e run={RUN}" in shown


def test_a_run_that_was_just_stopped_does_not_go_on(terminal):
    terminal.ok("attempt_monitor", {"status": at(0)})
    terminal.ok("attempt", {"changed": True, "stopped": [RUN], "left": []})
    assert terminal.exit() == ""


def test_a_worker_process_says_nothing_at_its_end(terminal, monkeypatch):
    terminal.ok("attempt_monitor", {"status": at(0)})
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert terminal.exit() == ""
