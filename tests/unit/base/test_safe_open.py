# SPDX-License-Identifier: Apache-2.0
"""A hostile training leaves files in its own directory. No file outside of it is read, no reader
waits, and no control sequence reaches the terminal.

rank_logs_info and the sender of logs have their own tests (test_rank_logs_info.py,
test_shipping.py). The tests here are of the live look and of the shared functions.
"""

from __future__ import annotations

import json
import os
import signal
import tracemalloc

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    ownership,
    status,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest, safe_open
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    RECORD_BYTES,
    read_json,
    update_file,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    model_collector,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    remote_outline,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.network import (
    check_lock,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.module_utils.rehearsal import (
    node_rehearsal,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import prune_scan
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import log_view
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import load
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import plan_origin
from core_support import RUN, attempt_files, compiled, put


@pytest.fixture
def attempt(tmp_path):
    """An attempt that has failed, with a console and a log: its path; everything outside is in
    tmp_path/outside.
    """
    put(
        tmp_path / "outside",
        {
            "secret": (
                "root:x:0:0 Epoch: [0] [ 0/48] learning_rate: 0.1 loss: 1.0 ips: 3.3 images/s\n"
            ),
            "log/workerlog.0": "outside\n",
        },
    )
    path = attempt_files(tmp_path, compiled(count=1, devices=1), "node1")
    files = {
        "log/workerlog.0": "inside\n",
        "logs.txt": "one\ntwo\n",
        "ranks.jsonl": '{"event": "start", "rank": 0, "pid": 7, "time": 1.0}\n',
    }
    put(
        path,
        dict(
            files, **{"exit.json": json.dumps({"service_result": "exit-code", "stopped_by": None})}
        ),
    )
    return path


def look(tmp_path):
    return status.read_status(lambda argv: (0, "", ""), str(tmp_path), RUN, 1, "node1")


def replaced(attempt, name, how, tmp_path):
    """Replace a file of the attempt by an object that is not a regular file."""
    path = os.path.join(attempt, name)
    os.unlink(path)
    if how == "link":
        os.symlink(tmp_path / "outside/secret", path)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        os.mkdir(path)
    else:
        os.symlink("/dev/zero", path)


@pytest.mark.parametrize("how", ["link", "pipe", "folder", "device"])
@pytest.mark.parametrize("name", ["log/workerlog.0", "logs.txt", "exit.json", "ranks.jsonl"])
def test_a_look_reads_nothing_but_files_of_the_attempt(attempt, tmp_path, name, how):
    replaced(attempt, name, how, tmp_path)
    found = look(tmp_path)
    assert (
        found["found"] and "root:x" not in json.dumps(found) and found["ranks"][0]["step"] is None
    )


def test_a_log_folder_that_is_a_link_is_not_entered(attempt, tmp_path):
    os.rename(os.path.join(attempt, "log"), os.path.join(attempt, "was"))
    os.symlink(tmp_path / "outside/log", os.path.join(attempt, "log"))
    assert look(tmp_path)["ranks"][0]["log_bytes"] == 0


@pytest.mark.parametrize(
    "path",
    ["../outside/secret", "log/../../x", "/etc/passwd", "", ".", "log//workerlog.0", "log/\0"],
)
def test_a_path_stays_inside(attempt, path):
    with pytest.raises((OSError, ValueError)):
        os.close(safe_open.open_in(attempt, path))


@pytest.mark.parametrize("how", ["pipe", "folder", "device"])
def test_only_regular_files_are_opened(attempt, tmp_path, how):
    replaced(attempt, "logs.txt", how, tmp_path)
    with pytest.raises(OSError):
        os.close(safe_open.open_in(attempt, "logs.txt"))


def test_the_console_s_first_line_is_whole_or_not_shown(attempt, tmp_path):
    """Half a secret cannot be recognised."""
    value = "canary-" * 3000
    made = json.loads(open(os.path.join(attempt, "plan.json"), encoding="utf-8").read())
    put(
        attempt,
        {
            "plan.json": json.dumps(dict(made, env=dict(made["env"], MY_TOKEN=value))),
            "logs.txt": "token " + value + "\nlast\n",
        },
    )
    assert look(tmp_path)["console_tail"] == ["last"]
    put(attempt, {"logs.txt": "\x1b[2J{{ 7 * 7 }}\u202e said " + value + "\n"})
    assert look(tmp_path)["console_tail"] == []
    put(attempt, {"logs.txt": "\x1b[2J{{ 7 * 7 }}\u202e said\nmore\n"})
    assert look(tmp_path)["console_tail"] == ["\\x1b[2J{{ 7 * 7 }}\\u202e said", "more"]


@pytest.mark.parametrize(
    "raw", [b"[]", b'"x"', b"\xff", b"[" * 100000, b"", b'{"event": [1]}\n[]\n7\nnull\n']
)
def test_records_that_are_none_are_none(attempt, tmp_path, raw):
    for name in ("exit.json", "ranks.jsonl"):
        with open(os.path.join(attempt, name), "wb") as handle:
            handle.write(raw)
    assert look(tmp_path)["found"]


def test_a_run_that_holds_hostile_things_is_measured_and_judged_without_following_them(
    attempt, tmp_path
):
    folder = os.path.dirname(attempt)
    os.symlink("/", os.path.join(attempt, "output"))
    os.mkfifo(os.path.join(attempt, "pipe"))
    size, odd = prune_scan.measure(folder)
    assert size < 1 << 20 and odd is None
    assert (
        model_collector.newest_name(attempt, ["output", "output/etc"], {"best": "*", "last": "*"})
        == ""
    )
    assert attempt_dir.list_attempts(str(tmp_path)) == [(RUN, 1)]


# --- files at a path of our own


def strange(place, kind):
    """Put something else than a file of JSON at a path."""
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        os.symlink("/dev/zero", place)
    elif kind == "link":
        other = place.with_name("other")
        other.write_text('{"attempts": [], "version": 2, "a": 1}')
        os.symlink(other, place)
    elif kind == "huge":
        with open(place, "wb") as handle:
            handle.truncate(RECORD_BYTES + 1)
    elif kind == "deep":
        place.write_text("[" * 200_000)
    else:
        place.mkdir()


READERS = {
    "read_json": lambda place: read_json(place / "plan.json"),
    "plan_of": lambda place: run_json.read_plan(place, 1),
    "record": lambda place: run_json.read(place),
    "report": lambda place: load.mapping(place / "plan.json"),
    "marker": lambda place: python_env.inspect_environment(place, ".")["marker"],
    "rival": lambda place: check_lock.read_note(place, "7"),
    "holder": lambda place: ownership.read_record(place, "20261120-103501-x-1f2e", 1),
}


@pytest.mark.parametrize("kind", ["pipe", "device", "link", "huge", "deep", "folder"])
@pytest.mark.parametrize("reader", sorted(READERS))
def test_what_is_no_record_is_not_read(tmp_path, reader, kind):
    """A pipe would never end. A device would fill the memory. A link would show another file."""
    attempt = tmp_path / "runs" / "20261120-103501-x-1f2e" / "attempt-1"
    (tmp_path / "env").mkdir()
    attempt.mkdir(parents=True)
    for place in (
        tmp_path / "plan.json",
        tmp_path / "run.json",
        tmp_path / "env" / python_env.MARKER,
        tmp_path / "yardcheck-7.over",
        attempt / "attempt.json",
    ):
        (place.parent / "other").unlink(missing_ok=True)
        strange(place, kind)
    signal.alarm(20)  # a pipe that is waited for ends this process
    try:
        assert not READERS[reader](tmp_path)
    except (OSError, ValueError, RecursionError):
        assert reader == "report"  # it says so in the report
    finally:
        signal.alarm(0)


def test_a_record_is_read_up_to_its_bound(tmp_path):
    (tmp_path / "x").write_text("[1]")
    assert read_json(tmp_path / "x", 3) == [1] and read_json(tmp_path / "x", 2) is None
    assert safe_open.read_file(tmp_path / "x", 3) == b"[1]"


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_a_log_that_is_no_file_is_not_shown(tmp_path, kind):
    place = tmp_path / "rank-0.node1.log"
    strange(place, kind)
    signal.alarm(20)
    try:
        for read in (lambda: log_view.read_tail(place, 5), lambda: load.lines_of(place, 1, 2)):
            with pytest.raises(OSError):
                read()
        assert log_view.GrowingLog(place).read_lines() == [] and node_rehearsal.text_of(place) == ""
        if kind != "link":
            with pytest.raises(OSError):
                manifest.file_sha256(place)
            assert remote_outline.read_config_texts(tmp_path, place.name, [place.name]) == {}
        # what is written in its place is whole, and what the link meant is as it was
        assert (
            update_file(str(place), "text")
            and place.read_text() == "text"
            and not place.is_symlink()
        )
    finally:
        signal.alarm(0)


def test_what_is_no_plan_takes_no_plans_place(tmp_path):
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "plan.json").write_text("{}")
    os.mkfifo(tmp_path / "attempt-1" / "plan.json")
    signal.alarm(20)
    run_json.install_plan(str(tmp_path), 1)
    signal.alarm(0)
    assert (tmp_path / "plan.json").read_text() == "{}" and sorted(os.listdir(tmp_path)) == [
        "attempt-1",
        "plan.json",
    ]


def test_a_small_file_takes_little_memory_whatever_its_bound(tmp_path):
    (tmp_path / "x").write_text("[1]")
    tracemalloc.start()
    try:
        assert (
            safe_open.read_file(tmp_path / "x", 4 << 30) == b"[1]"
            and tracemalloc.get_traced_memory()[1] < 16 << 20
        )
    finally:
        tracemalloc.stop()


def test_a_note_of_a_stop_that_is_a_pipe_starts_nothing(tmp_path):
    os.mkfifo(tmp_path / "stop.json")
    signal.alarm(20)
    with pytest.raises(attempt_dir.AttemptError):
        attempt_dir.prepare(str(tmp_path), "{}", "0" * 64, "node1", RUN, 1, {})
    signal.alarm(0)


def test_a_mark_of_a_plan_that_is_a_pipe_is_none(tmp_path):
    os.mkfifo(tmp_path / plan_origin.MARK)
    signal.alarm(20)
    assert plan_origin.is_trusted(b"", {"plan_sha256": "x"}, 1, tmp_path) is False
    signal.alarm(0)
