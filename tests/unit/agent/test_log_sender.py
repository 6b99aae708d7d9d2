# SPDX-License-Identifier: Apache-2.0
"""log_sender: the real sender as a process, on real files that grow, shrink, are renamed, removed,
or are not what they seem.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import io
import json
import os
import sys
import time
import zlib

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import log_sender
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import log_receiver
from core_support import ROOT, compiled, renamed
from unit.suites.test_launcher_table import mindocr

ARGV = log_receiver.sender_argv(sys.executable)


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not within %d s" % seconds
        time.sleep(0.02)


def parsed(raw):
    """Return (frames as (header, bytes), events) of what a sender wrote."""
    frames, events = [], []
    while raw:
        line, _end, raw = raw.partition(b"\n")
        header = json.loads(line)
        if "event" in header:
            events.append(header)
        else:
            frames.append((header, raw[: header["bytes"]]))
            raw = raw[header["bytes"] :]
    return frames, events


class Sent:
    """A sender, and what it has written so far."""

    def __init__(self, attempt, errors, **spec):
        self.process = log_receiver.start_sender(
            ARGV,
            dict({"attempt_dir": str(attempt), "node": "node1", "interval": 0.02}, **spec),
            errors,
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        self.raw, self.stream, self.wire_bytes = b"", zlib.decompressobj(), 0

    def more(self):
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            self.wire_bytes += len(data)
            self.raw += self.stream.decompress(data)
        return self.raw

    def bytes_of(self, home):
        """What came of a file since it last began."""
        frames, _events = parsed(self.whole())
        found = b""
        for header, data in frames:
            if header["home"] == home:
                found = (found if header["offset"] else b"") + data
        return found

    def whole(self):
        """What came so far, as far as frames are complete."""
        raw, position = self.more(), 0
        while True:
            end = raw.find(b"\n", position)
            if end < 0:
                return raw[:position]
            after = end + 1 + json.loads(raw[position:end]).get("bytes", 0)
            if after > len(raw):
                return raw[:position]
            position = after

    def events(self):
        return [event["event"] for event in parsed(self.whole())[1] if event["event"] != "beat"]

    def end(self):
        """Close its standard input; return (frames, events) of everything."""
        self.process.stdin.close()
        wait_for(lambda: (self.more(), self.process.poll())[1] is not None)
        while self.raw != self.more():
            pass
        return parsed(self.raw)


@pytest.fixture
def send(tmp_path):
    started = []
    with open(tmp_path / "errors", "wb") as errors:

        def call(attempt, **spec):
            started.append(Sent(attempt, errors, **spec))
            return started[-1]

        yield call
    for sent in started:
        sent.process.kill()
        sent.process.wait()
        sent.process.stdin.close()
        sent.process.stdout.close()
    assert (tmp_path / "errors").read_bytes() == b""


@pytest.fixture
def attempt(make_attempt):
    """node1's attempt with two ranks whose logs have a line each."""
    return make_attempt("node1", logs={0: "zero\n", 1: "one\n"}, console="console\n")


def homes(frames):
    return sorted({header["home"] for header, _data in frames})


def test_the_names_at_home_are_those_that_collect_gives(make_attempt):
    plans = {name: mindocr(name, 2) for name in ("msrun", "mpirun", "rank_table")}
    plans.update(paddle=compiled(), cpu=mindocr("mpirun", 2, accelerator="cpu"))
    for launcher, plan in plans.items():
        for node in sorted({rank["node"] for rank in plan["ranks"]}):
            attempt = make_attempt(f"{node}-{launcher}", plan=plan, events=[], exit={})
            for file in log_sender.named(plan, node):
                (attempt / file).parent.mkdir(parents=True, exist_ok=True)
                (attempt / file).write_text("{}")
            collected = {
                item["file"]: item["home"] for item in evidence.collect(str(attempt), node)["files"]
            }
            assert log_sender.named(plan, node) == collected, launcher


def test_everything_that_is_there_is_sent_once(attempt, send):
    (attempt / "log" / "workerlog.1").write_bytes(os.urandom(3 * log_sender.CHUNK + 5))
    (attempt / "log" / "workerlog.7").write_bytes(b"a rank that nobody planned\n")
    frames, events = send(attempt, follow=False).end()
    assert homes(frames) == [
        "launcher.node1.log",
        "rank-000.node1.log",
        "rank-001.node1.log",
        "stray-workerlog.7.node1.log",
    ]
    raw = (attempt / "log" / "workerlog.1").read_bytes()
    assert (
        b"".join(data for header, data in frames if header["home"] == "rank-001.node1.log") == raw
    )
    assert [event["event"] for event in events] == ["end"]
    assert max(len(data) for _header, data in frames) == log_sender.CHUNK


def test_what_is_at_home_does_not_cross_again(attempt, send, tmp_path):
    log = attempt / "log" / "workerlog.0"
    log.write_bytes(b"x" * 10000 + b"end\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / "rank-000.node1.log").write_bytes(b"x" * 10000)
    have = log_receiver.Receiver(str(home), node="node1").describe_logs()
    frames, events = send(attempt, follow=False, have=have).end()
    mine = [
        (header["offset"], data)
        for header, data in frames
        if header["home"] == "rank-000.node1.log"
    ]
    assert mine == [(10000, b"end\n")] and [event["event"] for event in events] == ["end"]


@pytest.mark.parametrize(
    "now, said",
    [
        (b"y" * 9000, "truncated"),
        (b"y" + b"x" * 9999, "replaced"),
        (b"x" * 9999 + b"yx", "replaced"),
    ],
)
def test_what_is_at_home_and_is_something_else_begins_again(attempt, send, tmp_path, now, said):
    (attempt / "log" / "workerlog.0").write_bytes(now)
    home = tmp_path / "home"
    home.mkdir()
    (home / "rank-000.node1.log").write_bytes(b"x" * 10000)
    have = log_receiver.Receiver(str(home), node="node1").describe_logs()
    sent = send(attempt, follow=False, have=have)
    _frames, events = sent.end()
    assert [event["event"] for event in events] == [said, "end"] and sent.bytes_of(
        "rank-000.node1.log"
    ) == now


def test_a_log_is_followed_as_it_grows_and_sent_to_its_end(attempt, send):
    sent = send(attempt, follow=True)
    with open(attempt / "log" / "workerlog.0", "ab", buffering=0) as log:
        for number in range(20):
            log.write(b"line %d\n" % number)
            wait_for(
                lambda line=b"line %d\n" % number: sent.bytes_of("rank-000.node1.log").endswith(
                    line
                )
            )
        log.write(b"last words")
    frames, _events = sent.end()
    whole = b"".join(data for header, data in frames if header["home"] == "rank-000.node1.log")
    assert whole == (attempt / "log" / "workerlog.0").read_bytes()


@pytest.mark.parametrize("first", [b"", b"!"])
def test_a_truncated_log_begins_again_also_where_it_has_outgrown_what_was_sent(
    attempt, send, first
):
    log = attempt / "log" / "workerlog.0"
    log.write_bytes(b"before\n" * 100)
    sent = send(attempt, follow=True)
    wait_for(lambda: sent.bytes_of("rank-000.node1.log") == b"before\n" * 100)
    now = b"after\n" * 1000 if first else b"after\n"
    os.truncate(log, 0)
    with open(log, "ab") as handle:  # the same file, longer than ever
        handle.write(now)
    wait_for(lambda: sent.bytes_of("rank-000.node1.log") == now)
    assert sent.events() == ["truncated"]


def test_a_log_that_grows_again_beyond_what_was_sent_while_it_is_read_is_not_its_continuation(
    attempt, monkeypatch
):
    log, out, read = attempt / "log" / "workerlog.0", io.BytesIO(), os.pread
    log.write_bytes(b"before\n" * 100)
    sender = log_sender.Sender({"attempt_dir": str(attempt), "node": "node1", "follow": True}, out)
    sender.round()
    mine, after = sender.logs["log/workerlog.0"], b"after\n" * 2000

    def pread(descriptor, count, offset):
        """Let the log begin again as late as it can: just before its next bytes are read."""
        if descriptor == mine.descriptor and offset == mine.offset:
            with open(log, "r+b") as handle:
                handle.truncate(0)
                handle.write(after)
        return read(descriptor, count, offset)

    os.utime(log, (1, 1))
    monkeypatch.setattr(log_sender.os, "pread", pread)
    sender.round()
    monkeypatch.undo()
    for _round in range(3):
        sender.round()
    frames, events = parsed(out.getvalue())
    mine = [data for header, data in frames if header["home"] == "rank-000.node1.log"]
    assert mine == [b"before\n" * 100, b"", after]
    assert [event["event"] for event in events] == ["truncated"]


def test_a_log_that_begins_again_with_the_same_lines_after_another_head_begins_again(attempt):
    log, out = attempt / "log" / "workerlog.0", io.BytesIO()
    lines = b"retry\n" * log_sender.EDGE
    log.write_bytes(b"pid 1\n" + lines)
    sender = log_sender.Sender({"attempt_dir": str(attempt), "node": "node1", "follow": True}, out)
    sender.round()
    with open(log, "r+b") as handle:
        handle.truncate(0)
        handle.write(b"pid 2\n" + lines * 2)
    sender.round()
    frames, events = parsed(out.getvalue())
    assert [event["event"] for event in events] == ["truncated"]
    assert frames[-1][1] == b"pid 2\n" + lines * 2


def test_lines_travel_compressed(attempt, send):
    lines = b"".join(b"2026-11-29 epoch %d loss %.4f\n" % (at, at / 7) for at in range(40_000))
    (attempt / "log" / "workerlog.0").write_bytes(lines)
    sent = send(attempt)
    wait_for(lambda: sent.bytes_of("rank-000.node1.log") == lines)
    assert sent.wire_bytes < len(lines) / 2


def test_a_renamed_log_is_sent_to_its_end_before_the_new_one_begins(attempt, send):
    log = attempt / "log" / "workerlog.0"
    sent = send(attempt, follow=True)
    with open(log, "ab", buffering=0) as old:
        wait_for(lambda: sent.bytes_of("rank-000.node1.log") == b"zero\n")
        renamed(log, attempt / "log" / "kept", b"new\n")
        old.write(b"last words of the old one\n")
        wait_for(lambda: sent.bytes_of("rank-000.node1.log") == b"new\n")
    mine = [
        (header["offset"], data)
        for header, data in parsed(sent.whole())[0]
        if header["home"] == "rank-000.node1.log"
    ]
    assert mine == [(0, b"zero\n"), (5, b"last words of the old one\n"), (0, b"new\n")]
    assert sent.events() == ["replaced"]


def test_a_renamed_log_is_not_left_while_it_is_written(attempt):
    log, out = attempt / "log" / "workerlog.0", io.BytesIO()
    sender = log_sender.Sender({"attempt_dir": str(attempt), "node": "node1", "follow": True}, out)
    sender.round()
    renamed(log, attempt / "log" / "kept", b"new\n")
    mine = sender.logs["log/workerlog.0"]
    mine.grown = time.monotonic() + 1000  # a moment ago, however slow this machine is
    sender.round()
    with open(attempt / "log" / "kept", "ab") as old:
        old.write(b"late\n")
    sender.round()
    mine.grown = time.monotonic() - 1000
    sender.round()
    sender.round()
    frames, events = parsed(out.getvalue())
    assert [data for header, data in frames if header["home"] == "rank-000.node1.log"] == [
        b"zero\n",
        b"late\n",
        b"new\n",
    ]
    assert [event["event"] for event in events] == ["replaced"]


def test_a_log_that_was_renamed_at_the_very_end_is_sent_whole(attempt, send):
    log = attempt / "log" / "workerlog.0"
    sent = send(attempt, follow=True)
    wait_for(lambda: sent.bytes_of("rank-000.node1.log") == b"zero\n")
    with open(log, "ab", buffering=0) as old:
        old.write(b"last words\n")
        renamed(log, attempt / "log" / "kept", b"new" * log_sender.CHUNK)
    frames, _events = sent.end()
    assert (
        b"".join(data for header, data in frames if header["home"] == "rank-000.node1.log")
        == b"zero\nlast words\n" + b"new" * log_sender.CHUNK
    )


def test_an_empty_log_is_sent_too(attempt, send):
    log = attempt / "log" / "workerlog.0"
    (attempt / "log" / "workerlog.1").write_bytes(b"")
    sent = send(attempt, follow=True)
    wait_for(lambda: sent.bytes_of("rank-000.node1.log"))
    os.truncate(log, 0)
    frames, events = sent.end()
    assert [event["event"] for event in events] == ["truncated", "end"] and sent.bytes_of(
        "rank-000.node1.log"
    ) == b""
    assert ["rank-001.node1.log", 0] in [
        [header["home"], header["bytes"]] for header, _data in frames
    ] and frames[-1][0]["bytes"] == 0


def test_a_removed_log_is_told_once_and_read_while_it_is_written(attempt, send):
    log = attempt / "log" / "workerlog.0"
    sent = send(attempt, follow=True)
    with open(log, "ab", buffering=0) as old:
        wait_for(lambda: sent.bytes_of("rank-000.node1.log") == b"zero\n")
        os.unlink(log)
        wait_for(lambda: sent.events() == ["gone"])
        old.write(b"more\n")
        wait_for(lambda: sent.bytes_of("rank-000.node1.log") == b"zero\nmore\n")
    assert [event["event"] for event in sent.end()[1] if event["event"] != "beat"] == [
        "gone",
        "end",
    ]


def test_nothing_is_followed_out_of_the_attempt_and_no_device_is_opened(attempt, send, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "workerlog.3").write_text("SECRET")
    log = attempt / "log"
    for name in ("workerlog.0", "workerlog.1"):
        (log / name).unlink()
    (log / "workerlog.0").symlink_to(secret / "workerlog.3")
    os.mkfifo(log / "workerlog.1")  # to open one for reading waits for a writer
    (log / "workerlog.2").mkdir()
    (log / "workerlog.4\n").write_text("SECRET")
    (attempt / "logs.txt").unlink()
    (attempt / "logs.txt").symlink_to("/dev/zero")
    (attempt / "away").symlink_to(secret)
    files = {
        "../../../secret/workerlog.3": "rank-003.node1.log",
        str(secret / "workerlog.3"): "rank-004.node1.log",
        "away/workerlog.3": "rank-005.node1.log",
    }
    sent = send(attempt, follow=False, files=files)
    frames, events = sent.end()
    assert frames == [] and b"SECRET" not in sent.raw
    told = {text.partition(":")[0] for text in events[-1]["problems"]}
    assert told == {"log/workerlog.0", "log/workerlog.1", "log/workerlog.2", "logs.txt", *files}
    log.rename(attempt / "was")
    log.symlink_to(secret)
    assert send(attempt, follow=False).end()[0] == []


def test_a_log_whose_name_the_controller_refuses_is_not_sent(attempt, send):
    plan = json.loads((attempt / "plan.json").read_text())
    plan["launcher"]["rank_log"] = "log/%s.{local_rank}" % ("x" * (safe_names.PART_BYTES - 3))
    (attempt / "plan.json").write_text(json.dumps(plan))
    for number in ("77", "777"):
        (attempt / "log" / "{}.{}".format("x" * (safe_names.PART_BYTES - 3), number)).write_text(
            "x\n"
        )
    sent = [
        home for home in homes(send(attempt, follow=False).end()[0]) if home.startswith("stray-x")
    ]
    assert len(sent) == 1 and safe_names.at_home("node1").fullmatch(sent[0])


def test_whole_environments_are_never_sent(attempt, send):
    names = ["envlog.0", "backup_env.0.json", "default.abcdef.log", "default.gpu.log"]
    for name in names:
        (attempt / "log" / name).write_text("SECRET")
    files = {f"log/{name}": f"stray-{name}.node1.log" for name in names}
    sent = send(attempt, follow=False, files=files)
    frames, events = sent.end()
    assert homes(frames) == ["launcher.node1.log", "rank-000.node1.log", "rank-001.node1.log"]
    assert b"SECRET" not in sent.raw and len(events[-1]["problems"]) == len(names)


def test_a_log_of_gigabytes_does_not_hold_the_others_up_nor_fill_the_memory(attempt, send):
    with open(attempt / "log" / "workerlog.0", "wb") as log:
        log.truncate(2 << 30)
    sent = send(attempt, follow=True)
    wait_for(lambda: b'"home": "rank-001.node1.log"' in sent.more())
    assert len(sent.raw) < 16 << 20
    with open("/proc/%d/status" % sent.process.pid, encoding="ascii") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak < 60 << 10, "%d KiB" % peak


def test_the_sender_ends_with_its_reader(attempt, send):
    sent = send(attempt, follow=True)
    wait_for(lambda: sent.bytes_of("rank-000.node1.log"))
    sent.process.stdout.close()  # the connection is gone; its standard input is open still
    (attempt / "log" / "workerlog.0").write_bytes(b"more, which nobody reads\n")
    assert sent.process.wait(60) == 0


def test_only_the_end_of_a_log_is_sent_where_that_is_asked(attempt, send):
    (attempt / "log" / "workerlog.0").write_bytes(b"x" * 5000)
    frames, _events = send(attempt, follow=False, last=10).end()
    assert [
        (header["offset"], data)
        for header, data in frames
        if header["home"] == "rank-000.node1.log"
    ] == [(4990, b"x" * 10)]


def test_a_log_that_appears_later_is_found(attempt, send):
    plan = json.loads((attempt / "plan.json").read_text())
    (attempt / "log" / "workerlog.0").unlink()
    (attempt / "plan.json").unlink()
    sent = send(attempt, follow=True)
    (attempt / "plan.json").write_text(json.dumps(plan))
    wait_for(lambda: sent.bytes_of("rank-001.node1.log") == b"one\n")
    (attempt / "log" / "workerlog.0").write_bytes(b"late\n")
    (attempt / "log" / "workerlog.9").write_bytes(b"unplanned\n")
    wait_for(
        lambda: (
            sent.bytes_of("rank-000.node1.log") == b"late\n"
            and sent.bytes_of("stray-workerlog.9.node1.log") == b"unplanned\n"
        )
    )


def test_the_units_end_is_sent_last_since_it_is_written_twice(attempt, send):
    sent = send(attempt, follow=True)
    for data in (b'{"peers": {}}', b'{"peers": {"node2": "stopped"}}'):
        (attempt / "exit.json").write_bytes(data)
        (attempt / "log" / "workerlog.0").write_bytes(data)
        wait_for(lambda now=data: sent.bytes_of("rank-000.node1.log") == now)
    assert sent.bytes_of("exit.node1.json") == b""
    sent.end()
    assert sent.bytes_of("exit.node1.json") == b'{"peers": {"node2": "stopped"}}'


def test_days_of_looking_leave_no_file_open(attempt):
    sender = log_sender.Sender(
        {"attempt_dir": str(attempt), "node": "node1", "follow": True}, io.BytesIO()
    )
    open_files = []
    gc.collect()  # other tests' pipes must not close in between
    for _look in range(20):
        sender.listed = -log_sender.LIST_SECONDS
        sender.round()
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert len(set(open_files)) == 1
    for log in sender.logs.values():
        if log.descriptor is not None:
            log.close()


def test_it_needs_nothing_of_ours_on_the_node():
    source = (ROOT / "plugins" / "module_utils" / "agent" / "log_sender.py").read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    assert imported - {"__future__"} <= sys.stdlib_module_names
