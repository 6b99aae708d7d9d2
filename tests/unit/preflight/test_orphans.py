# SPDX-License-Identifier: Apache-2.0
"""What earlier runs left on a node, found and ended by their mark alone; with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import processes
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import orphans

# Other tests run on this machine at the same time, each with processes of its own.
RUN = f"20261120-103501-orphans{os.getpid()}-1f2e"
OTHER = f"20261120-103501-other{os.getpid()}-1f2e"
OWN = f"TRAINYARD_TEST=orphans-{os.getpid()}"
SLEEP = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)",
]


@pytest.fixture(autouse=True)
def only_own_processes(monkeypatch):
    """Hide the processes that these tests have not started."""
    monkeypatch.setenv(*OWN.split("="))
    every = processes.pids
    monkeypatch.setattr(
        processes,
        "pids",
        lambda: [pid for pid in every() if OWN.encode() in processes.environment_of(pid)],
    )


def look(units=()):
    return orphans.look(
        None,
        "/b",
        {"units": [{"unit": unit, "state": "active", "description": ""} for unit in units]},
    )


def mine(told, run_id=RUN):
    return {item["pid"]: item for item in told["ours"] if item["run"] == run_id}


def judged(told):
    return orphans.judge([{"name": "node1"}], {"node1": {"orphans": told}}, {})


# --- looking


def test_what_a_run_left_is_found_by_its_mark_with_all_that_a_person_wants_to_know(marked):
    first, second = marked(RUN + "/1"), marked(RUN + "/2")
    marked(None), marked(f"{RUN}/x"), marked("trial/0")
    told = look()
    found = mine(told)
    assert sorted(found) == sorted([first.pid, second.pid]) and found[second.pid]["attempt"] == 2
    one = found[first.pid]
    assert (
        one["uid"] == os.getuid()
        and 0 <= one["age_s"] < 60
        and one["rss_mib"] > 0
        and "time.sleep(60)" in one["command"]
    )
    stop = [item for item in judged(told) if item["level"] == "stop" and RUN in item["text"]]
    assert (
        len(stop) == 1
        and stop[0]["nodes"] == ["node1"]
        and f"playbooks/stop.yml -e run={RUN} " in stop[0]["remedy"]
    )
    assert (
        f"2 processes of the run {RUN} left, up to " in stop[0]["text"]
        and "pid %d (attempt 1, " % first.pid in stop[0]["text"]
    )


def test_what_a_running_unit_holds_is_no_orphan(marked):
    process = marked(RUN + "/1")
    assert mine(look([attempt_dir.unit_name(RUN, 1)])) == {}
    assert process.pid in mine(
        look([attempt_dir.unit_name(RUN, 2)])
    )  # another attempt's unit does not hold it


def test_a_unit_that_started_since_the_units_were_listed_holds_its_processes(marked, monkeypatch):
    process = marked(RUN + "/1")
    place = (
        f"1:name=systemd:/user.slice/user@1000.service/app.slice/{attempt_dir.unit_name(RUN, 1)}\n"
    )
    monkeypatch.setattr(orphans, "read_text", lambda path: place)
    assert process.pid not in mine(look())


def test_another_users_run_is_none_of_ours(marked, monkeypatch):
    """Root sees the marks of all users; stop.yml as this user could not end them."""
    marked(RUN + "/1")
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert look()["ours"] == []


def test_what_is_not_listed_is_counted_and_no_run_of_it_is_passed_over(marked, monkeypatch):
    monkeypatch.setattr(orphans, "LISTED", 1)
    _young, old = marked(RUN + "/1"), marked(RUN + "/1")
    past = processes.describe  # one that looks an hour older is the one that is listed

    def aged(pid):
        told = past(pid)
        return told and dict(told, age_s=told["age_s"] + (3600 if pid == old.pid else 0))

    monkeypatch.setattr(processes, "describe", aged)
    marked(OTHER + "/1")
    told = look()
    assert list(mine(told)) == [old.pid] and told["more"]["ours"] == {RUN: 1, OTHER: 1}
    texts = [item["text"] for item in judged(told) if item["level"] == "stop"]
    assert any(
        text.startswith(f"2 processes of the run {RUN} left, up to 60 min old")
        and text.endswith("; 1 more")
        for text in texts
    )
    (other,) = [text for text in texts if f" {OTHER} " in text]
    assert other.startswith("a process of ") and "pid" not in other
    notes = judged({"more": {"ours": {}, "foreign": 7}})
    assert [(item["code"], item["level"]) for item in notes] == [
        ("orphans.foreign_training", "note")
    ]
    assert notes[0]["text"].startswith("7 more ")


@pytest.mark.parametrize(
    "words, trains",
    [
        (["/usr/bin/mpirun", "-n", "4", "a.out"], True),
        (["/opt/env/bin/python", "/opt/env/bin/fleetrun", "train.py"], True),
        (["python3", "-m", "paddle.distributed.launch", "train.py"], True),
        (["python", "-u", "-m", "torch.distributed.run", "x"], True),
        (["bash", "msrun", "x"], True),
        (["grep", "mpirun"], False),
        (["vi", "/home/a/fleetrun"], False),
        (["python", "train.py", "--note", "-m"], False),
        (["python", "-c", "print('torchrun')"], False),
        (["sshd: trainer"], False),
        ([], False),
    ],
)
def test_what_looks_like_a_training(words, trains):
    assert orphans.launches(words) is trains


def test_somebody_elses_training_is_told_and_no_more(marked):
    process = marked(None, ["bash", "-c", "echo 1; exec -a torchrun sleep 60"])
    while processes.words_of(process.pid)[:1] != ["torchrun"]:
        time.sleep(0.02)
    told = look()
    found = [item for item in told["foreign"] if item["pid"] == process.pid]
    assert len(found) == 1
    notes = [
        item for item in judged(dict(told, ours=[], foreign=found)) if "torchrun" in item["text"]
    ]
    assert (
        [item["level"] for item in notes] == ["note"]
        and "pid %d" % found[0]["pid"] in notes[0]["text"]
        and "left alone" in notes[0]["remedy"]
    )
    assert processes.end(RUN, grace=0.2) == [] and process.poll() is None


def test_older_facts_are_passed_over():
    assert orphans.judge([{"name": "node1"}], {"node1": {}}, {}) == []


def test_a_secret_in_a_command_line_is_masked(marked):
    process = marked(RUN + "/1", SLEEP + ["--api_key=abcdefgh12345", "\x1b[31m"])
    command = mine(look())[process.pid]["command"]
    assert "abcdefgh12345" not in command and "\x1b" not in command


# --- ending


def test_exactly_what_bears_the_mark_is_ended(marked):
    ours = [marked(RUN + "/1"), marked(RUN + "/2")]
    others = [marked(RUN + "/x"), marked(OTHER + "/1"), marked(None)]
    ended = processes.end(RUN)
    assert sorted((item["pid"], item["attempt"], item["signal"]) for item in ended) == sorted(
        [(ours[0].pid, 1, "TERM"), (ours[1].pid, 2, "TERM")]
    )
    assert [process.wait(5) for process in ours] == [-signal.SIGTERM, -signal.SIGTERM]
    assert [process.poll() for process in others] == [None, None, None]
    assert processes.end(RUN) == []


def test_of_one_attempt_where_that_is_asked(marked):
    first, second = marked(RUN + "/1"), marked(RUN + "/11")
    assert [item["pid"] for item in processes.end(RUN, 1)] == [first.pid] and second.poll() is None


def test_term_first_and_kill_for_what_does_not_listen(marked):
    stubborn, good = marked(RUN + "/1", STUBBORN), marked(RUN + "/1")
    since = time.monotonic()
    ended = {item["pid"]: item["signal"] for item in processes.end(RUN, grace=0.5)}
    assert ended == {stubborn.pid: "KILL", good.pid: "TERM"} and time.monotonic() - since >= 0.5
    assert processes.of_run(RUN) == [] and stubborn.wait(5) == -signal.SIGKILL


def test_what_is_started_meanwhile_is_ended_with_it(marked):
    marked(
        RUN + "/1",
        ["bash", "-c", "trap 'sleep 61 & exit' TERM; echo 1; while true; do sleep 0.1; done"],
    )
    processes.end(RUN, grace=1)
    assert processes.of_run(RUN) == []


def test_one_empty_look_is_not_the_end(marked, monkeypatch):
    stubborn, looks, of_run = marked(RUN + "/1", STUBBORN), [], processes.of_run

    def blinking(*given):
        looks.append(given)
        return [] if len(looks) == 2 else of_run(*given)

    monkeypatch.setattr(processes, "of_run", blinking)
    assert [item["signal"] for item in processes.end(RUN, grace=0.5)] == ["KILL"] and stubborn.wait(
        5
    ) == -signal.SIGKILL


def test_a_number_that_another_process_has_got_is_not_hit(marked):
    process = marked(RUN + "/1")
    started = processes.start_of(process.pid)
    assert not processes.send(process.pid, started + 1, RUN, None, signal.SIGKILL)
    assert not processes.send(process.pid, started, OTHER, None, signal.SIGKILL)
    assert not processes.send(process.pid, started, RUN, 2, signal.SIGKILL)
    assert process.poll() is None
    assert (
        processes.send(process.pid, started, RUN, 1, signal.SIGKILL)
        and process.wait(5) == -signal.SIGKILL
    )


def test_an_older_python_has_no_pidfd(marked, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    process = marked(RUN + "/1")
    assert [item["pid"] for item in processes.end(RUN)] == [process.pid] and process.wait(
        5
    ) == -signal.SIGTERM


def test_who_ends_a_run_does_not_end_itself(marked):
    """A stop that is called from inside a run's own process: the caller and those above it stay."""
    code = (
        "import sys, os; sys.path[:0] = %r\n"
        "from ansible_collections.trainyard.cluster.plugins.module_utils.base import processes;"
        " print(processes.end(%r, grace=0.2), flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code % (sys.path, RUN)],
        env=dict(os.environ, TRAINYARD_ATTEMPT=RUN + "/1"), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"
