# SPDX-License-Identifier: Apache-2.0
"""The same words in a log, once as what ended a process and once as what it lived through."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import parser

MAIN = (
    'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in <module>\n    main()\n'
)
CODE = 'Traceback (most recent call last):\n  File "/srv/cache.py", line 41, in load\n    read()\n'
POOL = "/site-packages/paddle/io/dataloader/dataloader_iter.py"
LOADER = f'Traceback (most recent call last):\n  File "{POOL}", line 603, in _thread_loop\n'
THREAD = "Exception in thread Thread-7 (report):\n"
SUMMARY = "----------------------\nError Message Summary:\n----------------------\n"
DEVICE = (
    SUMMARY + "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 2GB.\n"
    " (at /paddle/paddle/fluid/memory/cuda_allocator.cc:95)\n"
)
QUEUE = "SystemError: (Fatal) Blocking queue is killed because the data reader raises an exception."
BUS = "ERROR: Unexpected BUS error encountered in DataLoader worker.\n"
KILLED = "SystemError: (Fatal) DataLoader process (pid 7) exited is killed by signal: %s.\n"
WARN = "node1:7:9 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
FAULT = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: 'a.json'\n"
GROUP = (
    "  + Exception Group Traceback (most recent call last):\n"
    '  |   File "/srv/train.py", line 3, in <module>\n  |     main()\n'
    "  | ExceptionGroup: two (2 sub-exceptions)\n"
    "  +-+---------------- 1 ----------------\n    | OSError: [Errno 28] No space left on device\n"
    "    +------------------------------------\n"
)


def error_of(text, code=None, signal=None):
    """The first error of a log whose process ended in a way."""
    found = parser.LogScan(parser.Table())
    found.feed(text.encode())
    return found.finish((code, signal))["first_error"]


def is_end(error):
    """Whether an error is taken for what ended its process."""
    return bool(error) and not (error["handled"] or error["survived"])


# Name: the words, the end that they announce, and ends that show them to be of another process or
# to be handled.
WORDS = {
    "a traceback": (MAIN + "KeyError: 'a'\n", (1, None), [(7, None), (None, "SIGKILL")]),
    "what a shell says of a kill": (
        "run.sh: line 3:  4711 Killed                  python train.py\n",
        (137, None),
        [(1, None), (3, None), (None, "SIGTERM")],
    ),
    "what a shell says of a crash": (
        "Segmentation fault (core dumped)\n",
        (139, None),
        [(1, None), (134, None), (None, "SIGKILL")],
    ),
    "a usage error": (
        "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --bad\n",
        (2, None),
        [(1, None), (3, None), (None, "SIGKILL")],
    ),
    "a script that is not there": (
        "python: can't open file '/srv/train.py': [Errno 2] No such file or directory\n",
        (2, None),
        [(1, None), (None, "SIGKILL")],
    ),
    "a module that is not there": (
        "/usr/bin/python3: No module named paddle\n",
        (1, None),
        [(2, None), (None, "SIGKILL")],
    ),
    "an error of native code": (DEVICE, (1, None), [(3, None), (None, "SIGKILL")]),
    "a fault of the interpreter": (
        FAULT,
        (None, "SIGSEGV"),
        [(3, None), (None, "SIGKILL"), (None, "SIGTERM")],
    ),
    "a C++ exception": (
        "terminate called after throwing an instance of 'std::bad_alloc'\n",
        (None, "SIGABRT"),
        [(3, None)],
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_last_words_count_for_the_end_that_they_announce(name):
    text, end, others = WORDS[name]
    assert is_end(error_of("loading\n" + text, *end))
    for other in others:
        assert not is_end(error_of("loading\n" + text, *other)), other


@pytest.mark.parametrize("name", [name for name in WORDS if name != "a usage error"])
@pytest.mark.parametrize(
    "record",
    [
        "2026-11-20 21:56:11 [INFO]\tthe next part\n",
        "2026-11-20 21:36:05.123 | INFO     | the next part\n",
        "INFO:train:the next part\n",
        "[WARNING] ME(21:139968875081792,MainProcess):2026-11-20-23:52:38.123.000 [a.py:1] next\n",
    ],
)
def test_a_record_after_last_words_shows_that_the_process_went_on(name, record):
    text, end, _others = WORDS[name]
    assert error_of(text + "\n" * 12 + record, *end)["survived"] is True


@pytest.mark.parametrize(
    "text, code, ended",
    [
        # a message of one line, and what the program says after it
        (MAIN + MISSING + "creating index...\nindex created!\n", 1, False),
        (MAIN + MISSING + "creating index...\n", 1, True),
        # a message of unknown length
        (MAIN + "ValueError: bad model\nlayer 1 has no weights\nlayer 2 neither\n", 1, True),
        # what runtimes print below it
        (MAIN + MISSING + "I1120 21:42:30.394339  2837 tcp_store.cc:1] quit\n" * 3, 1, True),
        (MAIN + MISSING + "- C++ Call Stack:\na/b.cc:225 Register\n[INFO] PS\n", 1, True),
        (DEVICE + "batch size 16 does not fit, 8 is tried\n", 1, False),
        ("python3: No module named pip\nplain layers\n", 1, False),
    ],
)
def test_lines_of_the_program_below_a_whole_message(text, code, ended):
    assert is_end(error_of(text, code)) is ended


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT"])
def test_a_crash_while_the_interpreter_ends(signal):
    assert is_end(error_of(MAIN + "ValueError: x\n", None, signal))
    assert not is_end(error_of(MAIN + "ValueError: x\n" + "more\n" * 20, None, signal))
    assert not is_end(error_of(MAIN + MISSING + "the cache is built anew\n", None, signal))


def test_a_missing_page_is_no_crash_of_an_ending_interpreter():
    fault = SUMMARY + "FatalError: `%s` is detected by the operating system.\n"
    bus = fault % "Access to an undefined portion of a memory object"
    assert error_of(MAIN + MISSING + bus, None, "SIGBUS")["cause"] == "bus_error"
    crash = fault % "Segmentation fault"
    assert error_of(MAIN + MISSING + crash, None, "SIGSEGV")["cause"] == "data_missing"


def test_native_words_before_an_exception_are_of_something_caught():
    found = error_of(DEVICE + "8 is tried\n" + MAIN + "KeyError: 'a'\n", 1)
    assert found["kind"] == "KeyError"
    # a worker's own words come before its parent's report
    report = MAIN + KILLED % "Segmentation fault"
    assert error_of(FAULT + "\n" * 5 + report, 1)["kind"] == "Fatal Python error"
    helper = "python3: No module named pip\n"
    assert error_of(helper + MAIN + MISSING, 1)["cause"] == "data_missing"
    usage = "gdown: error: no url\ntrain.py: error: no config\n"
    assert error_of(usage, 2)["text"] == "no config"


@pytest.mark.parametrize(
    "report, more, cause",
    [
        (QUEUE + "\n", "", "bus_error"),
        (KILLED % "Bus error", "", "bus_error"),
        (KILLED % "Killed", "", "killed"),
        (QUEUE + "\n", "\n" + THREAD + LOADER + MISSING, "data_missing"),
    ],
)
def test_a_workers_words_count_where_its_parent_says_nothing_else(report, more, cause):
    assert error_of(BUS + MAIN + report + more, 1)["cause"] == cause


def test_a_thread_explains_an_end_only_where_the_main_thread_waits_for_it():
    dead = THREAD + LOADER + MISSING
    assert error_of(dead, None, "SIGTERM")["thread"] is True
    other = error_of(THREAD + CODE + MISSING, None, "SIGTERM")
    assert (other["thread"], other["survived"]) == (False, True)
    assert error_of(dead + MAIN + QUEUE + "\n", 1)["cause"] == "data_missing"
    assert error_of(THREAD + CODE + MISSING + MAIN + QUEUE + "\n", 1)["cause"] == "worker_died"
    gloo = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  Reset\n"
    assert error_of(dead + gloo, None, "SIGABRT")["kind"] == "gloo::IoException"


def test_a_mere_warning_of_nccl_is_no_end():
    assert not is_end(error_of(WARN + "loading\nreading\n", 1))
    assert is_end(error_of(WARN, 1))
    abort = "terminate called after throwing an instance of 'std::runtime_error'\n"
    assert error_of(WARN + abort, None, "SIGABRT")["cause"] == "connection_lost"
    lost = MAIN + "OSError: (External) NCCL error(6), remote process exited\n"
    assert error_of(WARN + "loading\n" + lost, 1)["cause"] == "connection_lost"


@pytest.mark.parametrize(
    "handled",
    [
        # forms that an interpreter does not use for an uncaught exception
        MAIN.replace("last):\n", "last):\n\n") + MISSING,
        "Error in atexit._run_exitfuncs:\n" + MAIN + MISSING,
        "Error in sys.excepthook:\n" + MAIN + MISSING,
        'Current thread 0x1 (most recent call first):\n  File "/srv/train.py", line 55 in train\n',
        'Timeout (0:00:30)!\nThread 0x1 (most recent call first):\n  File "/a.py", line 5 in f\n',
    ],
)
def test_forms_of_what_is_no_uncaught_exception(handled):
    found = error_of(handled + "loading\n", 1)
    assert found is None or found["handled"]
    assert error_of(MAIN + "ValueError: x\n" + handled, 1)["kind"] == "ValueError"


def test_a_stream_that_cannot_be_written_hides_no_exception():
    stream = (
        "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError: [Errno 32]"
    )
    assert is_end(error_of(f"{stream} Broken pipe\n{MAIN}ValueError: x\n", 1))


def test_an_exception_group_is_read_as_an_exception():
    found = error_of(GROUP, 1)
    assert (found["kind"], found["text"]) == ("ExceptionGroup", "two (2 sub-exceptions)")
    assert is_end(found)
    assert not is_end(error_of(GROUP.replace("<module>", "fetch"), 1))
    assert error_of(GROUP + MAIN + MISSING, 1)["cause"] == "data_missing"


def test_nothing_is_held_against_a_process_that_still_runs():
    found = parser.LogScan(parser.Table())
    found.feed((THREAD + CODE + MISSING).encode())
    assert found.finish()["first_error"]["thread"] is True
