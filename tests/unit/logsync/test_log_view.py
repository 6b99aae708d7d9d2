# SPDX-License-Identifier: Apache-2.0
"""The logs on the controller as lines: which logs there are, their ends, and the order of several.
A terminal can show them.
"""

from __future__ import annotations

import os
import resource
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import archive, log_view
from core_support import ROOT

RAISED = ROOT / "tests/fixtures/raised"
RUN = "20261120-190935-raise-1b3e"


def put(folder, name, text, mtime=None):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if mtime:
        os.utime(path, (mtime, mtime))
    return str(path)


def log(folder, name, node, text, mtime=None):
    home = f"{name}.{node}.log"
    return log_view.Log(home, name, node, put(folder, home, text, mtime), len(text))


# -- which there are
# -----------------------------------------------------------------------------------------------


def test_logs_are_found_with_rank_name_and_node(tmp_path):
    for name in ("rank-010.a.log", "rank-002.b.a.log", "launcher.a.log",
        "stray-workerlog.3.b.a.log", "ranks.a.jsonl", "exit.a.json",
                 "rank-002.b.a.log.1", "ranks.json", "rank-003.other.log",
                 ".stream.a"):  # fmt: skip
        put(tmp_path, name, "x")
    os.symlink("/etc/passwd", tmp_path / "rank-004.a.log")
    os.mkfifo(tmp_path / "rank-005.a.log")
    found = log_view.logs_in(str(tmp_path), ["a", "b.a"])
    assert [(one.rank, one.name, one.node) for one in found] == [
        (2, "rank-002", "b.a"), (10, "rank-010", "a"), (None, "launcher", "a"),
        (None, "stray-workerlog.3", "b.a")
    ]  # fmt: skip
    assert [one.label for one in found] == [
        "[2 b.a]",
        "[10 a]",
        "[launcher a]",
        "[stray-workerlog.3 b.a]",
    ]
    assert log_view.logs_in(str(tmp_path / "none"), ["a"]) == []


LOGS = [log_view.Log("", name, node, "", 0) for name, node in
        (("rank-000", "a"), ("rank-001", "a"), ("rank-003", "b"), ("launcher", "a"),
        ("launcher", "b"))]  # fmt: skip


@pytest.mark.parametrize(
    "ranks, node, labels",
    [
        (None, None, ["[0 a]", "[1 a]", "[3 b]"]),
        (None, "b", ["[3 b]"]),
        ([3], None, ["[3 b]"]),
        ([0, 3], None, ["[0 a]", "[3 b]"]),
        (["launcher"], None, ["[launcher a]", "[launcher b]"]),
        (["launcher"], "b", ["[launcher b]"]),
    ],
)
def test_choosing(ranks, node, labels):
    found, problem = log_view.select_logs(LOGS, ranks, node)
    assert ([one.label for one in found], problem) == (labels, None)


@pytest.mark.parametrize(
    "ranks, node, words",
    [
        ([7], None, "rank 7: there is no such log; ranks: 0-1, 3; others: launcher"),
        (["scheduler"], None, "rank scheduler: there is no such log"),
        ([3], "a", "rank 3 has no log on a; there is 3 on b"),
    ],
)
def test_what_there_is_not_is_named_with_what_there_is(ranks, node, words):
    assert log_view.select_logs(LOGS, ranks, node)[1].startswith(words)


# -- the end of a log
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("text", [b"", b"\n", b"a\n", b"a\nb\nc\n", b"a\n\n\nb\n", b"a\r\nb\n"])
def test_the_last_lines(tmp_path, text, count):
    whole = text.split(b"\n")[:-1]
    assert log_view.read_tail(put(tmp_path, "x", text), count) == (whole[-count:], len(text))


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_the_last_lines_whatever_the_blocks(tmp_path, monkeypatch, block):
    monkeypatch.setattr(log_view, "BLOCK", block)
    path = put(tmp_path, "x", b"one\ntwo\nthree\nand no end")
    assert log_view.read_tail(path, 2) == ([b"two", b"three"], 14)
    assert log_view.read_tail(path, 9) == ([b"one", b"two", b"three"], 14)


def test_a_line_without_an_end_is_not_written_yet(tmp_path):
    assert log_view.read_tail(put(tmp_path, "x", b"whole\nhalf"), 5) == ([b"whole"], 6)
    assert log_view.read_tail(put(tmp_path, "x", b"half"), 5) == ([], 0)


def test_very_long_lines_take_no_memory(tmp_path):
    path = tmp_path / "x"
    with open(path, "wb") as handle:
        handle.write(b"first\n")
        handle.seek(300 << 20)  # a hole: 300 MB of NUL in one line
        handle.write(b"\nlast\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert log_view.read_tail(str(path), 1)[0] == [b"last"]
    lines, _end = log_view.read_tail(str(path), 2)
    assert lines[-1] == b"last" and all(len(line) <= log_view.LINE for line in lines)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10  # in kB


# -- several at once
# -----------------------------------------------------------------------------------------------


def dated(second, text):
    return "[11/20 19:09:%02d] %s\n" % (second, text)


def test_lines_of_several_logs_come_in_the_order_of_their_dates(tmp_path):
    when = time.mktime((2026, 11, 20, 19, 10, 0, 0, 0, 0))
    one = log(
        tmp_path,
        "rank-000",
        "a",
        "head\n" + dated(1, "one") + "after one\n" + dated(9, "nine"),
        when,
    )
    two = log(
        tmp_path, "rank-001", "b", dated(2, "two") + "I1120 19:09:05.000000 5 x.cc:1] five\n", when
    )
    found, ends = log_view.merge_lines([one, two], 10)
    assert [line.decode().split("] ")[-1] for _log, line in found] == [
        "head",
        "one",
        "after one",
        "two",
        "five",
        "nine",
    ]
    assert ends == {"rank-000.a.log": one.bytes, "rank-001.b.log": two.bytes}


def test_a_line_without_a_date_stays_behind_the_one_before_it_although_that_is_not_shown(tmp_path):
    when = time.mktime((2026, 11, 20, 19, 10, 0, 0, 0, 0))
    one = log(tmp_path, "rank-000", "a", dated(3, "three") + "Traceback\nValueError\n", when)
    two = log(tmp_path, "rank-001", "b", dated(2, "two") + dated(7, "seven"), when)
    assert [line.split()[-1] for _log, line in log_view.merge_lines([one, two], 2)[0]] == [
        b"two",
        b"Traceback",
        b"ValueError",
        b"seven",
    ]


def test_a_nodes_time_zone_counts(tmp_path):
    when = time.mktime((2026, 11, 20, 19, 10, 0, 0, 0, 0))
    east = log(tmp_path, "rank-000", "a", "[2026/11/20 20:09:03] x INFO: three\n", when)
    west = log(
        tmp_path,
        "rank-001",
        "b",
        "[2026/11/20 19:09:02] x INFO: two\n[2026/11/20 19:09:04] x INFO: four\n",
        when,
    )
    words = [
        line.split()[-1]
        for _log, line in log_view.merge_lines([east, west], 9, {"a": 3600, "b": 0})[0]
    ]
    assert words == [b"two", b"three", b"four"]


def test_a_real_failure_reads_in_order():
    home = archive.LocalAttempt(str(RAISED), RUN)
    found, _ends = log_view.merge_lines(
        log_view.select_logs(home.logs(), None, None)[0], 200, home.zones
    )
    said = [f"{log.label} {line.decode()}" for log, line in found]
    assert len(said) == 79 + 26
    listens = next(at for at, line in enumerate(said) if "server starts to listen" in line)
    connects = next(
        at
        for at, line in enumerate(said)
        if line.startswith("[1 node2] ") and "Successfully connected" in line
    )
    raised = said.index("[1 node2] ValueError: image 000000012.jpg is truncated")
    ended = next(at for at, line in enumerate(said) if "Termination signal" in line)
    assert listens < connects < raised < ended


# -- safe to show
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw, shown",
    [
        (b"plain", "plain"),
        ("\u8bad\u7ec3".encode(), "\u8bad\u7ec3"),
        (b"\x1b[31mred\x1b[0m\x07", "\\x1b[31mred\\x1b[0m\\x07"),
        (b"a\xff\xfe\x00b", "a\\xff\\xfe\\x00b"),
        ("\u202etxt.exe".encode(), "\\u202etxt.exe"),
        (b"{{ lookup('pipe', 'id') }}", "{{ lookup('pipe', 'id') }}"),
        (b"windows\r", "windows"),
        (b" 10%|#\r 50%|#####\r100%|##########", "...100%|##########"),
        (b"password=hunter2", "password=********"),
        (b"the value is s3cr3t-by-name", "the value is ********"),
    ],
)
def test_a_line_is_safe_to_show(raw, shown):
    assert log_view.format_line(raw, (("X",), ("s3cr3t-by-name",))) == shown


def test_a_long_line_is_cut_with_a_mark():
    shown = log_view.format_line(b"x" * 10000)
    assert shown == "x" * 500 + "... [+9500 characters]"
    assert log_view.format_line(b"y" * 500) == "y" * 500


def test_a_secret_at_the_cut_is_masked():
    assert "hunter2" not in log_view.format_line(b"x" * 480 + b" password=hunter2hunter2hunter2")


def test_of_very_many_lines_the_last_are_shown_and_the_others_counted():
    view = log_view.View(LOGS, ((), ()))
    lines = view.lines("[0 a]", [b"line %d" % number for number in range(5000)])
    assert len(lines) == log_view.MOST + 1
    assert lines[0].split()[:5] == ["[0", "a]", "...", "4000", "lines"]
    assert lines[-1] == "[0 a]        line 4999"


# -- a log that grows
# ----------------------------------------------------------------------------------------------


def test_whole_lines_of_a_growing_log_come_once(tmp_path):
    path = put(tmp_path, "x", b"shown\n")
    growing = log_view.GrowingLog(path, 6)
    assert growing.read_lines() == []
    for text, lines in (
        (b"one\ntw", [b"one"]),
        (b"o\n\n", [b"two", b""]),
        (b"", []),
        (b"half", []),
    ):
        with open(path, "ab") as handle:
            handle.write(text)
        assert growing.read_lines() == lines
    assert growing.read_lines() == []


def test_a_log_that_was_replaced_or_cut_is_read_from_its_begin(tmp_path):
    path = put(tmp_path, "x", b"one\nhalf")
    growing = log_view.GrowingLog(path)
    assert growing.read_lines() == [b"one"]
    os.rename(path, path + ".1")
    put(tmp_path, "x", b"new\n")
    assert growing.read_lines() == [b"half"] and growing.read_lines() == [b"new"]
    put(tmp_path, "x", b"")
    assert growing.read_lines() == []
    put(tmp_path, "x", b"cut\n")
    assert growing.read_lines() == [b"cut"]


def test_the_hole_of_a_truncated_log_hides_no_line(tmp_path):
    log = tmp_path / "rank-000.node1.log"
    with open(log, "wb") as handle:
        handle.seek(3 * log_view.BLOCK)
        handle.write(b"first\nsecond\n")
    growing, came = log_view.GrowingLog(str(log)), []
    while lines := growing.read_lines():
        came += lines
    assert came == [b"first", b"second"] and log_view.read_tail(str(log), 5)[0] == came
    os.truncate(log, 100)
    assert log_view.merge_lines(log_view.logs_in(str(tmp_path), ["node1"]), 5, over=True)[0] == []


def test_a_log_that_is_not_there_yet(tmp_path):
    growing = log_view.GrowingLog(str(tmp_path / "x"))
    assert growing.read_lines() == []
    put(tmp_path, "x", b"now\n")
    assert growing.read_lines() == [b"now"]
    os.symlink("/etc/passwd", tmp_path / "y")
    assert log_view.GrowingLog(str(tmp_path / "y")).read_lines() == []


# -- where they lie
# ------------------------------------------------------------------------------------------------


def test_the_table_says_how_every_rank_is_and_where_its_log_lies():
    home = archive.LocalAttempt(str(RAISED), RUN)
    lines = log_view.describe_logs(home.index, home.logs(), f"runs/{RUN}/attempt-1")
    assert lines[1].split()[:5] == ["0", "node1", "stopped", "(SIGTERM)", "79"]
    assert lines[2].split()[:7] == ["1", "node2", "failed", "(exit", "code", "1)", "26"]
    assert lines[2].endswith(f"runs/{RUN}/attempt-1/rank-001.node2.log")
    assert lines[3].split()[:3] == ["launcher", "node1", "8055"]
    assert (
        lines[-1] == "rank 1 on node2: ValueError: image 000000012.jpg is truncated"
        f" (runs/{RUN}/attempt-1/rank-001.node2.log:26)"
    )


def test_what_stands_after_the_last_line_end_is_shown_when_the_run_is_over(tmp_path):
    path = put(tmp_path, "rank-000.node1.log", b"whole\nSegmentation fault")
    logs = log_view.logs_in(str(tmp_path), ["node1"])
    assert [line for _log, line in log_view.merge_lines(logs, 5)[0]] == [b"whole"]
    assert [line for _log, line in log_view.merge_lines(logs, 5, over=True)[0]] == [
        b"whole",
        b"Segmentation fault",
    ]
    assert [line for _log, line in log_view.merge_lines(logs, 1, over=True)[0]] == [
        b"Segmentation fault"
    ] and path


def test_a_file_that_was_put_in_the_place_of_its_own_beginning_is_read_on(tmp_path):
    path = put(tmp_path, "x", b"one\ntwo\n")
    log = log_view.GrowingLog(path)
    assert log.read_lines() == [b"one", b"two"] and log.read_lines() == []
    put(tmp_path, "y", b"one\ntwo\nthree\n")
    os.replace(tmp_path / "y", path)
    assert log.read_lines() == [b"three"] and log.read_lines() == []
    put(tmp_path, "y", b"another log of the same name\n")
    os.replace(tmp_path / "y", path)
    assert [log.read_lines(), log.read_lines(), log.read_lines()].count(
        [b"another log of the same name"]
    ) == 1


def test_a_line_of_several_blocks_does_not_stop_the_look(tmp_path, monkeypatch):
    monkeypatch.setattr(log_view, "BLOCK", 16)
    log = log_view.GrowingLog(put(tmp_path, "x", b"bar\r" * 40 + b"\nlast\n"))
    found = []
    while more := log.read_lines():
        found += more
    assert found[-1] == b"last" and len(found) == 2


def test_a_private_key_of_several_lines_is_not_shown(tmp_path):
    key = [
        "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
        "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU",
        "-----END OPENSSH " + "PRIVATE KEY-----",
    ]
    put(tmp_path, "rank-000.node1.log", "\n".join(["before", *key, "after", ""]).encode())
    (log,) = log_view.logs_in(str(tmp_path), ["node1"])
    hidden = log_view.MASK.encode()
    assert [line for _log, line in log_view.merge_lines([log], 9)[0]] == [
        b"before",
        hidden,
        hidden,
        hidden,
        b"after",
    ]
    view = log_view.View([log], ((), ()))
    shown = view.lines(log.label, [key[0].encode()]) + view.lines(
        log.label, [key[1].encode(), key[2].encode(), b"after"]
    )
    assert "b3Blbn" not in "".join(shown) and shown[-1].endswith("after")
