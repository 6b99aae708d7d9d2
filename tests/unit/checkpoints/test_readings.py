# SPDX-License-Identifier: Apache-2.0
"""Files that are read once for as long as they stay as they are."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import threading

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import readings


class Reader:
    """A file, and how often it was read."""

    def __init__(self, folder, monkeypatch):
        self.path, self.count, self.known = folder / "4.pdopt", 0, readings.Readings()
        self.path.write_text("abc")
        self.root = os.open(folder, os.O_RDONLY)
        # The file was changed long ago, by the clock of this test.
        self.later = 100.0
        real = readings.time.time
        monkeypatch.setattr(readings.time, "time", lambda: real() + self.later)

    def read(self, what="digest"):
        def count():
            self.count += 1
            return self.path.read_text()

        return self.known.take(what, self.root, ["4.pdopt"], count)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    made = Reader(tmp_path, monkeypatch)
    yield made
    os.close(made.root)


def test_a_file_that_stays_as_it_is_is_read_once(reader):
    assert [reader.read() for _time in range(3)] == ["abc"] * 3 and reader.count == 1
    reader.read("progress")
    assert reader.count == 2


def rewrite(path):
    """Write another content of the same size, and put the time of the content back."""
    before = path.stat()
    # The clock of some file systems goes in steps of 10 ms.
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_text("xyz")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path):
    path.with_suffix(".tmp").write_text("xyz")
    os.replace(path.with_suffix(".tmp"), path)


@pytest.mark.parametrize("change", [rewrite, replace])
def test_a_file_that_has_changed_is_read_again(reader, change):
    reader.read()
    change(reader.path)
    assert reader.read() == "xyz"


def test_what_has_just_been_written_is_read_again(reader):
    reader.later = -100.0
    assert [reader.read() for _time in range(2)] == ["abc"] * 2 and reader.count == 2


def test_what_changes_under_the_reading_is_read_again(reader):
    def read():
        rewrite(reader.path)
        return "torn"

    assert reader.known.take("digest", reader.root, ["4.pdopt"], read) == "torn"
    assert not reader.known.results
    # Back as it was, but for the time that no program can set.
    assert reader.read() == "xyz"


def test_threads_that_ask_at_once_read_once(reader, monkeypatch):
    began, go_on = threading.Event(), threading.Event()

    def read():
        reader.count += 1
        began.set()
        go_on.wait(10)
        return "abc"

    ask = functools.partial(reader.known.take, "digest", reader.root, ["4.pdopt"], read)
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        first = pool.submit(ask)
        assert began.wait(10)
        real = readings.concurrent.futures.Future.result
        monkeypatch.setattr(
            readings.concurrent.futures.Future,
            "result",
            lambda *words: go_on.set() or real(*words),
        )
        second = pool.submit(ask)
        assert go_on.wait(10)
        monkeypatch.undo()
        assert (first.result(10), second.result(10), reader.count) == ("abc", "abc", 1)


def test_a_reading_that_fails_is_not_kept_and_only_so_many_are(reader, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        reader.known.take("digest", reader.root, ["4.pdopt"], lambda: 1 / 0)
    monkeypatch.setattr(readings, "MOST", 3)
    for number in range(9):
        reader.read(number)
    assert reader.read("digest") == "abc" and len(reader.known.results) == 3


def test_a_file_that_is_not_there_is_no_reading(reader):
    reader.path.unlink()
    with pytest.raises(FileNotFoundError):
        reader.read()
