# SPDX-License-Identifier: Apache-2.0
"""The module network_check: systemd-run is told to start its listener. The listener is gone when it
is closed.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import sys
import threading
import time

import network_check
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import network_listener
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.network import (
    check_lock,
    check_session,
    node_check,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import held_program, zipapp

# Starts the program as systemd would, without the properties; they are looked at by the test.
SYSTEMD_RUN = """#!/bin/sh
echo "$@" >> %(log)s
for word in "$@"; do last=$word; done
setsid /usr/bin/env python3 -I "$last/agent.pyz" listen "$last" >/dev/null 2>&1 &
for turn in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
  [ -S "$last/control" ] && sleep 0.1 && exit 0
  sleep 0.1
done
exit 1
"""
SYSTEMCTL = """#!/bin/sh
echo "systemctl $@" >> %(log)s
case "$2" in list-units) cat %(units)s;; esac
"""


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node of this machine: a runtime directory, and programs that stand for systemd's and note
    how they are called.
    """
    bin_dir, runtime = tmp_path / "bin", tmp_path / "r"
    bin_dir.mkdir()
    runtime.mkdir()
    (tmp_path / "units").write_text("")
    for name, text in (("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL)):
        (bin_dir / name).write_text(text % {"log": tmp_path / "log", "units": tmp_path / "units"})
        (bin_dir / name).chmod(0o755)
    monkeypatch.setenv("PATH", "{}:{}".format(bin_dir, os.environ["PATH"]))
    monkeypatch.setattr(commands, "user_environment", lambda uid: {"XDG_RUNTIME_DIR": str(runtime)})
    return tmp_path


def arguments(state, name, **more):
    address = {"node1": "127.0.0.5", "node2": "127.0.0.6"}[name]
    return dict(
        {
            "state": state,
            "id": "0a1b" + name[-1],
            "node": name,
            "nodes": ["node1", "node2"],
            "address": address,
            "interface": "lo",
            "agent": zipapp.encoded(),
        },
        **more,
    )


def answers(number, runtime):
    """Return whether the listener of a check is there."""
    try:
        return bool(
            check_lock.ask_listener(str(runtime), number, do="hello", id=number, **{"from": ""})
        )
    except (OSError, ValueError):
        return False


def bound_again(port, seconds=20):
    """Bind the port that a listener had, without SO_REUSEADDR: its last connections may still be
    closing, but no TIME_WAIT (60 s) is left.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.socket() as made:
                return made.bind(("127.0.0.5", port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_listen_connect_close(node, run_module):
    with socket.socket() as made:
        made.bind(("127.0.0.5", 0))
        port = made.getsockname()[1]
    said = run_module(network_check, arguments("listening", "node1", ports=[port], seconds=33))
    assert (
        said["listening"]["planned"] == [port]
        and said["interface"] == {"name": "lo", "mtu": 65536}
        and said["hcas"] == node_check.list_hcas()
    )
    directory = node / "r" / "yardcheck-0a1b1"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    log = (node / "log").read_text()
    # whatever happens to the controller, the unit ends and takes its directory with it; its name is
    # no attempt's
    assert (
        "--unit=yardcheck-0a1b1.service" in log
        and "RuntimeMaxSec=33" in log
        and "RuntimeDirectory=yardcheck-0a1b1" in log
        and "--collect" in log
    )
    # (node2 has the id of node1's check here, as on two machines)
    book = {"node1": said, "node2": {"msg": "its listener did not start"}}
    found = run_module(
        network_check,
        dict(arguments("connected", "node2", book=book, depth="quick", ports=[port]), id="0a1b1"),
    )
    assert found["unreached"] == [] and port in found["reached"]["node1"]
    assert found["complete"] is False and found["own"]["msg"] == book["node2"]["msg"]
    deadline = time.monotonic() + 30
    while answers("0a1b1", node / "r"):  # all expected nodes came: it ends automatically
        assert time.monotonic() < deadline
        time.sleep(0.1)
    bound_again(port)
    closed = run_module(network_check, arguments("closed", "node1"))
    assert closed["closed"] == {} and "stop yardcheck-0a1b1.service" in (node / "log").read_text()


def test_closing_ends_a_listener_that_nobody_came_to_and_says_who_was_missed(node, run_module):
    said = run_module(network_check, arguments("listening", "node1"))
    assert run_module(network_check, arguments("closed", "node1"))["closed"] == {
        "came": {},
        "missed": ["node2"],
    }
    bound_again(said["listening"]["ephemeral"][0])


def test_one_program_does_what_the_module_does(node):
    def ask(state, **more):
        given = arguments(state, "node1", matrix=False, ports=[], depth="quick", seconds=33)
        return check_session.answer(str(node / "r"), dict(given, **more))

    said = ask("listening")
    assert said["listening"]["node"] == "node1" and answers("0a1b1", node / "r")
    found = ask("connected", book={"node1": said})
    assert found["own"]["listening"] == said["listening"] and not found["complete"]
    assert ask("closed")["closed"]["missed"] == ["node2"]
    assert not answers("0a1b1", node / "r")
    (node / "bin" / "systemd-run").write_text("#!/bin/sh\nexit 1\n")
    refused = ask("listening")
    assert refused["failed"] and "the listener did not start" in refused["msg"]


def test_the_program_answers_line_by_line(tmp_path):
    argv = [sys.executable, "-I", "-c", zipapp.BOOT, "network-check"]
    given = {"id": "0a1b", "node": "node1"}
    program = held_program.HeldProgram(argv, "network.check_session", given)
    try:
        for _question in range(2):
            assert program.ask({"state": "closed"}, 60) == {"closed": {}, "rival": None}
        assert program.ask({"state": "closed", "id": "../x"}, 60)["failed"]
    finally:
        program.close()


OTHER = "yardcheck-99.service loaded active running Trainyard network check\n"


def test_an_earlier_checks_listener_is_waited_for(node, run_module):
    (node / "units").write_text(OTHER)
    threading.Timer(0.7, (node / "units").write_text, ("",)).start()
    started = time.monotonic()
    said = run_module(network_check, arguments("listening", "node1"))
    assert (
        said["rival"] is None
        and said["listening"]
        and 0.7 <= time.monotonic() - started < check_lock.PATIENCE_SECONDS
    )
    assert "stop yardcheck-99" not in (node / "log").read_text() and os.listdir(node / "r") == [
        "yardcheck-0a1b1"
    ]
    run_module(network_check, arguments("closed", "node1"))


def test_an_abandoned_listener_is_ended_and_its_check_knows(node, run_module, monkeypatch):
    monkeypatch.setattr(check_lock, "PATIENCE_SECONDS", 0.5)
    (node / "units").write_text(
        OTHER
        + "yardlimits-77.service loaded active running probe\nyardcheck-98.service loaded failed"
        " failed x\n"
    )
    run_module(network_check, arguments("listening", "node1"))
    log = (node / "log").read_text()
    assert (
        log.index("stop yardcheck-99.service") < log.index("--unit=yardcheck-0a1b1.service")
        and "stop yardcheck-98.service" in log
    )
    assert "yardlimits" not in log  # what the limits probe runs in is no listener
    run_module(network_check, arguments("closed", "node1"))
    # the other check goes on, finds the word, tries nothing, and takes the word along at its end
    theirs = dict(
        arguments("connected", "node1", book={"node1": {"listening": {}}}, depth="quick"), id="99"
    )
    found = run_module(network_check, theirs)
    assert (
        found["rival"]["id"] == "0a1b1"
        and found["complete"] is False
        and found["unreached"] == []
        and found["reached"] == {}
    )
    assert (
        run_module(network_check, dict(arguments("closed", "node1"), id="99"))["rival"]["id"]
        == "0a1b1"
    )
    assert [name for name in os.listdir(node / "r") if name.endswith(".over")] == []
    assert run_module(network_check, dict(arguments("closed", "node1"), id="98"))["rival"] is None


def test_word_that_nobody_fetches_does_not_stay(node, run_module):
    old, new = node / "r" / "yardcheck-7.over", node / "r" / "yardcheck-8.over"
    for path in (old, new):
        path.write_text("{}")
    os.utime(old, (1, 1))
    run_module(network_check, arguments("listening", "node1"))
    assert not old.exists() and new.exists()
    run_module(network_check, arguments("closed", "node1"))


def test_who_waits_in_vain_says_for_whom_and_starts_nothing(node, run_module, monkeypatch):
    monkeypatch.setattr(check_lock, "LONGEST_SECONDS", 0.5)
    (node / "units").write_text(OTHER)
    said = run_module(network_check, arguments("listening", "node1"))
    assert (
        said["listening"] is None
        and said["rival"]["id"] == "99"
        and "systemd-run" not in str(os.listdir(node / "r"))
    )
    assert "--unit=" not in (node / "log").read_text() and os.listdir(node / "r") == []
    # what it has met it knows at the next step; another node tries the network all the same
    book = {"node1": said, "node2": {"listening": {}}}
    found = run_module(network_check, arguments("connected", "node1", book=book, depth="quick"))
    assert found["rival"]["id"] == "99" and found["unreached"] == []
    assert (
        run_module(network_check, arguments("connected", "node2", book=book, depth="quick"))[
            "rival"
        ]
        is None
    )


def test_two_checks_do_not_start_at_one_moment(node, run_module, monkeypatch):
    monkeypatch.setattr(check_lock, "LONGEST_SECONDS", 0.5)
    place = os.open(node / "r", os.O_RDONLY)
    fcntl.flock(place, fcntl.LOCK_EX)
    assert (
        run_module(network_check, arguments("listening", "node1"))["rival"]["id"] == ""
        and not (node / "log").exists()
    )
    monkeypatch.setattr(check_lock, "LONGEST_SECONDS", 15)
    threading.Timer(0.6, os.close, (place,)).start()
    assert run_module(network_check, arguments("listening", "node1"))["rival"] is None
    run_module(network_check, arguments("closed", "node1"))
    free = os.open(node / "r", os.O_RDONLY)
    fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not held beyond the start
    os.close(free)


def test_a_port_that_another_users_check_holds_is_its_rival(node, run_module, tmp_path):
    spec = {
        "id": "else",
        "node": "node1",
        "address": "127.0.0.5",
        "ports": [0],
        "expected": ["x"],
        "directory": str(tmp_path),
    }
    theirs = network_listener.Listener(spec)
    threading.Thread(target=theirs.serve, daemon=True).start()
    said = run_module(network_check, arguments("listening", "node1", ports=theirs.planned))
    theirs.over.set()
    assert said["rival"]["id"] == "" and 0 <= said["rival"]["seconds"] < 30
    run_module(network_check, arguments("closed", "node1"))


@pytest.mark.parametrize(
    "number, holder, waited, said, end",
    [
        ("b", "a", 14, {"came": 0, "idle": 60}, False),  # it may be opening on many nodes
        ("b", "a", 15, {"came": 0, "idle": 60}, True),
        ("b", "a", 60, {"came": 1, "idle": 3}, False),  # alive
        ("b", "a", 15, {}, True),  # hung
        (
            "a",
            "b",
            5,
            {"came": 0, "idle": 5},
            True,
        ),  # two that wait for each other: one of them goes on
        ("b", "a", 7, {"came": 0, "idle": 7}, False),
        ("a", "b", 7, {"came": 1, "idle": 7}, False),
    ],
)
def test_when_a_listener_is_abandoned(number, holder, waited, said, end):
    assert check_lock.is_abandoned(number, holder, waited, said) is end


@pytest.mark.parametrize(
    "text, words",
    [
        ("exit 1", "did not start: systemd-run gives no reason, exit code 1; see"),
        ("exit 0", "did not start: it does not answer: No such file"),
    ],
)
def test_a_reason_is_never_empty(node, run_module, text, words):
    (node / "bin" / "systemd-run").write_text(f"#!/bin/sh\n{text}\n")
    said = run_module(network_check, arguments("listening", "node1"))
    assert said["failed"] and words in " ".join(said["msg"].split()).replace("[Errno 2] ", ""), (
        said["msg"]
    )
    assert os.listdir(node / "r") == []


def test_a_listener_that_does_not_start_leaves_no_directory(node, run_module):
    (node / "bin" / "systemd-run").write_text(
        "#!/bin/sh\necho 'Failed to connect to bus' >&2; exit 1\n"
    )
    said = run_module(network_check, arguments("listening", "node1"))
    assert (
        said["failed"]
        and "Failed to connect to bus" in said["msg"]
        and "journalctl --user -u yardcheck-0a1b1.service" in said["msg"]
    )
    assert os.listdir(node / "r") == []


@pytest.mark.parametrize("number", ["../x", "", "A b", "x" * 33])
def test_an_id_that_is_none_is_refused(node, run_module, number):
    assert (
        "is no id of a check"
        in run_module(network_check, dict(arguments("listening", "node1"), id=number))["msg"]
    )
