# SPDX-License-Identifier: Apache-2.0
"""receiving and streaming: what the real sender sends is fetched to the controller byte for byte
and once, regardless of what happens to log, stream or reader.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import stat
import subprocess
import sys
import time
import zlib

import pytest
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import connection_loader
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    log_receiver,
    log_stream,
)
from core_support import renamed

ARGV = log_receiver.sender_argv(sys.executable)
RANK0 = "rank-000.node1.log"


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not within %d s" % seconds
        time.sleep(0.02)


def content(path):
    return path.read_bytes() if path.exists() else b""


def same(attempt, home):
    """Return a function that says whether the controller's log of rank 0 equals the node's."""
    return lambda: content(home / RANK0) == content(attempt / "log" / "workerlog.0")


def restarted(running, times):
    return running.restarts == times and running.process.poll() is None


@pytest.fixture
def attempt(make_attempt):
    """node1's attempt; its log of rank 0 has a line."""
    return make_attempt("node1", logs={0: "zero\n"})


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home" / "attempt-1"


@pytest.fixture
def stream(attempt, home, monkeypatch):
    """Start a stream from the attempt to home; it ends with the test."""
    monkeypatch.setattr(log_stream, "PAUSES", (0,))
    started = []

    def call(argv=ARGV, **spec):
        started.append(
            log_stream.Stream(
                argv,
                dict({"attempt_dir": str(attempt), "follow": True, "interval": 0.02}, **spec),
                str(home),
                "node1",
            )
        )
        started[-1].start()
        return started[-1]

    yield call
    for each in started:
        each.finish(10)
        assert not each.is_alive() and (each.process is None or each.process.returncode is not None)


def frame(home=RANK0, offset=0, data=b"x", **more):
    return (
        json.dumps(
            dict(
                {
                    "file": "log/workerlog.0",
                    "home": home,
                    "offset": offset,
                    "bytes": len(data),
                    "time": 1.0,
                },
                **more,
            )
        ).encode()
        + b"\n"
        + data
    )


def consume(receiver, raw, stall=5):
    """Let a receiver read a sender's frames from a pipe."""
    return consume_bytes(receiver, zlib.compress(raw), stall)


def consume_bytes(receiver, raw, stall=5):
    """Let a receiver read these bytes from a pipe."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"],
        stdin=subprocess.PIPE,
        stdout=write,
    )
    os.close(write)
    try:
        process.stdin.write(raw)
        process.stdin.close()
        return receiver.receive(read, stall)
    finally:
        os.close(read)
        process.wait()


def test_a_growing_log_comes_home_byte_for_byte_and_each_byte_once(attempt, home, stream):
    running, written = stream(), b"zero\n"
    with open(attempt / "log" / "workerlog.0", "ab", buffering=0) as log:
        for _number in range(30):
            more = os.urandom(5000)
            written += more
            log.write(more)
            wait_for(same(attempt, home))
        log.write(b"last words")
    assert running.finish(60) is True
    assert content(home / RANK0) == written + b"last words"
    assert running.receiver.bytes == len(written) + 10 and running.restarts == 0
    assert (
        stat.S_IMODE((home / RANK0).stat().st_mode) == 0o600
        and stat.S_IMODE(home.stat().st_mode) == 0o700
    )
    assert sorted(path.name for path in home.iterdir()) == [RANK0]


def test_a_stream_that_is_killed_resumes_where_it_was(attempt, home, stream):
    running, written = stream(), 5
    with open(attempt / "log" / "workerlog.0", "ab", buffering=0) as log:
        for number in range(4):
            log.write(os.urandom(100000))
            written += 100000
            wait_for(same(attempt, home))
            running.process.kill()
            wait_for(functools.partial(restarted, running, number + 1))
            assert "exit code -9" in running.problem
    assert running.finish(60) is True
    assert content(home / RANK0) == (attempt / "log" / "workerlog.0").read_bytes()
    # No byte crosses the wire twice.
    assert running.receiver.bytes == written


def test_another_reader_goes_on_where_the_first_was_killed(attempt, home, stream):
    """The process that followed is killed in the middle. Only the files remain of it."""
    log = attempt / "log" / "workerlog.0"
    log.write_bytes(os.urandom(40 << 20))
    code = (
        "import sys; from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync"
        " import log_receiver as receiving; r ="
        " receiving.Receiver(sys.argv[1], node='node1');p = receiving.start_sender(sys.argv[3:],"
        " {'attempt_dir': sys.argv[2], 'node': 'node1', 'have': r.describe_logs()});"
        " r.receive(p.stdout.fileno())"
    )
    path = os.pathsep.join(sys.path)
    prepare = "import ansible.module_utils as m; m.__path__.append({!r});".format(
        os.path.dirname(os.path.dirname(log_receiver.__file__))
    )
    first = subprocess.Popen(
        [sys.executable, "-c", prepare + code, str(home), str(attempt), *ARGV],
        env=dict(os.environ, PYTHONPATH=path),
    )
    wait_for(lambda: len(content(home / RANK0)) > 0)
    first.kill()
    first.wait()
    had = len(content(home / RANK0))
    running = stream()
    wait_for(lambda: running.process)
    assert running.finish(60) is True and content(home / RANK0) == log.read_bytes()
    assert running.receiver.bytes == len(log.read_bytes()) - had


def test_what_was_brought_of_a_log_that_was_truncated_or_replaced_is_kept(attempt, home, stream):
    log, running = attempt / "log" / "workerlog.0", stream()
    wait_for(lambda: content(home / RANK0) == b"zero\n")
    log.write_bytes(b"")
    with open(log, "ab") as handle:
        handle.write(b"second life\n")
    wait_for(lambda: content(home / RANK0) == b"second life\n")
    renamed(log, attempt / "log" / "away", b"third life\n")
    wait_for(lambda: content(home / RANK0) == b"third life\n")
    running.finish(60)
    assert (
        content(home / (RANK0 + ".1")) == b"zero\n"
        and content(home / (RANK0 + ".2")) == b"second life\n"
    )
    assert [(event["event"], event["kept"]) for event in running.receiver.events] == [
        ("truncated", RANK0 + ".1"),
        ("replaced", RANK0 + ".2"),
    ]


def test_a_hole_that_truncation_leaves_under_a_writer_without_append_is_no_bytes_on_the_disk_at_home(
    attempt, home, stream
):
    log = attempt / "log" / "workerlog.0"
    with open(log, "wb", buffering=0) as writer:
        writer.seek(8 << 20)
        writer.write(b"first\n")
        running = stream()
        wait_for(same(attempt, home))
        os.truncate(log, 0)
        writer.write(b"second\n")
        wait_for(same(attempt, home))
    assert running.finish(60) is True
    assert (
        content(home / RANK0) == bytes((8 << 20) + 6) + b"second\n"
        and content(home / (RANK0 + ".1")) == bytes(8 << 20) + b"first\n"
    )
    for path in (home / RANK0, home / (RANK0 + ".1")):
        assert path.stat().st_blocks * 512 < 1 << 20


def test_what_is_kept_takes_no_name_that_is_taken(home):
    receiver = log_receiver.Receiver(str(home), node="node1")
    (home / (RANK0 + ".1")).write_bytes(b"of an earlier follow")
    consume(
        receiver,
        frame(data=b"abc")
        + json.dumps({"event": "replaced", "file": "f", "home": RANK0}).encode()
        + b"\n"
        + frame(data=b"new"),
    )
    assert [content(home / (RANK0 + end)) for end in ("", ".1", ".2")] == [
        b"new",
        b"of an earlier follow",
        b"abc",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "ranks.json", "../run.json", "rank-000.node2.log", "/etc/passwd", ".stream.node1",
        "rank-000.node1.log.1", "rank-000.node1.log\n",
        "checkpoint/best.log", "", None, 3, "plan.json", "rank-000.node1x.log", "exit.node2.json",
    ],
)  # fmt: skip
def test_a_node_can_write_its_own_logs_and_nothing_else(home, name):
    receiver = log_receiver.Receiver(str(home), node="node1")
    before = sorted(home.iterdir())
    for raw in (
        frame(home=name),
        json.dumps({"event": "replaced", "file": "f", "home": name}).encode() + b"\n",
    ):
        with pytest.raises(log_receiver.StreamError, match="not its own"):
            consume(receiver, raw)
    assert sorted(home.iterdir()) == before


@pytest.mark.parametrize(
    "raw, said",
    [
        (b"Last login: Fri Nov 20\n", "no frame"),
        (b"[1]\n", "no frame"),
        (b"\x1b[2J" * 40000, "no frame"),
        (frame(offset=-1), "offset -1"),
        (frame(bytes=True), "True bytes"),
        (frame(bytes=1 << 40), "bytes"),
        (frame(offset=7), "0 bytes are here"),
        (frame(data=b"xyz")[:-1], "broke off"),
        (frame()[:20], "broke off"),
    ],
)
def test_what_is_no_frame_ends_the_stream_and_touches_nothing(home, raw, said):
    receiver = log_receiver.Receiver(str(home), node="node1")
    with pytest.raises(log_receiver.StreamError, match=said) as caught:
        consume(receiver, raw)
    assert "\x1b" not in str(caught.value) and content(home / RANK0) == b""


def test_a_link_at_home_is_not_written_through(home, tmp_path):
    receiver = log_receiver.Receiver(str(home), node="node1")
    (home / RANK0).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        consume(receiver, frame())
    assert not (tmp_path / "elsewhere").exists()


def test_bytes_that_come_twice_are_written_once(home):
    receiver = log_receiver.Receiver(str(home), node="node1")
    (home / RANK0).touch(mode=0o644)
    assert (
        consume(
            receiver, frame(data=b"abcdef") + frame(offset=3, data=b"defgh") + b'{"event": "end"}\n'
        )
        is True
    )
    assert (
        content(home / RANK0) == b"abcdefgh"
        and stat.S_IMODE((home / RANK0).stat().st_mode) == 0o600
    )


@pytest.mark.parametrize(
    "raw", [b"Welcome to node1\n", zlib.compress(frame(data=b"a"))[:-9] + b"x" * 99]
)
def test_what_is_no_stream_of_zlib_ends_it(home, raw):
    receiver = log_receiver.Receiver(str(home), node="node1")
    with pytest.raises(log_receiver.StreamError, match="no frame"):
        consume_bytes(receiver, raw)


def test_a_stream_that_has_ended_is_not_read_on(home):
    """What its sender writes after it would only fill the memory."""
    receiver, (read, write) = log_receiver.Receiver(str(home), node="node1"), os.pipe()
    os.write(write, zlib.compress(frame(data=b"a")) + b"x" * 1000)
    assert receiver.receive(read, 0.5) is False
    assert content(home / RANK0) == b"a"
    os.close(read)
    os.close(write)


def test_frames_that_bring_nothing_new_are_not_read_for_ever(home, monkeypatch):
    """A few bytes of zlib stand for as many as one likes, and each frame takes time here."""
    monkeypatch.setattr(log_receiver, "MOST_IDLE", 100_000)
    beat = b'{"event": "beat", "time": 1}\n'
    for nothing in (beat * 20_000, frame(data=b"a" * 1000) * 1_000):
        receiver = log_receiver.Receiver(str(home), node="node1")
        with pytest.raises(log_receiver.StreamError, match="nothing new"):
            consume(receiver, nothing)
        receiver.close()
    receiver = log_receiver.Receiver(str(home), node="node1")
    news = [frame(offset=1000 * at, data=b"b" * 1000) for at in range(1, 100)]
    consume(receiver, b"".join(beat * 1_000 + one for one in news))
    assert len(content(home / RANK0)) == 100_000


def test_few_bytes_that_stand_for_many_take_little_memory():
    read, write = os.pipe()
    os.write(write, zlib.compress(b"x" * 30_000_000, 9))
    os.close(write)
    reader = log_receiver._Reader(read, 5)
    with pytest.raises(log_receiver.StreamError):
        reader.header()
    assert len(reader.buffer) < 2 * log_receiver.BLOCK
    os.close(read)


def test_one_directory_has_one_receiver_a_node(home):
    first = log_receiver.Receiver(str(home), node="node1")
    with pytest.raises(log_receiver.Busy):
        log_receiver.Receiver(str(home), node="node1")
    log_receiver.Receiver(str(home), node="node2").close()
    first.close()
    log_receiver.Receiver(str(home), node="node1").close()
    assert list(home.iterdir()) == []


def test_silence_is_no_reason_to_wait_for_ever(home):
    receiver, (read, write) = log_receiver.Receiver(str(home), node="node1"), os.pipe()
    with pytest.raises(log_receiver.StreamError, match="nothing came"):
        receiver.receive(read, 0.1)
    os.close(read)
    os.close(write)


def test_whole_lines_are_handed_on_with_their_rank(home):
    found = []
    receiver = log_receiver.Receiver(
        str(home), on_lines=lambda *line: found.append(line), node="node1"
    )
    consume(
        receiver,
        frame(data=b"a\nb")
        + frame(offset=3, data=b"c\n\xff\0\n")
        + frame(home="launcher.node1.log", data=b"said\nrest"),
    )
    end = (
        json.dumps({"event": "truncated", "file": "f", "home": "launcher.node1.log"}).encode()
        + b"\n"
    )
    consume(receiver, end + frame(home="launcher.node1.log", data=b"again\n"))
    assert [(home, rank, node, lines) for home, rank, node, _time, lines in found] == [
        (RANK0, 0, "node1", [b"a"]),
        (RANK0, 0, "node1", [b"bc", b"\xff\0"]),
        ("launcher.node1.log", None, "node1", [b"said"]),
        ("launcher.node1.log", None, "node1", [b"rest"]),
        ("launcher.node1.log", None, "node1", [b"again"]),
    ]


def test_a_line_of_megabytes_costs_no_memory_and_is_whole_in_the_file(home):
    found = []
    receiver = log_receiver.Receiver(
        str(home), on_lines=lambda *line: found.extend(line[4]), node="node1"
    )
    for number in range(40):
        receiver.apply_frame(
            {"file": "f", "home": RANK0, "offset": number << 16, "bytes": 1 << 16, "time": 1.0},
            b"x" * (1 << 16),
        )
        assert len(receiver._rest[RANK0]) <= log_receiver.LINE
    receiver.apply_frame(
        {"file": "f", "home": RANK0, "offset": 40 << 16, "bytes": 3, "time": 1.0}, b"\ny\n"
    )
    assert [len(line) for line in found] == [log_receiver.LINE, 1] and (
        home / RANK0
    ).stat().st_size == (40 << 16) + 3


def test_what_is_kept_of_a_sender_is_bounded_and_safe_to_show(home):
    found = []
    receiver = log_receiver.Receiver(
        str(home), on_lines=lambda *line: found.extend(line[4]), node="node1"
    )
    receiver.apply_frame(
        {"file": "f", "home": RANK0, "offset": 0, "bytes": 1 << 17, "time": 1.0},
        b"x" * (1 << 17) + b"\n",
    )
    assert [len(line) for line in found] == [log_receiver.LINE]
    for _number in range(300):
        receiver.apply_frame({"event": "x" * 99, "file": "f" * 999, "home": RANK0})
    assert (
        len(receiver.events) == 100
        and len(receiver.events[0]["file"]) == 300
        and len(receiver.events[0]["event"]) == 20
    )
    end = json.dumps({"event": "end", "problems": ["a\x1b[2J\nb"] * 99}).encode() + b"\n"
    assert consume(receiver, end) and receiver.problems == ["a\\x1b[2J\\nb"] * 20


def test_a_pipe_in_the_place_of_a_log_is_not_written_to(home):
    receiver = log_receiver.Receiver(str(home), node="node1")
    os.mkfifo(home / RANK0)
    with pytest.raises(OSError, match="regular"):
        consume(receiver, frame())


def test_lines_without_files_begin_with_a_whole_one():
    found = []
    receiver = log_receiver.Receiver(None, on_lines=lambda *line: found.extend(line[4]))
    consume(
        receiver,
        frame(offset=100, data=b"half of a line\nwhole\n") + frame(offset=121, data=b"next\n"),
    )
    assert found == [b"whole", b"next"]


def test_a_stream_that_cannot_begin_says_why_and_is_tried_again(attempt, home, stream, tmp_path):
    flag = tmp_path / "flag"
    script = f'[ -e {flag} ] || {{ touch {flag}; echo no route to host >&2; exit 255; }}; exec "$@"'
    running = stream(["sh", "-c", script, "sh", *ARGV])
    wait_for(lambda: content(home / RANK0) == b"zero\n")
    assert "exit code 255" in running.problem and running.problem.endswith(": no route to host")
    assert running.restarts == 1


def test_a_full_disk_at_home_is_told_and_nothing_is_raised(attempt, home, stream, monkeypatch):
    monkeypatch.setattr(
        log_receiver.os,
        "pwrite",
        lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    running = stream()
    wait_for(lambda: running.problem)
    assert "No space left" in running.problem and running.is_alive()


@pytest.mark.parametrize("ssh_args", ["-o ControlMaster=auto -o ControlPersist=60s", "-C"])
def test_the_stream_takes_ansibles_own_way_to_the_node(ssh_args):
    play = PlayContext()
    play.remote_addr = "198.51.100.7"
    connection = connection_loader.get("ssh", play, "/dev/null")
    connection.set_options(
        direct={
            "host": "198.51.100.7",
            "port": 2222,
            "remote_user": "trainer",
            "ssh_args": ssh_args,
            "ssh_common_args": "-J jump",
        }
    )
    argv = log_receiver.ssh_argv(connection, "/usr/bin/python3.8")
    assert (
        argv[0] == "ssh"
        and argv[-2] == "198.51.100.7"
        and "Port=2222" in argv
        and argv[argv.index("-J") + 1] == "jump"
    )
    assert "BatchMode=yes" in argv and "StrictHostKeyChecking=no" not in argv
    assert subprocess.run(
        ["sh", "-c", "printf '%s\\n' " + argv[-1]], capture_output=True, text=True, check=True
    ).stdout.split("\n")[:6] == ["nice", "-n", "19", "/usr/bin/python3.8", "-I", "-c"]


def test_a_connection_is_open_where_ansibles_socket_lies(tmp_path):
    connection = connection_loader.get("ssh", PlayContext(), "/dev/null")
    options = {
        "host": "198.51.100.7",
        "ssh_args": "-o ControlMaster=auto -o ControlPersist=60s",
        "control_path_dir": str(tmp_path),
    }
    connection.set_options(direct=options)
    assert not log_receiver.is_connected(connection)
    with socket.socket(socket.AF_UNIX) as master:
        master.bind(connection.control_path % {"directory": tmp_path})
        assert log_receiver.is_connected(connection)
        own = connection_loader.get("ssh", PlayContext(), "/dev/null")
        own.set_options(direct=dict(options, control_path=f"{tmp_path}/%%h"))
        assert not log_receiver.is_connected(own)
    without = connection_loader.get("ssh", PlayContext(), "/dev/null")
    without.set_options(direct={"host": "198.51.100.7", "ssh_args": "-C"})
    assert not log_receiver.is_connected(without)


# --- bounds: what a node sends without end


def bounded(home, **bounds):
    return log_receiver.Receiver(
        str(home), node="node1", quota=quota.Quota(**dict({"keep_free": 0}, **bounds))
    )


def disk(path):
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def test_a_node_that_sends_too_much_is_cut_off_at_the_bound(home):
    receiver = bounded(home, most_bytes=10_000)
    raw = b"".join(frame(offset=1000 * number, data=b"x" * 1000) for number in range(100))
    with pytest.raises(quota.QuotaError, match="trainyard_collect_bytes"):
        consume(receiver, raw)
    assert disk(home) == 10_000
    receiver.close()
    # what is here counts, also in another attempt, with a hole, and kept under another name
    for name in ("attempt-1", "attempt-2"):
        again = bounded(home.parent / name, most_bytes=10_000)
        with pytest.raises(quota.QuotaError):
            again.apply_frame(json.loads(frame("ranks.node1.jsonl").split(b"\n")[0]), b"x")
        again.close()
    receiver = bounded(home.parent / "attempt-2", most_bytes=20_000)
    with pytest.raises(quota.QuotaError):
        consume(
            receiver, b"".join(frame(offset=5000 * number, data=bytes(5000)) for number in range(9))
        )
    receiver.close()
    # another node has its own bound
    other = log_receiver.Receiver(str(home), node="node2", quota=quota.Quota(10_000, keep_free=0))
    assert consume(other, frame("rank-001.node2.log")) is False
    other.close()


def test_files_without_end_and_a_full_disk_are_bounds_too(home):
    receiver = bounded(home, most_files=5)
    with pytest.raises(quota.QuotaError, match="trainyard_collect_files"):
        consume(
            receiver,
            b"".join(frame("stray-%d.node1.log" % number, data=b"") for number in range(300)),
        )
    assert len(list(home.glob("*.log"))) == 5
    receiver.close()
    receiver = bounded(home, keep_free=1 << 50)
    with pytest.raises(quota.QuotaError, match="trainyard_collect_free"):
        consume(receiver, frame(data=b"x"))
    receiver.close()
    assert disk(home) == 0


def test_a_file_that_begins_again_without_end_is_kept_so_often_and_no_more(home):
    receiver = bounded(home)
    again = json.dumps({"event": "truncated", "file": "f", "home": RANK0}).encode() + b"\n"
    with pytest.raises(quota.QuotaError, match="began again"):
        consume(receiver, (frame() + again) * 300)
    receiver.close()
    assert len(list(home.glob(RANK0 + ".*"))) == quota.KEPT_COPIES


def test_a_stream_that_was_cut_off_does_not_try_again(attempt, home, monkeypatch):
    monkeypatch.setattr(log_stream, "PAUSES", (0,))
    (attempt / "log" / "workerlog.0").write_bytes(os.urandom(1 << 20))
    spec = {"attempt_dir": str(attempt), "follow": True, "interval": 0.02}
    running = log_stream.Stream(ARGV, spec, str(home), "node1", quota.Quota(100_000, keep_free=0))
    running.start()
    running.join(60)
    assert (
        not running.is_alive() and running.restarts == 0 and running.process.returncode is not None
    )
    state = running.state()
    assert (
        state["cut"] is True
        and "trainyard_collect_bytes" in state["problem"]
        and disk(home) <= 100_000
    )


def test_a_link_in_the_place_of_a_log_is_not_written_through(home, tmp_path):
    (tmp_path / "mine").write_text("mine")
    receiver = bounded(home)
    for name, target in ((RANK0, tmp_path / "mine"), ("launcher.node1.log", tmp_path / "none")):
        os.symlink(target, home / name)
        with pytest.raises(OSError):
            consume(receiver, frame(name))
    receiver.close()
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "none").exists()
