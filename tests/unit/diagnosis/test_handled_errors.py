# SPDX-License-Identifier: Apache-2.0
"""Errors that look handled and are the last thing that a rank says, on real layouts of a log."""

from __future__ import annotations

import json

import line_cases
import pytest

# A traceback that a handler printed: it does not begin at the script's own level.
TORN = 'Traceback (most recent call last):\n  File "train.py", line 9, in main\n    step()\n'
PLACE = "mindspore/ccsrc/plugin/hccl_adapter.cc:408 Init\n"
HEADED = (
    TORN
    + "RuntimeError: Memory not enough: alloc size[1024] is more than free\n\n"
    + "-" * 52
    + "\n- Framework Error Message: (For framework developers)\n"
    + "-" * 52
    + "\nthe allocation failed.\n\n"
    + "-" * 52
    + "\n- C++ Call Stack: (For framework developers)\n"
    + "-" * 52
    + "\n"
    + PLACE
)
IGNORED = (
    "Exception ignored in: <function Pool.__del__ at 0x7f8a1c0d5e40>\n"
    "Traceback (most recent call last):\n"
    '  File "pool.py", line 3, in __del__\n    self.close()\n'
    "AttributeError: 'Pool' object has no attribute 'close'\n"
)
TWO_LINES = "_pickle.UnpicklingError: A load persistent id instruction was encountered,\n"
FRAME = "Exception raised from get at ../FileStore.cpp:362 (most recent call first):\nframe #0: x\n"
BELOW = "one more batch is worked on\n"


def decided(folder, log, code=1):
    """Return the verdict on rank 1, which ends first with a log and an exit code."""
    line_cases.lay(folder, [line_cases.LOST, log], 1)
    path = folder / "node2" / "ranks.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        if event["event"] == "end":
            event["exit_code"] = code
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return line_cases.corpus.decide(folder)


@pytest.mark.parametrize(
    "log, cause",
    [
        (HEADED, "device_out_of_memory"),
        (TORN + "OSError: [Errno 24] Too many open files\n" + IGNORED, "resource_limit"),
        (TORN + TWO_LINES + "but no function was given.\n", "checkpoint_damaged"),
        (TORN + "RuntimeError: Timeout waiting for key: 0/0\n" + FRAME, "store_timeout"),
    ],
)
def test_what_belongs_to_a_message_is_no_sign_of_life(log, cause, tmp_path):
    assert decided(tmp_path / "end", log)["cause"] == cause
    found = decided(tmp_path / "on", log + BELOW)
    assert found["rank"] == 1 and found["cause"] != cause


def test_a_message_without_the_calls_of_native_code_ends_nothing(tmp_path):
    assert decided(tmp_path, HEADED.replace(PLACE, ""))["cause"] != "device_out_of_memory"


def test_calls_of_native_code_without_their_heading_belong_to_no_message(tmp_path):
    log = HEADED.replace("- C++ Call Stack", "- Another Message")
    assert decided(tmp_path, log)["cause"] != "device_out_of_memory"


def test_a_destructor_that_fails_later_belongs_to_no_error(tmp_path):
    log = TORN + "OSError: [Errno 24] Too many open files\n" + BELOW + IGNORED
    assert decided(tmp_path, log)["cause"] != "resource_limit"


@pytest.mark.parametrize("code, cause", [(143, "sigterm"), (144, "silent_exit")])
def test_the_exit_code_of_a_handler_of_sigterm(code, cause, tmp_path):
    found = decided(tmp_path, "loading\n", code)
    assert (found["rank"], found["cause"]) == (1, cause), found["text"]


def test_a_version_that_does_not_fit_is_the_reason_of_what_follows_it(tmp_path):
    log = (
        line_cases.FAILED.replace(
            "KeyError: 'lr'", "ImportError: libstdc++.so.6: version `GLIBCXX_3.4.30' not found"
        )
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + line_cases.FAILED.replace("KeyError: 'lr'", "NameError: name 'core' is not defined")
    )
    assert decided(tmp_path, log)["cause"] == "version_mismatch"


def test_two_launchers_may_have_put_words_before_a_line(tmp_path):
    log = line_cases.FAILED.replace("KeyError: 'lr'", "OSError: [Errno 28] No space left")
    for prefix in ("[rank1]: ", "[1,1]<stderr>:", "Wed Oct 10 01:40:44 2018[1,1]<stderr>:"):
        text = "".join(f"{prefix}[rank5]: {line}\n" for line in log.splitlines())
        assert decided(tmp_path / str(len(prefix)), text)["cause"] == "disk_full", prefix
