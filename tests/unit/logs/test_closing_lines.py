# SPDX-License-Identifier: Apache-2.0
"""The last lines of a log that name what ended its process, where no event in it does."""

from __future__ import annotations

import line_cases
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import closing_lines
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.error_scanner import (
    AFTER_ERROR,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.parser import (
    CLOSING,
    LogScan,
    Table,
)

TABLE = Table({"step": {"has": "Epoch", "line": r"Epoch: \[(?P<epoch>\d+)\]"}})
TORN = (
    '  File "train.py", line 9, in main\n    step()\nOSError: [Errno 28] No space left on device\n'
)
LIBRARY = "[ERROR] HCCP(7,python):2026-01-21-16:59:39.962.565 [ra_host.c:480]tid:9,"
ECC = "CUDA error: uncorrectable ECC error encountered\n"
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
        (ECC, "device_error"),
        ("shards lost: Keys [0/1] are not ready\n", "store_timeout"),
        ("worker: botocore.exceptions.FullError: No space left on device\n", "disk_full"),
        (LIBRARY + "ra_x(1) : a thing that no entry knows\n", "collective_error"),
        (LIBRARY.replace("HCCP", "RUNTIME") + "X:a thing failed\n", "accelerator_call"),
        (LIBRARY.replace("HCCP", "GE") + "open failed: Permission denied\n", "permission"),
        # a word about the thing says more than a code, and than a condition of all
        ("ACL error, the error code is : 507011\n" + ECC, "device_error"),
        ("Timeout waiting for key: 0/0\n" + ECC, "device_error"),
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
        "[INFO] it was CUDA error: out of memory\n",
        "CUDA error: out of memory, ignored\n",
        "CUDA error: out of memory, skipping the batch\n",
        "cuda: out of memory, failed, taking the CPU instead\n",
        "wandb: ERROR Failed: CUDA out of memory\n",
        "rank 0 died (uncorrectable ECC error), I fail as well\n",
        "uncorrectable ECC errors: 0\n",
        "[ERROR] no label for 'uncorrectable ECC error.jpg'\n",
        "Architecture.Backbone.name: this bundle has SmallConv\n",
        # words that any text may hold
        FULL,
        "cp: cannot stat 'x': No such file or directory\n",
        # no exceptions
        "ValueError: bad anchors\n",
        "  indented\nTimeout: 1800, CUDA out of memory\n".replace("CUDA out of memory", "on"),
        # of a progress bar only its last drawing stands there
        "CUDA error: out of memory\r 100%\n",
        # the training went on
        ECC + "[2026-11-20 23:52:38] mindocr INFO - going on\n",
        ECC + "working\nworking\nworking\n",
        # what sys.exit prints
        ECC + "labels.json does not exist\ndata/labels.json: No such file or directory\n",
        ECC + "Epoch: [3]\n",
        ECC + "\n" * closing_lines.REACH,
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
        (1, None, "device_error"),
        (134, None, "device_error"),
        (255, None, "device_error"),
        (None, "SIGABRT", "device_error"),
        (0, None, None),
        (3, None, None),
        (137, None, None),
        (None, "SIGKILL", None),
        (None, "SIGTERM", None),
    ],
)
def test_only_some_ends_leave_words(code, signal, expected):
    assert cause(ECC, code, signal) == expected


def test_an_exception_without_its_header_needs_the_exit_code_of_one():
    assert cause(TORN, 1) == "disk_full"
    assert cause(TORN, 134) is None
    assert explained("ValueError: bad anchors\n")["closing"]  # the first line of a log


def test_lines_of_an_event_are_no_last_words():
    caught = (
        "Traceback (most recent call last):\n"
        '  File "/site-packages/ppdata/cache.py", line 41, in load\n    return read(path)\n'
        "OSError: [Errno 28] No space left on device\n"
    )
    error = explained(caught)
    assert error["handled"] and not error.get("closing")
    assert cause(caught + ECC) == "disk_full"  # which may be of its message
    assert cause(caught + "\n" * AFTER_ERROR + ECC) == "device_error"


def test_last_words_weigh_as_little_as_silence(tmp_path):
    """Of a rank that has them and one that has none no one is named. A real event beats both."""
    silent, words = "working\n", "working\n" + ECC
    for name, logs, first, rank, said in (
        ("first", [silent, words], 1, None, "unknown"),
        ("later", [silent, words], 0, None, "unknown"),
        ("event", [line_cases.FAILED, words], 1, 0, "python_exception"),
    ):
        line_cases.lay(tmp_path / name, logs, first)
        decided = line_cases.corpus.decide(tmp_path / name)
        assert (decided["rank"], decided["cause"]) == (rank, said), decided["text"]


@pytest.mark.parametrize("peer", [line_cases.LOST, "working\n"])
@pytest.mark.parametrize("first", [0, 1])
def test_last_words_about_the_others_accuse_nobody(tmp_path, peer, first):
    """Neither their own rank, nor a silent one that did not surely end before it."""
    line_cases.lay(tmp_path, ["Keys [0/1] are not ready, timed out\n", peer], first)
    assert line_cases.corpus.decide(tmp_path)["rank"] is None


def test_half_a_line_is_no_last_word():
    assert explained("x" * CLOSING + " CUDA error: uncorrectable ECC error\n") is None
    assert explained("x" * CLOSING + "\n" + ECC)["closing"]


def test_a_sender_that_no_process_can_be_is_none():
    text = (
        "FatalError: `Segmentation fault` is detected by the operating system.\n"
        "  [SignalInfo: *** SIGSEGV (@0x0) received by PID 7 (TID 0x7f) from PID {} ***]\n"
    )
    head = "----------------------\nError Message Summary:\n----------------------\n"
    assert explained(head + text.format(18446744071879807120))["sender"] is None
    assert explained(head + text.format(4711))["sender"] == 4711


def test_threads_of_a_runtime_may_report_below_an_own_word():
    thread = "[INFO] PS(1141,7ff9,python):2026-11-25-23:53:15.982.446 [ps/x.cc:318] Start] done\n"
    assert cause(ECC + "train.txt: No such file or directory\n" + thread) is None
    assert cause(ECC + "train.txt: No such file or directory\n" + "lost: xx\n") == "device_error"
