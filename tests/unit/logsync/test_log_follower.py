# SPDX-License-Identifier: Apache-2.0
"""Following the logs of one node with the real sender. Every line comes once and in order, until
the run has ended there.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    log_follower,
    log_receiver,
)
from conftest import sample_plan

ARGV = log_receiver.sender_argv(sys.executable)
START = json.dumps({"event": "launched", "pid": 1, "time": 1.0}) + "\n"
END = json.dumps({"event": "launcher_end", "exit_code": 0, "time": 2.0}) + "\n"


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not within %d s" % seconds
        time.sleep(0.02)


@pytest.fixture
def node(make_attempt, tmp_path):
    """The attempt of node1 with two ranks, its directory on the controller, and a follower of both
    logs in a thread.
    """

    class Node:
        attempt = make_attempt("node1", plan=sample_plan(), logs={0: "before\n", 1: ""})
        home = tmp_path / "home" / "attempt-1"
        shown, problem, asked = [], "still following", 0
        over_says = False
        thread = None

        def write(self, local, text):
            with open(self.attempt / "log" / ("workerlog.%d" % local), "ab") as handle:
                handle.write(text)

        def events(self, text):
            with open(self.attempt / "ranks.jsonl", "a", encoding="utf-8") as handle:
                handle.write(text)

        def said(self, name=None):
            return [line for home, lines in self.shown for line in lines if name in (None, home)]

        def over(self):
            self.asked += 1
            return self.over_says

        def follow(
            self, offsets=None, wanted=("rank-000.node1.log", "rank-001.node1.log"), argv=ARGV
        ):
            self.follower = log_follower.Follower(
                str(self.home),
                "node1",
                wanted,
                offsets or {},
                lambda *item: self.shown.append(item),
                str(tmp_path / "marker"),
            )
            spec = {"attempt_dir": str(self.attempt), "node": "node1", "follow": True}

            def run():
                self.problem = self.follower.follow(argv, spec, self.over)

            self.thread = threading.Thread(target=run, daemon=True)
            self.thread.start()

        def ends(self):
            self.thread.join(60)
            assert not self.thread.is_alive(), "it does not end"

    made = Node()
    made.home.mkdir(parents=True)
    yield made
    made.over_says = True
    made.events(END)
    if made.thread:
        made.thread.join(60)


def test_lines_are_shown_as_they_are_written_until_the_launcher_has_ended(node):
    node.events(START)
    node.follow()
    wait_for(lambda: node.said() == [b"before"])
    node.write(0, b"one\ntw")
    wait_for(lambda: node.said() == [b"before", b"one"])
    node.write(1, b"other\n")
    wait_for(lambda: b"other" in node.said())
    node.write(0, b"o\n")
    wait_for(lambda: b"two" in node.said())
    node.write(0, b"last\n")
    node.events(END)
    node.ends()
    assert node.said("rank-000.node1.log") == [b"before", b"one", b"two", b"last"]
    assert (node.problem, node.follower.copies_logs, node.follower.lines) == (None, True, 5)
    for rank in (0, 1):
        raw = (node.attempt / "log" / ("workerlog.%d" % rank)).read_bytes()
        assert (node.home / ("rank-%03d.node1.log" % rank)).read_bytes() == raw


def test_what_was_shown_before_is_not_shown_again(node):
    (node.home / "rank-000.node1.log").write_bytes(b"before\n")
    node.write(0, b"new\n")
    node.events(START + END)
    node.follow(offsets={"rank-000.node1.log": 7})
    node.ends()
    assert node.said() == [b"new"]


def test_only_what_is_asked_for_is_shown_and_everything_comes_home(node):
    node.write(1, b"of one\n")
    node.events(START + END)
    node.follow(wanted=("rank-001.node1.log",))
    node.ends()
    assert node.said() == [b"of one"]
    assert (node.home / "rank-000.node1.log").read_bytes() == b"before\n"


def test_logs_that_another_process_brings_are_shown_from_what_it_brings(node):
    """train.yml follows the same run in another terminal. When that one ends, this one continues
    automatically.
    """
    other = log_receiver.Receiver(str(node.home), node="node1")
    log = node.home / "rank-000.node1.log"
    log.write_bytes(b"before\n")
    node.follow()
    wait_for(lambda: node.said() == [b"before"])
    node.write(0, b"unknown to it\n")
    with open(log, "ab") as handle:
        handle.write(b"unkn")
    assert not node.follower.copies_logs
    other.close()
    wait_for(lambda: node.said() == [b"before", b"unknown to it"])
    node.events(END)
    node.ends()
    assert node.follower.copies_logs and log.read_bytes() == b"before\nunknown to it\n"


def test_the_last_lines_that_another_process_brings_are_waited_for(node, monkeypatch):
    monkeypatch.setattr(log_follower, "LOOK_SECONDS", 1)
    other = log_receiver.Receiver(str(node.home), node="node1")
    node.follow()
    (node.home / "ranks.node1.jsonl").write_text(START + END)
    wait_for(lambda: node.follower._ended)
    (node.home / "rank-000.node1.log").write_bytes(b"before\nthe last\n")
    node.ends()
    other.close()
    assert node.said() == [b"before", b"the last"] and not node.follower.copies_logs


def test_a_run_whose_launcher_said_nothing_is_asked_for(node, monkeypatch):
    monkeypatch.setattr(log_follower, "ASK_SECONDS", 0.1)
    node.follow()
    wait_for(lambda: node.asked >= 2)
    node.over_says = True
    node.ends()
    assert node.said() == [b"before"]


def test_a_node_that_is_gone_does_not_keep_the_view_when_the_others_have_ended(
    node, monkeypatch, tmp_path
):
    monkeypatch.setattr(log_follower, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(log_follower, "LEAVE_SECONDS", 0)
    monkeypatch.setattr(log_follower, "REST_SECONDS", 0.1)
    node.over_says = None  # no answer
    node.follow(argv=[sys.executable, "-c", "import sys; sys.exit('ssh: no route to host')"])
    wait_for(lambda: node.asked >= 2)
    # It waits as long as no other node has ended.
    assert node.thread.is_alive()
    wait_for(lambda: node.follower._stream and node.follower._stream.problem)
    (tmp_path / "marker").touch()
    node.ends()
    assert "no route to host" in node.problem


# -- once, as far as it is written
# ---------------------------------------------------------------------------------


def test_bring_takes_what_there_is(node):
    node.events(START)
    spec = {"attempt_dir": str(node.attempt), "follow": False}
    assert log_follower.copy_logs(ARGV, spec, str(node.home), "node1")["problem"] is None
    assert (node.home / "rank-000.node1.log").read_bytes() == b"before\n"


def test_bring_leaves_it_to_who_brings_it_already(node):
    other = log_receiver.Receiver(str(node.home), node="node1")
    assert (
        log_follower.copy_logs(ARGV, {"attempt_dir": str(node.attempt)}, str(node.home), "node1")
        is None
    )
    other.close()


def test_bring_ends_where_the_node_does_not_answer(node, monkeypatch):
    monkeypatch.setattr(log_follower, "STALL_SECONDS", 5)
    argv = [sys.executable, "-c", "import sys; sys.exit('ssh: no route to host')"]
    said = log_follower.copy_logs(
        argv, {"attempt_dir": "x", "follow": False}, str(node.home), "node1"
    )
    assert "no route to host" in said["problem"]
