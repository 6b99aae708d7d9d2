# SPDX-License-Identifier: Apache-2.0
"""The last lines of a log that name what ended its process, where no event in it does."""

from __future__ import annotations

import line_cases
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import closing_lines
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.error_scanner import (
    AFTER_ERROR,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.parser import LogScan, Table

TABLE = Table({"step": {"has": "Epoch", "line": r"Epoch: \[(?P<epoch>\d+)\]"}})
TORN = (
    '  File "train.py", line 9, in main\n    step()\nOSError: [Errno 28] No space left on device\n'
)
LIBRARY = "[ERROR] HCCP(7,python):2026-01-21-16:59:39.962.565 [ra_host.c:480]tid:9,"
FULL = "write failed: No space left on device\n"


def explained(log, code=1, signal=None):
    """Return the error that explains the end of a process by its log, or None."""
    scan = LogScan(TABLE)
    scan.feed(log.encode())
    return scan.finish((code, signal))["first_error"]


def cause(log, code=1, signal=None):
    error = explained(log, code, signal)
    return error and error["cause"]


@pytest.mark.parametrize(
    "log, expected",
    [
        (TORN, "disk_full"),
        ("[rank1]: ValueError: bad anchors\n", "python_exception"),
        (FULL, "disk_full"),
        ("shards lost: Keys [0/1] are not ready\n", "store_timeout"),
        (LIBRARY + "ra_x(1) : a thing that no entry knows\n", "collective_error"),
        (LIBRARY.replace("HCCP", "RUNTIME") + "X:a thing failed\n", "accelerator_call"),
        # a word about the thing says more than a code, and than a condition of all
        ("ACL error, the error code is : 507011\n" + FULL, "disk_full"),
        ("Timeout waiting for key: 0/0\n" + FULL, "disk_full"),
    ],
)
def test_the_last_words_are_found(log, expected):
    error = explained("working\n" + log)
    assert (error["cause"], error["closing"]) == (expected, True)
    assert not (error["handled"] or error["survived"])


@pytest.mark.parametrize(
    "log",
    [
        "nothing to see\n",
        "all done, no errors\n",
        "DeprecationWarning: an old name, not found in the next version\n",
        "[INFO] retried, the error was: No space left on device\n",
        "the cache is off, ignored: No space left on device\n",
        "Architecture.Backbone.name: this bundle has SmallConv\n",
        # the training went on
        FULL + "[2026-11-20 23:52:38] mindocr INFO - going on\n",
        FULL + "working\nworking\nworking\n",
        FULL + "Epoch: [3]\n",
        FULL + "\n" * closing_lines.REACH,
    ],
)
def test_other_lines_are_no_last_words(log):
    assert explained("working\n" + log) is None


def test_words_about_other_ranks_count_even_where_lines_follow():
    log = "Keys [0/1] are not ready, timed out\nworking\nworking\nworking\n"
    assert cause(log) == "store_timeout"


@pytest.mark.parametrize(
    "code, signal, expected",
    [
        (1, None, "disk_full"),
        (134, None, "disk_full"),
        (255, None, "disk_full"),
        (None, "SIGABRT", "disk_full"),
        (0, None, None),
        (3, None, None),
        (137, None, None),
        (None, "SIGKILL", None),
        (None, "SIGTERM", None),
    ],
)
def test_only_some_ends_leave_words(code, signal, expected):
    assert cause(FULL, code, signal) == expected


def test_an_exception_without_its_header_needs_the_exit_code_of_one():
    assert cause("BadSample\nValueError: bad anchors\n", 1) == "python_exception"
    assert cause("BadSample\nValueError: bad anchors\n", 134) is None


def test_lines_of_an_event_are_no_last_words():
    caught = (
        "Traceback (most recent call last):\n"
        '  File "/site-packages/ppdata/cache.py", line 41, in load\n    return read(path)\n'
        "OSError: [Errno 28] No space left on device\n"
    )
    error = explained(caught)
    assert error["handled"] and not error.get("closing")
    below = "data.yml: Permission denied\n"
    assert cause(caught + below) == "disk_full"  # which may be of its message
    assert cause(caught + "\n" * AFTER_ERROR + below) == "permission"


def test_last_words_weigh_as_little_as_silence(tmp_path):
    """Of a rank that has them and one that has none no one is named. A real event beats both."""
    silent, words = "working\n", "working\n" + FULL
    for name, logs, first, rank, said in (
        ("first", [silent, words], 1, None, "unknown"),
        ("later", [silent, words], 0, None, "unknown"),
        ("event", [line_cases.FAILED, words], 1, 0, "python_exception"),
    ):
        line_cases.lay(tmp_path / name, logs, first)
        decided = line_cases.corpus.decide(tmp_path / name)
        assert (decided["rank"], decided["cause"]) == (rank, said), decided["text"]


def test_last_words_about_the_others_accuse_nobody(tmp_path):
    line_cases.lay(tmp_path, ["Keys [0/1] are not ready, timed out\n", line_cases.LOST], 0)
    assert line_cases.corpus.decide(tmp_path)["rank"] is None


def test_a_sender_that_no_process_can_be_is_none():
    text = (
        "FatalError: `Segmentation fault` is detected by the operating system.\n"
        "  [SignalInfo: *** SIGSEGV (@0x0) received by PID 7 (TID 0x7f) from PID {} ***]\n"
    )
    head = "----------------------\nError Message Summary:\n----------------------\n"
    assert explained(head + text.format(18446744071879807120))["sender"] is None
    assert explained(head + text.format(4711))["sender"] == 4711
