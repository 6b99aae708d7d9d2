# SPDX-License-Identifier: Apache-2.0
"""What is kept of a hang of real processes: the output of py-spy if it is installed, and the data
of /proc if it is not.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import stack_dump
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from core_support import RUN, attempt_files, compiled, program, put

DUMP = """Process 7: python tools/train.py
Python v3.9.2 (/env/bin/python)

Thread 8 (idle): "Loader"
    wait (threading.py:1)
Thread 7 (idle): "MainThread"
    all_reduce (paddle/distributed/collective.py:10)
    step (tools/train.py:20)
    <module> (tools/train.py:30)
"""
RANK = (
    "import socket, sys, threading, time;"
    " threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    "line = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
    " print('up', flush=True); time.sleep(600)"
)


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """Rank 1 on node2, connected to a server that it waits for; returns (attempt, process)."""
    made = compiled(count=2, devices=1, job={"launcher": "paddle"})
    made["nodes"][1]["python"] = str(tmp_path / "env" / "bin" / "python")
    attempt = attempt_files(tmp_path, made, "node2")
    server = socket.create_server(("127.0.0.1", 0))
    environment = dict(os.environ, TRAINYARD_ATTEMPT=RUN + "/1", PADDLE_TRAINER_ID="1")
    argv = [sys.executable, "-c", RANK, str(server.getsockname()[1])]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    put(
        attempt,
        {
            "ranks.jsonl": (
                json.dumps({"event": "start", "rank": 1, "pid": process.pid})
                + "\n"
                + json.dumps({"event": "start", "rank": 5, "pid": 1})
                + "\n"
            )
        },
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    yield attempt, process
    process.kill()
    process.wait()
    process.stdout.close()
    server.close()


def test_without_py_spy_proc_tells_what_it_can(rank):
    attempt, process = rank
    os.kill(process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + 20
    while stack_dump.threads_of(process.pid)[0]["state"] != "T" and time.monotonic() < deadline:
        time.sleep(0.05)
    state = stack_dump.collect(attempt, "node2", 2.0)
    # A process that does not bear the attempt's mark is not one of its ranks.
    assert [item["rank"] for item in state["ranks"]] == [1]
    told = state["ranks"][0]
    assert (told["state"], told["state_words"], told["stack_from"], told["where"]) == (
        "T",
        "stopped by a signal",
        "proc",
        [],
    )
    text = Path(attempt, "evidence", "stacks-001.log").read_text(encoding="utf-8")
    assert "there is no py-spy" in text and text.count("state T") == 2, "both threads"
    sockets = Path(attempt, "evidence", "sockets.log").read_text(encoding="utf-8")
    assert sockets.startswith("rank 1  ESTABLISHED 127.0.0.1:")
    assert {
        os.stat(Path(attempt, "evidence", name)).st_mode & 0o777
        for name in os.listdir(Path(attempt, "evidence"))
    } == {0o600}


def test_py_spy_of_the_environment_tells_the_stack(rank, tmp_path):
    attempt, process = rank
    program(tmp_path / "env" / "bin", "py-spy", f'echo "$*" > $LOG\ncat <<EOF\n{DUMP}EOF')
    state = stack_dump.collect(attempt, "node2", 20.0)
    assert (
        state["ranks"][0]["where"][0] == "all_reduce (paddle/distributed/collective.py:10)"
        and state["ranks"][0]["stack_from"] == "py-spy"
    )
    asked = Path(tmp_path, "env", "bin", "py-spy.log").read_text(encoding="ascii")
    # A rank that works after all is not held up.
    assert asked.split() == ["dump", "--nonblocking", "--pid", str(process.pid)]


def test_a_py_spy_that_hangs_costs_the_evidence_no_more_than_its_time(rank, tmp_path):
    attempt, _process = rank
    program(tmp_path / "env" / "bin", "py-spy", "exec sleep 60")
    begun = time.monotonic()
    state = stack_dump.collect(attempt, "node2", 1.0)
    assert (
        time.monotonic() - begun < 30
        and state["ranks"][0]["why"].startswith("py-spy ")
        and "in time" in state["ranks"][0]["why"]
    )


def test_a_kernel_that_lets_nobody_look_is_named_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(stack_dump, "YAMA", put(tmp_path, {"scope": "1\n"}) + "/scope")
    monkeypatch.setattr(stack_dump.os, "geteuid", lambda: 1000)
    note = stack_dump.ptrace_note()
    assert note.startswith("kernel.yama.ptrace_scope is 1,")
    assert "sysctl kernel.yama.ptrace_scope=0" in note
    put(tmp_path, {"scope": "0\n"})
    assert stack_dump.ptrace_note() == ""


def test_what_was_kept_is_found_and_brought_home(rank):
    attempt, _process = rank
    stack_dump.collect(attempt, "node2", 1.0)
    put(
        attempt,
        {
            "loss.json": json.dumps(
                {
                    "node": "node1",
                    "how": "x",
                    "seconds": 17.0,
                    "since": 1.0,
                    "time": 2.0,
                    "by": "node2",
                }
            ),
            "logs.txt": "",
        },
    )
    found = evidence.collect(attempt, "node2")
    assert found["guard"]["loss"]["node"] == "node1" and found["guard"]["seen"][0]["rank"] == 1
    homes = {item["home"]: item["file"] for item in found["files"]}
    assert (
        homes["stacks-001.node2.log"] == "evidence/stacks-001.log"
        and homes["loss.node2.json"] == "loss.json"
    )
    assert {"sockets.node2.log", "state.node2.json"} <= set(
        homes
    ) and "stall.node2.json" not in homes


def test_frames_of_the_main_thread():
    assert stack_dump.frames(DUMP)[0].startswith("all_reduce") and len(stack_dump.frames(DUMP)) == 3
    assert stack_dump.frames(DUMP.replace("MainThread", "Other")) == ["wait (threading.py:1)"]
    assert stack_dump.frames("Error: no such process\n") == []


def test_addresses_as_the_kernel_writes_them():
    assert stack_dump.address("0100007F:1F90") == "127.0.0.1:8080"
    assert stack_dump.address("0000000000000000FFFF00000100007F:0016") == "::ffff:127.0.0.1:22"
