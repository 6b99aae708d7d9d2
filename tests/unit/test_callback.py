# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows: plain lines in a pipe, redrawn lines on a terminal, the verdict last, and how to come back after Ctrl-C."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from ansible import context
from ansible.executor.stats import AggregateStats
from ansible.plugins.loader import callback_loader
from core_support import ROOT, RUN
from test_live import STEP, rank, status


class Terminal:
    """The callback plugin, fed with results as Ansible's strategy feeds it."""

    def __init__(self, plugin, capsys):
        self.plugin, self.capsys = plugin, capsys

    def result(self, action, data, host="node1"):
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
        self.plugin.v2_runner_retry(self.result("attempt_status", {"status": said, "attempts": 1, "retries": 9}, host))
        return self.capsys.readouterr().out

    def ok(self, action, data, host="node1"):
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
    callback_loader.add_directory(str(ROOT / "plugins" / "callback"))
    monkeypatch.setattr("atexit.register", lambda *_args: None)
    monkeypatch.setattr(context, "CLIARGS", {"check": False})
    plugin = callback_loader.get("trainyard")
    plugin.set_options()
    monkeypatch.setattr(plugin._display, "verbosity", 0)
    capsys.readouterr()
    return Terminal(plugin, capsys)


@pytest.fixture
def screen(terminal, monkeypatch):
    """A terminal of 60 columns."""
    stdout = SimpleNamespace(isatty=lambda: True, write=lambda text: sys.stdout.write(text), flush=lambda: sys.stdout.flush())
    monkeypatch.setattr(sys.modules[type(terminal.plugin).__module__], "sys", SimpleNamespace(stdout=stdout))
    monkeypatch.setenv("COLUMNS", "60")
    return terminal


def at(step, node="node1", number=0, **changes):
    """Return a node's status at a training step."""
    return status(node, rank(number, step=dict(STEP, step=step), fraction=0.5), run=RUN, **changes)


# --- in a pipe


def test_one_plain_line_for_each_change(terminal, monkeypatch):
    assert terminal.retry(at(0)).splitlines() == [
        "run %s, job ppyoloe, 2 nodes" % RUN,
        "node1      running   rank 0 training  epoch 1/3  step 1/8  loss 5.295  0.34 images/s  ETA 1:13",
    ]
    assert terminal.retry(at(0)) == ""  # nothing new
    assert terminal.retry(at(0, "node2", 1), "node2").startswith("node2 ")
    assert "step 2/8" in terminal.retry(at(1)) and terminal.retry(at(1)) == ""
    clock = terminal.plugin._said["node1"][1]
    monkeypatch.setattr("time.monotonic", lambda: clock + 31)
    assert "step 2/8" in terminal.retry(at(1))  # a sign of life


def test_other_retries_are_shown_as_ansible_does(terminal):
    terminal.plugin.v2_runner_retry(terminal.result("ansible.builtin.uri", {"attempts": 1, "retries": 3, "status": "x"}))
    assert "FAILED - RETRYING" in terminal.capsys.readouterr().out


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


@pytest.mark.parametrize("failed", [False, True])
def test_the_table_of_a_check_is_the_last_thing_shown(terminal, failed):
    said = terminal.result("check_report", {"lines": ["STOP  node1  port  17000 is taken\x1b[2J", "NOT READY: 1"], "msg": "NOT READY: 1"})
    (terminal.plugin.v2_runner_on_failed if failed else terminal.plugin.v2_runner_on_ok)(said)
    terminal.capsys.readouterr()
    shown = terminal.stats()
    assert (
        shown.splitlines()[-2].startswith("STOP  node1  port  17000 is taken")
        and shown.splitlines()[-1] == "NOT READY: 1"
        and "\x1b" not in shown
    )


def test_the_last_look_is_shown_too(terminal):
    said = dict(at(7, state="completed", ended=True))
    del said["node"]
    assert terminal.ok("attempt_status", {"status": dict(said, node="node1")}).splitlines()[1].startswith("node1      completed")
    assert (
        terminal.ok("attempt_status", {"status": {"found": False, "ended": True, "state": "none"}}, "node9")
        == "node9      no such run here\n"
    )


# --- on a terminal


def test_lines_are_redrawn_in_place(screen):
    first = screen.retry(at(0))
    assert first.splitlines()[0].startswith("\x1b[2K%s  ppyoloe  2 nodes" % RUN) and len(first.splitlines()) == 2 and "\x1b[1A" not in first
    second = screen.retry(at(0, "node2", 1), "node2")
    assert second.startswith("\x1b[2A\x1b[2K") and len(second.splitlines()) == 3  # up over the two lines that are there, then one line more
    third = screen.retry(at(1))
    assert third.startswith("\x1b[3A\x1b[2K") and [line.split()[0][4:] for line in third.splitlines()[1:]] == ["node1", "node2"]
    assert all(len(line.split("\x1b[2K")[1]) <= 59 for line in third.splitlines())


def test_a_new_task_is_never_drawn_over(screen):
    screen.retry(at(0))
    screen.plugin._play = SimpleNamespace(strategy="linear")
    screen.plugin._task_start(SimpleNamespace(get_name=lambda: "Next", _uuid="v", check_mode=False, diff=False, no_log=False, args={}))
    screen.capsys.readouterr()
    assert not screen.retry(at(1)).startswith("\x1b[2A")


def test_live_can_be_switched_off(screen):
    screen.plugin.set_option("live", False)
    assert "\x1b" not in screen.retry(at(0))


def test_verbose_output_is_not_drawn_over(screen, monkeypatch):
    monkeypatch.setattr(screen.plugin._display, "verbosity", 1)
    assert "\x1b" not in screen.retry(at(0))


# --- what a node says is text

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e"


@pytest.mark.parametrize("field", ["node", "state", "job", "run", "unit_of_speed"])
def test_escape_bytes_never_reach_the_screen(screen, monkeypatch, field):
    said = at(0)
    said[field] = str(said[field]) + EVIL
    said["nodes"] = [said["node"]]
    monkeypatch.setenv("COLUMNS", "200")
    shown = screen.retry(said)
    for sequence in ("\x1b[2K", "\x1b[2A"):
        shown = shown.replace(sequence, "")
    assert "\\x1b]0;owned" in shown and not [char for char in shown if char in "\x1b\x07\u202e"]
    screen.plugin.set_option("live", False)
    assert not [char for char in screen.retry(dict(said, epochs=9, state="x" + EVIL)) if char in "\x1b\x07\u202e"]


# --- the end


def test_the_verdict_is_the_last_line(terminal):
    terminal.ok(
        "run_record",
        {
            "summary": ["rank  node" + EVIL, "", "FAILED: rank 3 on node2 ended with SIGKILL" + EVIL],
            "verdict": {"outcome": "failed"},
            "changed": True,
        },
    )
    lines = terminal.stats().splitlines()
    assert (
        "PLAY RECAP" in "".join(lines[:3])
        and lines[-1].startswith("FAILED: rank 3 on node2 ended with SIGKILL")
        and lines[-3].startswith("rank  node")
    )
    assert not [char for char in "".join(lines[-3:]) if char in "\x1b\x07\u202e"]


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
        terminal.ok("attempt_status", {"status": said}, host)
    shown = terminal.exit()
    assert bool(shown) == expected
    if expected:
        for verb in ("follow", "status", "stop"):
            assert "ansible-playbook playbooks/%s.yml -e run=%s" % (verb, RUN) in shown


def test_a_run_that_was_just_stopped_does_not_go_on(terminal):
    terminal.ok("attempt_status", {"status": at(0)})
    terminal.ok("attempt", {"changed": True, "stopped": [RUN], "left": []})
    assert terminal.exit() == ""


def test_a_worker_process_says_nothing_at_its_end(terminal, monkeypatch):
    terminal.ok("attempt_status", {"status": at(0)})
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert terminal.exit() == ""
