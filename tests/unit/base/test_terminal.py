# SPDX-License-Identifier: Apache-2.0
"""The live view on a real pseudo-terminal: what its screen shows, also after it has changed its
size, and what Ctrl-C leaves.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import termios
import time
from types import SimpleNamespace

import pytest
from ansible import context
from ansible.plugins.loader import callback_loader
from ansible.utils import color
from core_support import ROOT, RUN
from system.test_callback import Terminal as Feed
from system.test_callback import at
from terminal_support import Terminal
from unit.live.test_screen import many, rank, status


@pytest.fixture
def pty(monkeypatch):
    """Call it with columns and rows: a terminal, and the callback plugin that writes to it."""
    opened = []

    def call(wide, rows):
        plugin, real = callback_loader.get("trainyard.cluster.live"), Terminal(wide, rows)
        opened.extend((plugin, real))
        plugin.set_options()
        monkeypatch.setattr(plugin._display, "verbosity", 0)
        monkeypatch.setattr("time.time", lambda: 225.0)
        monkeypatch.setattr(
            sys.modules[type(plugin).__module__], "sys", SimpleNamespace(stdout=real.stream)
        )
        monkeypatch.setattr("ansible.utils.display.sys.stdout", real.stream)
        plugin.feed = Feed(plugin, SimpleNamespace(readouterr=lambda: SimpleNamespace(out="")))
        real.plugin, real.look = plugin, lambda said: plugin.feed.retry(said, said["node"])
        return real

    monkeypatch.setattr("atexit.register", lambda *_args: None)
    monkeypatch.setattr(context, "CLIARGS", {"check": False})
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(color, "ANSIBLE_COLOR", False)
    yield call
    opened[0]._picture.leave()
    opened[1].close()


@pytest.mark.parametrize("wide", [60, 80, 200])
def test_two_nodes(pty, wide):
    real = pty(wide, 24)
    real.stream.write("TASK [before]\n")
    for step in range(4):
        real.look(at(step))
        real.look(at(step, "node2", 1))
    shown = real.shown()
    assert shown[:2] == ["TASK [before]", f"run {RUN}, job ppyoloe, 2 nodes"] and len(shown) == 7
    assert (
        re.match("ppyoloe  2 nodes x 1 rank  elapsed 2:[01][0-9]  ETA 1:", shown[2])
        and "50 %  epoch 1/3  step 4/8" in shown[3]
    )
    assert "█░" in shown[3] and [line.split()[0] for line in shown[5:]] == ["node1", "node2"]
    assert (real.screen.row, real.screen.column) == (7, 0)


@pytest.mark.parametrize("wide", [60, 80, 200])
def test_64_nodes_are_one_picture_that_stays_in_its_place(pty, wide):
    real = pty(wide, 24)
    for said in many(
        node17={"state": "failed", "ended": True, "ranks": [rank(128, "failed", exit_code=7)]}
    ):
        real.look(said)
    real.plugin._leave()
    shown = real.shown()
    assert len(shown) <= 10 and real.screen.top == 0
    assert [
        line
        for line in shown
        if line.startswith("node17      failed      rank 128 failed (exit code 7)")
    ]
    assert [
        line for line in shown if line.startswith("62 nodes    running     8 ranks running each")
    ]


def test_64_answers_are_a_few_pictures(pty, monkeypatch):
    real = pty(80, 24)
    monkeypatch.setattr(
        sys.modules[type(real.plugin).__module__], "PAUSE_SECONDS", 1000
    )  # however slow this machine is
    drawn = []
    real.plugin._picture.draw, draw = (
        lambda *args: drawn.append(draw(*args)),
        real.plugin._picture.draw,
    )
    for said in many():
        real.look(said)
    assert (
        1 <= len(drawn) < 40 and real.plugin._picture.due
    )  # the last answers come with the next picture
    real.plugin._leave()
    assert [line for line in real.shown() if "63 nodes" in line]


@pytest.mark.parametrize(
    "sizes", [[(60, 24)], [(60, 24), (200, 24)], [(100, 8)], [(61, 10), (90, 30)]]
)
def test_a_new_size_leaves_nothing_of_the_old_picture(pty, sizes):
    real = pty(120, 24)
    real.stream.write("TASK [before]\n")
    job = "a-job-whose-name-makes-the-first-line-long"
    for step, size in enumerate([None, *sizes]):
        if size:
            real.size(*size)
        real.look(at(step, job=job))
    shown = real.shown()
    assert (
        sum(line.startswith("a-job") for line in shown) == 1
        and sum("node1 " in line for line in shown) == 1
    )
    assert [line for line in shown if "TASK [before]" in line] or sizes[0][1] < 10
    assert shown[-1].startswith("node2") and all(len(line) < size[0] for line in shown[2:])


def test_other_output_stands_above_the_picture(pty):
    real = pty(80, 24)
    real.look(at(0))
    real.plugin._display.display("[WARNING]: something else\nof two lines")
    real.look(at(1))
    shown = real.shown()
    assert (
        shown[1:3] == ["[WARNING]: something else", "of two lines"]
        and "step 2/8" in shown[4]
        and len(shown) == 8
    )
    assert sum(line.startswith("ppyoloe") for line in shown) == 1


def test_wide_names_keep_to_the_terminal(pty):
    real = pty(60, 24)
    names = ["训练节点%d" % n for n in range(2)]
    for _again in range(2):
        for number, name in enumerate(names):
            real.look(status(name, rank(number), job="目标检测" * 12, nodes=names, run=RUN))
    # Below the line that names the run, which is text and wraps: nothing is wrapped, nothing stands
    # twice.
    assert real.shown()[-4].startswith("目标") and len(real.shown()) == 3 + 4


def test_colours_are_ansibles_and_go_with_its_settings(pty, monkeypatch):
    real = pty(80, 24)
    failed = status("node1", rank(0, "failed", exit_code=7), state="failed", ended=True, run=RUN)
    real.look(failed)
    real.shown()
    assert (
        real.screen.colours == set()
    )  # as with ANSIBLE_NOCOLOR, and where the output is no terminal
    monkeypatch.setattr(color, "ANSIBLE_COLOR", True)
    real.look(failed)
    real.shown()
    assert "0;31" in real.screen.colours and real.screen.style == "0"
    real.screen.colours.clear()
    monkeypatch.setenv("NO_COLOR", "x")
    real.look(failed)
    real.shown()
    assert real.screen.colours == set()


@pytest.mark.parametrize("change", [{"TERM": "linux"}, {}])
def test_a_terminal_without_unicode_gets_ascii(pty, monkeypatch, change):
    real = pty(80, 24)
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    if not change:
        real.stream.reconfigure(
            encoding="iso-8859-1", errors="replace"
        )  # Ansible has such a handler
    real.look(at(3, job="检测"))
    assert (
        all(line.isascii() for line in real.shown()[1:])
        and "[####" in real.shown()[2]
        and real.shown()[1].startswith("??")
    )


# --- Ansible itself

MODULE = """#!%s
import json, os, sys, time
name = json.load(open(sys.argv[1]))["node"]
beat = %r + name
open(beat, "a").write(".")
said = json.load(open(%r))[name]
said["ranks"][0]["step"]["step"] = os.path.getsize(beat)
print(json.dumps({"changed": False, "status": dict(said, now=time.time(), started=time.time() - 60)}))
# WANT_JSON
"""
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - attempt_monitor: {node: "{{ inventory_hostname }}"}
      register: found
      until: found.status.ended
      retries: 1000
      delay: 1
"""


@pytest.fixture
def followed(tmp_path):
    """Write a play that follows a run for ever; return the environment of its command."""
    statuses = tmp_path / "statuses.json"
    statuses.write_text(json.dumps({"node1": at(0), "node2": at(0, "node2", 1)}), "utf-8")
    (tmp_path / "library").mkdir()
    module = tmp_path / "library" / "attempt_monitor.py"
    module.write_text(MODULE % (sys.executable, str(statuses), str(statuses)), "utf-8")
    (tmp_path / "play.yml").write_text(PLAY, "utf-8")
    (tmp_path / "hosts").write_text(
        f"node1\nnode2\n[all:vars]\nansible_connection=local\nansible_python_interpreter={sys.executable}\n",
        "utf-8",
    )
    (tmp_path / "ansible.cfg").write_text(
        "[defaults]\ninventory=hosts\nlibrary=library\nstdout_callback=trainyard.cluster.live\n"
        "collections_path=%s\n" % (ROOT / "collections"),
        "utf-8",
    )
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("ANSIBLE_") and key != "NO_COLOR"
    }
    environment.update(TERM="xterm-256color", LC_ALL="C.UTF-8", HOME=str(tmp_path))
    return environment


@pytest.mark.parametrize("together", [False, True], ids=["head", "2>&1 | head"])
def test_who_closes_the_pipe_detaches_as_with_ctrl_c(tmp_path, followed, together):
    """The reader ends after some lines of the run. The command ends, with the way back."""
    argv = [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), "play.yml"]
    reader, writer = os.pipe()
    errors = subprocess.PIPE
    if together:
        errors = subprocess.STDOUT
    process = subprocess.Popen(
        argv,
        cwd=str(tmp_path),
        env=followed,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=errors,
        start_new_session=True,
        text=True,
    )
    os.close(writer)
    try:
        with open(reader, encoding="utf-8") as lines:
            assert any("rank 0 training" in line for line in lines)
        # Less than the 30 s after which a quiet run gets a line.
        said = process.communicate(timeout=25)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 99
    if not together:
        assert f"The run {RUN} goes on without this terminal." in said
        assert f"stop.yml -e run={RUN}" in said and "Broken" not in said


def test_ctrl_c_leaves_the_terminal_clean_and_says_how_to_come_back(tmp_path, followed):
    # ansible-core 2.19 itself hangs, with its own callback too, where Ctrl-C kills a worker that
    # just hands over a result: a worker that dies so keeps the queue's lock
    # (multiprocessing.SimpleQueue.put). Then it is tried again.
    for _again in range(5):
        real, code = Terminal(100, 30, echo=True), None
        modes = termios.tcgetattr(real.slave)
        argv = [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), "play.yml"]
        process = real.start(argv, cwd=str(tmp_path), env=followed)
        try:
            real.wait(
                lambda rows: re.search(r"step ([3-9]|\d\d)/8.*node2   running", "".join(rows))
            )
            time.sleep(0.4)  # by then the workers mostly wait
            os.write(real.master, b"\x03")
            code = process.wait(20)
            break
        except subprocess.TimeoutExpired:
            continue
        finally:
            process.kill()
            process.wait()
    rows = real.wait(lambda rows: f"stop.yml -e run={RUN}" in "".join(rows))
    assert code == 99 and termios.tcgetattr(real.slave) == modes
    text = "".join(rows)  # the terminal has wrapped it
    assert f"The run {RUN} goes on without this terminal." in text and "follow.yml -e run=" in text
    assert "FAILED - RETRYING" not in text and sum("node2   running" in row for row in rows) == 1
    assert real.screen.column == 0 and real.screen.style == "0"
    real.close()
